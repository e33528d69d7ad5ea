"""A kind of program that only this test knows of: one class is all that an engine needs to build and run it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.runtime.core.start.aot_compile import compile_ahead
from palladio.runtime.core.watch.step_counters import RecompileCounter
from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.execution.device_executor import DeviceExecutor
from palladio.runtime.execution.programs import programs
from palladio.runtime.execution.programs.program import Program, ProgramDesign, ProgramKey, Results, Takes, host_array
from palladio.runtime.execution.state.device_state import DeviceState
from palladio.runtime.interface.config.config import EngineConfig
from tests.runtime.tiny_engine import FLAGS, Collector, TinyEngine, random_prompt

FEW = {
    "json_model_override_args": '{"num_hidden_layers": 1}',
    "max_running_requests": 1,
    "chunked_prefill_size": 16,
}


class Touch(Program):
    """Overwrites the block tables with what they are. Takes i32[]; gives that times the number of slots."""

    kind = "touch"

    @classmethod
    def declare(cls, design: ProgramDesign) -> Iterable[Self]:
        return [cls(design)]

    def takes(self, state: DeviceState) -> Takes:
        return Takes(donated={"tables": state.tables})

    def from_host(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return (host_array(),)

    def compute(self, tables: jax.Array, number: jax.Array) -> Results:
        touched = tables.at[0, 0].add(number - number)
        return (touched,), None, number * jnp.int32(tables.shape[0])


class Touching(StepObserver):
    """Calls the program before each step."""

    def __init__(self, executor: DeviceExecutor) -> None:
        self.executor = executor
        self.results: list[int] = []

    def before_step(self) -> None:
        found = self.executor.run(Touch.key_of(), [np.array(len(self.results), np.int32)])
        self.results.append(int(found))


def test_a_new_class_is_compiled_ahead_exported_counted_run_and_donated(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PROGRAMS", (*programs.PROGRAMS, Touch))
    flags = {**FEW, "compiled_dir": str(tmp_path)}
    compile_ahead(EngineConfig.from_flags({"model_path": str(tiny_dir), **FLAGS, **flags}))
    assert len(list(tmp_path.glob("touch-*"))) == 1

    engine = TinyEngine(tiny_dir, **flags)
    runner = engine._parts.runner
    executor, key = runner.executor, Touch.key_of()
    assert key in engine.programs
    assert [report.result for report in runner.programs.built.reports if report.name == "touch"] == ["exported"]
    assert key in runner.programs.first_keys(splits_prompts=True), "no step can do without it, as it says"
    assert runner.programs.built.programs[key].memory_analysis().alias_size_in_bytes > 0

    touching = Touching(executor)
    tables = executor.state.tables
    counter = RecompileCounter(runner.programs.built, fails=True)
    core = engine.core(observers=(counter, touching))
    collector = Collector(core)
    collector.add("a", random_prompt(5), max_tokens=4)
    tokens = collector.run().tokens["a"]
    assert touching.results == [number * tables.shape[0] for number in range(len(touching.results))]
    assert tables.is_deleted(), "its program overwrote it"
    assert core.stats().compile.num_programs == len(engine.programs)
    alone = Collector(engine.core())
    alone.add("a", random_prompt(5), max_tokens=4)
    assert alone.run().tokens["a"] == tokens

    calls: list[Any] = []
    host_0 = DeviceExecutor(executor.state, runner.programs, lambda key, arrays: calls.append((key, arrays)))
    assert int(host_0.run(key, [np.array(3, np.int32)])) == 3 * tables.shape[0]
    ((told, arrays),) = calls
    follower = DeviceExecutor(host_0.state, runner.programs)
    assert int(follower.call(ProgramKey(*list(told)), *arrays)) == 3 * tables.shape[0], "as another host is told of it"
