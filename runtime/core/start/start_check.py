"""The checks of a start's result alone: what devices hold of the weights, and a first answer. No engine serves."""

import dataclasses
from collections.abc import Callable, Collection

from palladio.runtime.core.start.first_answer import FirstAnswer, compare_first_answer
from palladio.runtime.core.start.startup import CallListener, build_executor
from palladio.runtime.execution.model_runner import ModelRunner
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.engine_state import LoadProgress, WeightsSize
from palladio.runtime.telemetry.activity import Activity


def check_start(
    config: EngineConfig,
    skipped: Collection[str],
    on_loaded: Callable[[WeightsSize], None],
    on_progress: Callable[[LoadProgress], None] = lambda progress: None,
) -> FirstAnswer | None:
    """Load a model as a start does, read its weights back in part, and compare a first answer.

    Args:
        config: of one host.
        skipped: kernels that are known not to work; no others are tried.
        on_loaded: called when the weights on the devices are those of the files.
        on_progress: hears how far loading is.

    Returns:
        None: there is nothing to compare, see `compare_first_answer`.

    Raises:
        ConfigError: a flag, the model's config or its checkpoint is wrong, or memory is too small.
        DeviceTakenError: another process has the device.
        ReadBackError: a device holds other weights than the files.
    """
    execution = dataclasses.replace(config.execution, start_check="always", kernel_check="never", compile="lazy")
    config = dataclasses.replace(config, execution=execution)
    listener = CallListener(Activity(), None)
    built = build_executor(config, on_progress, lambda value: value, listener, skipped=skipped)
    on_loaded(built.weights)
    runner = ModelRunner(built.executor, built.design.model.eos_token_ids, is_lazy=True)
    return compare_first_answer(config, built.design, runner)
