"""A GPU whose memory another process holds: it is named where loading the model finds too little."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from palladio.runtime.core.start import startup
from palladio.runtime.devices.accelerators import Machine
from palladio.runtime.interface.errors import ConfigError, DeviceTakenError

EXHAUSTED = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."


@pytest.fixture
def machine(tmp_path):
    """One with a GPU that another process has open."""
    file = tmp_path / "nvidia0"
    file.touch()
    code = f"file = open({str(file)!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield Machine({"cuda": str(file)}, {}, files={"cuda": (str(file),)}), process.pid
        process.kill()


def design_on(platform, number=0):
    devices = [SimpleNamespace(local_hardware_id=number)]
    return SimpleNamespace(
        device=SimpleNamespace(platform=platform),
        plan=SimpleNamespace(report=None, total_tokens=0),
        shape=SimpleNamespace(mesh=SimpleNamespace(local_devices=devices)),
    )


@pytest.mark.parametrize(
    ("platform", "number", "error"), [("gpu", 0, DeviceTakenError), ("gpu", 1, ConfigError), ("cpu", 0, ConfigError)]
)
def test_the_process_that_holds_the_memory_is_named(machine, monkeypatch, platform, number, error):
    """One on another GPU takes no memory of this one."""
    monkeypatch.setattr(startup, "step_advice", lambda *_: "lower --mem-fraction-static")
    shown, pid = machine
    design = design_on(platform, number)
    with (
        pytest.raises(error, match="--mem-fraction-static") as raised,
        startup._explaining_exhaustion(lambda: design, shown),
    ):
        raise jax.errors.JaxRuntimeError(EXHAUSTED)
    assert (f"process {pid} (" in str(raised.value)) == (error is DeviceTakenError)


def test_where_no_other_process_is_on_the_gpu_the_flags_are_to_blame(machine, monkeypatch):
    monkeypatch.setattr(startup, "step_advice", lambda *_: "lower --mem-fraction-static")
    design = design_on("gpu")
    alone = Machine({"cuda": os.devnull}, {})
    with pytest.raises(ConfigError), startup._explaining_exhaustion(lambda: design, alone):
        raise jax.errors.JaxRuntimeError(EXHAUSTED)


def test_the_advice_is_of_the_plan_that_trials_have_left(monkeypatch):
    monkeypatch.setattr(startup, "step_advice", lambda report, tokens: f"--max-total-tokens {tokens}")
    found = SimpleNamespace(design=design_on("cpu"))

    def settle_and_fail():
        found.design = design_on("cpu")
        found.design.plan.total_tokens = 512
        raise jax.errors.JaxRuntimeError(EXHAUSTED)

    told = startup._explaining_exhaustion(lambda: found.design)
    with pytest.raises(ConfigError, match="--max-total-tokens 512"), told:
        settle_and_fail()
