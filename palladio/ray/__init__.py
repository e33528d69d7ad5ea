"""Ray Serve: the whole server as a deployment with replicas, each with an engine of its own (extra `ray`).

    from palladio.ray import deploy

    deploy(model_path="Qwen/Qwen3-8B", num_replicas=2)

Owns: the application for Serve, its replicas, what they are scaled by, and the hosts of TPU slices. Never: imported by
any other room. Ray is imported when one of the two names is first used: flags, slices and scaling need none of it.
"""

import importlib
from typing import TYPE_CHECKING, Final

from palladio.runtime.interface.errors import ConfigError

if TYPE_CHECKING:
    from palladio.ray.deployment import app, deploy

__all__ = ["app", "deploy"]

_INSTALL: Final = "palladio.ray needs Ray Serve: run `pip install '.[ray]'` in Palladio's repository"


def __getattr__(name: str) -> object:
    """
    Raises:
        ConfigError: Ray is not installed.
    """
    if name not in __all__:
        raise AttributeError(f"module 'palladio.ray' has no attribute {name!r}")
    try:
        importlib.import_module("ray.serve")
    except ImportError as error:
        raise ConfigError(f"{_INSTALL} ({error})") from error
    return vars(importlib.import_module("palladio.ray.deployment"))[name]
