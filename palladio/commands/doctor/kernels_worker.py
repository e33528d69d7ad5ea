"""The process that `palladio doctor --kernels` starts, because a kernel may hang or kill it: prints a line of JSON for
each kernel that it begins to try, and one for each result.

python -m palladio.commands.doctor.kernels_worker < request.json
"""

from palladio.processes.early_signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)  # before what takes seconds to import

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import jax
import msgspec

from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.start.tried_plan import model_on_device
from palladio.runtime.core.trials.case import Kernel
from palladio.runtime.core.trials.kernel_trials import KernelTrials, TrialPlace
from palladio.runtime.core.trials.runner import TrialRunner
from palladio.runtime.core.trials.verdicts import Platform, Verdict
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.planning.hardware import chip_of
from palladio.runtime.text.hub.hub import resolve_source
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
    source = resolve_source(request.config.source, needs_weights=False)
    config = dataclasses.replace(request.config, source=source)
    skipped, done = set(request.skipped), set(request.done)
    while True:
        design = EnginePlan.of(config, skipped=skipped)
        _print(_facts(design))
        place = TrialPlace(
            device=design.device,
            target=design.kernels.target,
            folder=config.execution.trials_path(),
            on_hung=_end_hung,
            repeats=True,
            forgets=True,
        )
        kernels = [one for one in model_on_device(design, for_speed=True).kernels_in_use() if one.name not in done]
        trials = KernelTrials(kernels, place)
        trials.run(lambda kernel: _print({"begin": kernel.name, "cases": len(kernel.cases)}), _print_result)
        done.update(trials.names)
        failed = {verdict.kernel for verdict in trials.failed}
        if not failed:
            _print({"end": True})
            return
        skipped |= failed


def _facts(design: EnginePlan) -> dict[str, Any]:
    """Describe device, versions and model, without a path."""
    device, model = design.device, design.layout.config
    chip = chip_of(device.platform, device.device_kind, Target.of(device).kind)
    sizes = {
        "architecture": model.architecture,
        "layers": model.num_layers,
        "hidden size": model.hidden_size,
        "heads": f"{model.num_heads} of {model.head_size}, {model.num_kv_heads} for keys and values",
        "dtype": jax.numpy.dtype(design.shape.dtype).name,
    }
    sheet = None if chip is None else {"bandwidth": chip.bandwidth, "flops": chip.flops, "name": chip.label}
    count = len(design.shape.mesh.devices.flat)
    return {"platform": dataclasses.asdict(Platform.of(device)), "devices": count, "model": sizes, "chip": sheet}


def _print_result(kernel: Kernel, verdict: Verdict, runner: TrialRunner) -> None:
    """Print a verdict, with the speed of a kernel that works."""
    figures = list(_figures(kernel, runner)) if verdict.passed else []
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
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
