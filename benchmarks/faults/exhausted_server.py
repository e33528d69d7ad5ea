"""A server like `palladio serve`, but once the device's memory does not suffice for a step; for faults.py.

XLA's error comes at a decode step of at least 8 requests, and takes the arrays with it that the step updates in place.
"""

import os
import sys
from collections.abc import Callable

from palladio import __main__ as command_line
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.process.engine_loop import TokenEngine
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.server import launch as launch_server

MIN_REQUESTS, STEPS_BEFORE = 8, 20


def create_core(
    config: EngineConfig, on_progress: Callable[[LoadProgress], None], on_fatal: Callable[[str], None]
) -> TokenEngine:
    """The engine core, with a step that fails."""
    import jax  # not in the front's process

    from palladio.runtime.core.engine_core import EngineCore
    from palladio.runtime.execution.model_runner import ForwardedStep
    from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep

    core = EngineCore.create(config, on_progress, on_fatal)
    runner, forward = core._runner, core._runner.forward
    left = STEPS_BEFORE

    def failing(step: ScheduledStep) -> ForwardedStep:
        nonlocal left
        left -= step.kind == "decode" and step.num_rows >= MIN_REQUESTS
        if left > 0:
            return forward(step)
        runner.forward = forward  # type: ignore[method-assign]
        for array in jax.tree.leaves(runner.executor.state.of_requests):
            array.delete()
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.")

    runner.forward = failing  # type: ignore[method-assign]
    return core


def main() -> int:
    def transport(**options: object) -> ProcessTransport:
        return ProcessTransport("exhausted_server:create_core", **options)  # type: ignore[arg-type]

    vars(launch_server)["ProcessTransport"] = transport
    return command_line.main(sys.argv[1:])


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main())
