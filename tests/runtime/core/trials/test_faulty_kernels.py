"""A kernel that fails its trial is not used, whatever way it fails: the engine serves with right tokens."""

import asyncio
import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from palladio.pallas_kernels.ragged_paged_attention import api
from palladio.runtime.core.plan import engine_plan
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.plan.memory import DeviceMemory
from palladio.runtime.core.start import tried_plan
from palladio.runtime.core.start.tried_plan import TriedPlan, model_on_device
from palladio.runtime.core.trials.kernel_trials import BrokenDeviceError
from palladio.runtime.core.trials.runner import TrialRunner
from palladio.runtime.core.trials.verdicts import Platform, key_of
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.process_transport import ProcessTransport
from tests.runtime.core.trials import faulty_backend
from tests.runtime.core.trials.faulty_backend import KERNEL, NAME, register
from tests.runtime.fake_core import started
from tests.runtime.tiny_engine import FLAGS, generate

PROMPT = [5, 6, 7, 8, 9]
FACTORY = "tests.runtime.core.trials.faulty_backend:create_{}"
ONE_SIZE = {"max_running_requests": 2, "cuda_graph_bs": (2,), "chunked_prefill_size": 16, "max_total_tokens": 256}


def flags_of(folder: Path, cache: Path, **more: Any) -> EngineConfig:
    flags = {**FLAGS, **ONE_SIZE, "compilation_cache_dir": str(cache), "kernel_check": "always", "compile": "lazy"}
    return EngineConfig.from_flags({"model_path": str(folder), **flags, **more})


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a faulty backend first, in this process."""

    def put(fault: str) -> None:
        backends, orders = register(fault)
        for name, backend in backends.items():
            monkeypatch.setitem(api.BACKENDS, name, backend)
        monkeypatch.setitem(api.AUTO_ORDER, "cpu", orders["cpu"])

    return put


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    return [line for line in found if KERNEL in line]


def fail_if_called(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a trial, although there should be none")


async def tokens_of(config: EngineConfig, factory: str) -> list[int]:
    """Serve one request in a process of its own."""
    async with started(AsyncEngine(config, ProcessTransport(factory))) as engine:
        params = SamplingParams(max_tokens=6, temperature=0.0)
        outputs = engine.generate(GenerationRequest("one", PROMPT, params))
        return [token async for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("fault", ["wrong", "not_finite", "uncompiled", "raises"])
def test_another_backend_takes_the_place_of_one_that_fails(fault, tiny_dir, tmp_path, caplog, faulty):
    faulty(fault)
    tried = TriedPlan(flags_of(tiny_dir, tmp_path))
    assert tried.design.kernels.attention == NAME
    design = tried.settle()
    assert (design.kernels.attention, design.kernels.target.skipped) == ("xla", (KERNEL,))
    (warning,) = warnings_of(caplog)
    (entry,) = json.loads((tmp_path / "kernel_trials" / "verdicts.json").read_text())["verdicts"].values()
    assert entry["outcome"] == ("wrong" if fault in ("wrong", "not_finite") else "failed")
    assert entry["shapes"] in warning
    assert not list((tmp_path / "kernel_trials").glob("*.running"))


def test_a_verdict_is_taken_by_the_next_start_on_such_a_device_alone(tiny_dir, tmp_path, caplog, monkeypatch, faulty):
    faulty("wrong")
    monkeypatch.setattr(tried_plan, "checks_kernels", lambda execution, platform: True)
    config = flags_of(tiny_dir, tmp_path, kernel_check="auto")
    assert TriedPlan(config).settle().kernels.attention == "xla"
    caplog.clear()
    again = TriedPlan(config)
    assert again.design.kernels.attention == "xla"
    assert len(warnings_of(caplog)) == 1
    own = Platform.of(jax.devices()[0])
    for other in ("device", "packages", "compiler", "kernels"):
        changed = {**dataclasses.asdict(own), other: "x"}
        with monkeypatch.context() as patch:
            patch.setattr(Platform, "of", classmethod(lambda cls, device, changed=changed: cls(**changed)))
            assert TriedPlan(config).design.kernels.attention == NAME, other


def test_a_backend_that_works_is_tried_once(tiny_dir, tmp_path, monkeypatch, faulty):
    faulty("wrong")
    monkeypatch.setitem(faulty_backend.FAULTS, "wrong", lambda out, metadata: out)
    monkeypatch.setattr(tried_plan, "checks_kernels", lambda execution, platform: True)
    config = flags_of(tiny_dir, tmp_path, kernel_check="auto")
    assert TriedPlan(config).settle().kernels.attention == NAME
    with monkeypatch.context() as patch:
        patch.setattr("palladio.runtime.core.trials.runner.TrialRunner.expected", fail_if_called)
        assert TriedPlan(config).settle().kernels.attention == NAME


def test_all_programs_use_the_same_backend(tiny_dir, tmp_path, monkeypatch, faulty):
    faulty("wrong")
    own_sizes = {"max_running_requests": 3, "cuda_graph_bs": (3,), "chunked_prefill_size": 24}  # not traced before
    design = TriedPlan(flags_of(tiny_dir, tmp_path, **own_sizes)).settle()
    called: dict[str, set[str]] = {"decode": set(), "prefill": set()}
    for name, backend in list(api.BACKENDS.items()):

        def spy(q: Any, pages: Any, metadata: Any, options: Any, name: str = name, backend: Any = backend) -> Any:
            called[metadata.kind].add(name)
            return backend(q, pages, metadata, options)

        monkeypatch.setitem(api.BACKENDS, name, spy)
    keys: list[ProgramKey] = [key for key in design.programs.by_key if design.programs.by_key[key].runs_layers]
    by_kind = {key.num_tokens > 0: key for key in keys}
    for key in by_kind.values():
        jitted, args = design.programs.built.declaration(key)
        jitted.lower(*args)
    assert called == {"decode": {"xla"}, "prefill": {"xla"}}


def test_a_kernel_is_tried_before_programs_are_compiled_to_plan_memory(tiny_dir, tmp_path, monkeypatch, caplog, faulty):
    faulty("uncompiled")
    monkeypatch.setattr(DeviceMemory, "of", lambda device: DeviceMemory(2**21, 2**21))
    design = TriedPlan(flags_of(tiny_dir, tmp_path, max_total_tokens=None)).design
    assert design.kernels.attention == "xla"
    assert design.plan.report.workspace > 0, "nothing was compiled"
    assert len(warnings_of(caplog)) == 1


def test_a_kernel_that_fails_on_another_host_is_not_used_here(tiny_dir, tmp_path, monkeypatch, caplog, faulty):
    faulty("wrong")
    monkeypatch.setitem(faulty_backend.FAULTS, "wrong", lambda out, metadata: out)
    said = [0, 0]  # there: not enough memory to plan without a trial, in which the kernel failed
    tried = TriedPlan(flags_of(tiny_dir, tmp_path), lambda value: said.pop() if said else value)
    assert tried.design.kernels.attention == "xla"
    assert len(warnings_of(caplog)) == 1


def test_a_plan_in_place_of_another_has_its_device_seed_and_memory(tiny_dir, tmp_path, monkeypatch):
    config = flags_of(tiny_dir, tmp_path, max_total_tokens=None, random_seed=None)
    first = EnginePlan.of(config)
    monkeypatch.setattr(DeviceMemory, "of", fail_if_called)  # by now, weights are on the device
    monkeypatch.setattr(engine_plan, "choose_device", fail_if_called)
    again = EnginePlan.of(config, skipped=(KERNEL,), instead_of=first)
    assert (again.seed, again.device, again.plan) == (first.seed, first.device, first.plan)


def test_a_device_that_computes_nothing_more_ends_the_process(tiny_dir, tmp_path, monkeypatch, faulty):
    faulty("raises")
    monkeypatch.setattr(TrialRunner, "computes", lambda self: False)
    folder, ended = tmp_path / "kernel_trials", []

    def end(message: str) -> None:
        ended.append((message, [path.read_text() for path in folder.glob("*.running")]))

    with pytest.raises(BrokenDeviceError):
        TriedPlan(flags_of(tiny_dir, tmp_path), on_hung=end).settle()
    ((message, markers),) = ended
    assert KERNEL in message
    assert markers == [KERNEL], "so that the front starts the engine again"
    (entry,) = json.loads((folder / "verdicts.json").read_text())["verdicts"].values()
    assert entry["outcome"] == "failed"


def test_memory_that_is_short_says_nothing_about_a_kernel(tiny_dir, tmp_path, monkeypatch, faulty):
    faulty("wrong")

    def exhausted(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte")

    monkeypatch.setattr(TrialRunner, "_results", exhausted)
    assert TriedPlan(flags_of(tiny_dir, tmp_path)).settle().kernels.attention == NAME
    assert not (tmp_path / "kernel_trials" / "verdicts.json").exists()


def test_a_verdict_holds_whether_speed_is_measured_or_not(tiny_dir, tmp_path, faulty):
    faulty("wrong")
    chosen = EnginePlan.of(flags_of(tiny_dir, tmp_path)).chosen
    platform = Platform.of(jax.devices()[0])
    plain, more = (model_on_device(chosen, for_speed=speed).kernels_in_use() for speed in (False, True))
    assert sum(len(kernel.cases) for kernel in plain) < sum(len(kernel.cases) for kernel in more)
    assert [key_of(kernel, platform) for kernel in plain] == [key_of(kernel, platform) for kernel in more]


@pytest.mark.parametrize("check", ["auto", "never"])
def test_a_cpu_tries_nothing_by_default(check, tiny_dir, tmp_path, monkeypatch, faulty):
    faulty("wrong")
    monkeypatch.setattr(Platform, "of", fail_if_called)
    monkeypatch.setattr("palladio.runtime.core.trials.kernels_in_use.ModelOnDevice.kernels_in_use", fail_if_called)
    tried = TriedPlan(flags_of(tiny_dir, tmp_path, kernel_check=check))
    assert tried.settle() is tried.design
    assert tried.design.kernels.attention == NAME
    assert not (tmp_path / "kernel_trials").exists()


SLOW = ["wrong", "not_finite", "uncompiled", "raises", "sleeps"]


@pytest.mark.parametrize("fault", ["aborts", *(pytest.param(fault, marks=pytest.mark.slow) for fault in SLOW)])
async def test_the_next_start_serves_with_right_tokens(fault, tiny, tiny_dir, tmp_path, capfd):
    """In processes of their own; that of a kernel which hangs or aborts is started again by its front."""
    config, factory = flags_of(tiny_dir, tmp_path, skip_tokenizer_init=True), FACTORY.format(fault)
    found = await tokens_of(config, factory)
    assert f"Kernel {KERNEL} is not used" in capfd.readouterr().err
    assert found == generate(tiny.core(), {"one": PROMPT}, max_tokens=6)["one"]
    markers = list((tmp_path / "kernel_trials").glob("*.running"))
    assert len(markers) == (1 if fault in ("sleeps", "aborts") else 0)
    with contextlib.suppress(IndexError):
        assert markers[0].read_text() == KERNEL


@pytest.mark.slow
async def test_a_start_that_is_cut_short_leaves_no_marker(tiny_dir, tmp_path, monkeypatch):
    engine = AsyncEngine(
        flags_of(tiny_dir, tmp_path, skip_tokenizer_init=True), ProcessTransport(FACTORY.format("sleeps"))
    )
    await engine.start()
    folder = tmp_path / "kernel_trials"
    for _ in range(600):
        if list(folder.glob("*.running")):
            break
        await asyncio.sleep(0.05)
    assert list(folder.glob("*.running"))
    await engine.shutdown()
    assert not list(folder.glob("*.running"))
