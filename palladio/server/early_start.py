"""What a server does before it imports what takes a second. Imports nothing that does."""

import os
from collections.abc import Sequence

from palladio.flags.gpu_memory import gpu_memory
from palladio.processes.early_signals import end_at_once
from palladio.processes.without_torch import hide_torch_from_transformers
from palladio.runtime.process.engine_child import EarlyEngine


def begin_to_serve(argv: Sequence[str]) -> EarlyEngine | None:
    """Handles signals, keeps torch out, and starts the engine's process; None: no server is asked for."""
    end_at_once(0, 0)
    hide_torch_from_transformers()
    if {"-h", "--help"} & set(argv):
        return None
    early = EarlyEngine(gpu_memory(os.environ))
    end_at_once(0, 0, early.close)
    return early
