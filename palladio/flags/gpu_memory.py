"""Settings of GPU memory for the engine's process. Imports nothing that takes time."""

from collections.abc import Mapping
from typing import Final

# XLA takes 75 % of a GPU when it starts, and jax then reports that as the device's memory: --mem-fraction-static 0.85
# would mean 0.64 of the GPU. With 1.0 jax reports the whole GPU, so the flag means what it says. XLA then asks for all
# of it, is refused (the CUDA context lives there too), takes 90 % instead, and fetches more when it needs more.
GPU_MEMORY: Final = {"XLA_CLIENT_MEM_FRACTION": "1.0"}
_USERS_GPU_MEMORY: Final = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # jax refuses both together


def gpu_memory(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables for the engine's process; none if the user has set any."""
    return {} if any(environment.get(name) for name in _USERS_GPU_MEMORY) else GPU_MEMORY
