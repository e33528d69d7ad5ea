"""Before jax is imported: tests compile thousands of small programs once and run each for microseconds."""

import os

FAST_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

# Only LLVM's passes over the machine code are left out; XLA's own, which decide what is computed, stay.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST_COMPILE}".strip()
