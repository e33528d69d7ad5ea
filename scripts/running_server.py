"""A server of the embedded model for a script, for as long as it needs one."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from palladio.utils import launch_server_cmd, terminate_process, wait_for_server

START_SECONDS = 300.0


@contextmanager
def running_server(command: str) -> Iterator[str]:
    """Start a server, and yield its address.

    Args:
        command: command that starts it; the port is added.
    """
    with tempfile.TemporaryDirectory() as folder:
        process, port = launch_server_cmd(f"{command} --file-storage-path {folder}", host="127.0.0.1")
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for_server(url, timeout=START_SECONDS, process=process)
            yield url
        finally:
            terminate_process(process)
