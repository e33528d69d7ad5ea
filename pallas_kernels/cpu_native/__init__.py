"""Our own C++ for CPUs, as custom calls of XLA: products of a few rows, attention, and writes of the cache."""

from palladio.pallas_kernels.cpu_native.library import NativeError, load

__all__ = ["NativeError", "load"]
