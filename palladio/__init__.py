"""Palladio: an LLM inference server on JAX/XLA for TPU and GPU.

    from palladio import Engine, SamplingParams

    with Engine(model_path="…") as engine:
        print(engine.generate("The capital of France is", SamplingParams(max_tokens=16)))

Names are imported when they are first used, so `import palladio` is instant and loads neither jax nor a web framework.
"""

import importlib
from typing import TYPE_CHECKING, Final

from palladio.version import __version__

if TYPE_CHECKING:
    from palladio.runtime.front.offline.offline_engine import Engine
    from palladio.runtime.interface.config.config import EngineConfig
    from palladio.runtime.interface.errors import (
        CheckpointError,
        ConfigError,
        ContextLengthError,
        DeadlineError,
        EngineDeadError,
        EngineNotReadyError,
        GenerationError,
        InvalidRequestError,
        ModelNotFoundError,
        OverloadedError,
        PalladioError,
        RequestAbortedError,
    )
    from palladio.runtime.interface.outputs.request_output import RequestOutput
    from palladio.runtime.interface.request.sampling_params import SamplingParams

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ContextLengthError",
    "DeadlineError",
    "Engine",
    "EngineConfig",
    "EngineDeadError",
    "EngineNotReadyError",
    "GenerationError",
    "InvalidRequestError",
    "ModelNotFoundError",
    "OverloadedError",
    "PalladioError",
    "RequestAbortedError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


_MODULES: Final = {  # of the names that are no errors
    "Engine": "palladio.runtime.front.offline.offline_engine",
    "EngineConfig": "palladio.runtime.interface.config.config",
    "RequestOutput": "palladio.runtime.interface.outputs.request_output",
    "SamplingParams": "palladio.runtime.interface.request.sampling_params",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'palladio' has no attribute {name!r}")
    return vars(importlib.import_module(_MODULES.get(name, "palladio.runtime.interface.errors")))[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
