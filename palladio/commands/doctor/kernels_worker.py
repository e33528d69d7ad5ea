"""The process that `palladio doctor --kernels` starts, because a kernel may hang or kill it: prints a line of JSON for
each kernel that it begins to try, one for each result, and the same for the weights and the first answer.

python -m palladio.commands.doctor.kernels_worker < request.json
"""

from palladio.processes.early_signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)  # before what takes seconds to import

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec

from palladio.model.loading.manifest import is_converted
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.engine_plan import ChosenKernels
from palladio.runtime.core.start.first_answer import FirstAnswer
from palladio.runtime.core.start.start_check import check_start
from palladio.runtime.core.start.tried_plan import model_on_device
from palladio.runtime.core.trials.case import Kernel
from palladio.runtime.core.trials.kernel_trials import BrokenDeviceError, KernelTrials, TrialPlace
from palladio.runtime.core.trials.runner import TrialRunner
from palladio.runtime.core.trials.verdicts import Platform, Verdict
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import PalladioError, ReadBackError
from palladio.runtime.interface.messages.engine_state import WeightsSize
from palladio.runtime.planning.hardware import chip_of
from palladio.runtime.text.hub.hub import resolve_source
from palladio.runtime.text.hub.hub_download import DownloadListener
from palladio.server.launch import run_worker


@dataclasses.dataclass(frozen=True, slots=True)
class KernelsRequest:
    """What the command line asks for.

    Attributes:
        config: flags of the engine.
        done: kernels that an earlier process has tried.
        skipped: those of them that do not work.
    """

    config: EngineConfig
    done: list[str]
    skipped: list[str]


def main() -> int:
    """Return the exit code, see run_worker."""
    return run_worker(lambda: _run(msgspec.json.decode(sys.stdin.buffer.read(), type=KernelsRequest)))


def _run(request: KernelsRequest) -> None:
    display = ProgressDisplay()
    try:
        source = resolve_source(request.config.source, listener=DownloadListener(display.update))
        config = dataclasses.replace(request.config, source=source)
        _check_start(config, _try_kernels(config, request), display)
    except (PalladioError, BrokenDeviceError) as error:
        _print({"failure": str(error)})
        raise
    finally:
        display.close()
    _print({"end": True})


def _try_kernels(config: EngineConfig, request: KernelsRequest) -> set[str]:
    """Try kernels, and those that take the place of one that fails; return the names of all that fail."""
    skipped, done = set(request.skipped), set(request.done)
    while True:
        chosen = ChosenKernels.of(config, skipped)
        _print(_facts(chosen))
        place = TrialPlace(
            device=chosen.device,
            target=chosen.kernels.target,
            folder=config.execution.trials_path(),
            on_hung=_end_hung,
            repeats=True,
            forgets=True,
        )
        kernels = [one for one in model_on_device(chosen, for_speed=True).kernels_in_use() if one.name not in done]
        trials = KernelTrials(kernels, place)
        trials.run(lambda kernel: _print({"begin": kernel.name, "cases": len(kernel.cases)}), _print_result)
        done.update(trials.names)
        failed = {verdict.kernel for verdict in trials.failed}
        if not failed:
            return skipped
        skipped |= failed


def _check_start(config: EngineConfig, skipped: set[str], display: ProgressDisplay) -> None:
    """Load the model and compare a first answer, with the kernels that work; print what is found."""

    def on_loaded(size: WeightsSize) -> None:
        unread = _why_unread(config)
        outcome = "unread" if unread else "ok"
        _print({"weights": {"outcome": outcome, "text": unread, "bytes": size.num_bytes}})
        _print({"stage": "the first answer"})

    _print({"stage": "the weights"})
    try:
        answer = check_start(config, skipped, on_loaded, display.update)
    except ReadBackError as error:
        _print({"weights": {"outcome": "wrong", "text": str(error), "bytes": None}})
    else:
        _print({"answer": _described(answer)})


def _why_unread(config: EngineConfig) -> str:
    """Why nothing is read back; "": it is."""
    load_format = config.source.load_format
    if load_format == "dummy":
        return "they are random numbers (--load-format dummy)"
    is_own = load_format == "orbax" or (load_format == "auto" and is_converted(Path(config.source.model_path)))
    return "folders of `palladio convert` have checksums of their own" if is_own else ""


def _described(answer: FirstAnswer | None) -> dict[str, Any]:
    if answer is None:
        return {"outcome": "not compared", "text": "no portable implementation takes this model's weights, or no room"}
    return {
        "outcome": "differs" if answer.problem else "ok",
        "text": answer.problem,
        "attention": answer.attention,
        "portable": answer.portable,
        "differences": [None if math.isnan(one) else one for one in answer.differences],
        "bound": answer.bound,
    }


def _facts(chosen: ChosenKernels) -> dict[str, Any]:
    """Describe device, versions and model, without a path."""
    device, model = chosen.device, chosen.model
    chip = chip_of(device.platform, device.device_kind, Target.of(device).kind)
    sizes = {
        "architecture": model.architecture,
        "layers": model.num_layers,
        "hidden size": model.hidden_size,
        "heads": f"{model.num_heads} of {model.head_size}, {model.num_kv_heads} for keys and values",
        "dtype": jnp.dtype(chosen.shape.dtype).name,
        "attention": chosen.kernels.attention,
    }
    sheet = None if chip is None else {"bandwidth": chip.bandwidth, "flops": chip.flops, "name": chip.label}
    count = len(chosen.shape.mesh.devices.flat)
    return {"platform": dataclasses.asdict(Platform.of(device)), "devices": count, "model": sizes, "chip": sheet}


def _print_result(kernel: Kernel, verdict: Verdict, runner: TrialRunner) -> None:
    """Print a verdict, with the speed of a kernel that works."""
    figures: list[dict[str, Any]] = []
    try:
        figures.extend(_figures(kernel, runner) if verdict.passed else ())
    except jax.errors.JaxRuntimeError as error:  # such as memory that is short
        print(f"warning: {kernel.name} is not measured: {error}", file=sys.stderr, flush=True)
    _print({"verdict": dataclasses.asdict(verdict), "figures": figures})


def _figures(kernel: Kernel, runner: TrialRunner) -> Iterator[dict[str, Any]]:
    for case in kernel.cases:
        inputs = case.inputs[0]
        work = inputs.work
        yield {
            "case": f"{case.name}: {inputs.name}",
            "shapes": case.signature(),
            "seconds": runner.measure(kernel, case, inputs),
            "bytes": work.num_bytes,
            "flops": work.num_flops,
        }


def _end_hung(message: str) -> None:
    _print({"failure": message})
    os._exit(1)


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
