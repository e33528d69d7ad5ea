"""`launch_server_cmd`, from where SGLang's later tutorials import it."""

from palladio.utils import launch_server_cmd

__all__ = ["launch_server_cmd"]
