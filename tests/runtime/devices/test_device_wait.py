"""A device that is taken for five seconds, or for ever: how long the start waits, what it says, and how it ends."""

import logging

import jax
import pytest

from palladio.runtime.devices import device_choice
from palladio.runtime.devices.accelerators import Machine
from palladio.runtime.devices.device_choice import choose_device
from palladio.runtime.devices.device_wait import DeviceWait
from palladio.runtime.devices.taken_device import TakenDevice
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, DeviceTakenError
from tests.runtime.devices.messages import LIBTPU_IN_USE, TAKEN, VFIO_BUSY

PACKAGES = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42", "jax-cuda13-plugin": "0.10.2"}
MACHINE = Machine({"tpu": "/dev/vfio/0"}, PACKAGES)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 0.0
        self.progress, self.told = [], []

    def sleep(self, seconds):
        assert seconds > 0.0
        self.now += seconds

    def wait(self, seconds):
        return DeviceWait(seconds, self.progress.append, self.told.append, lambda: self.now, self.sleep)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def starting(monkeypatch, clock):
    """jax, whose backend starts after so many seconds; what it was asked, and how often it had to forget."""
    found, calls = jax.local_devices(), []

    def give(says, after):
        def local_devices():
            calls.append(clock.now)
            if clock.now < after:
                raise RuntimeError(says)
            return found

        monkeypatch.setattr(jax, "local_devices", local_devices)
        monkeypatch.setattr(device_choice, "clear_backends", lambda: calls.append("cleared"))
        return calls

    return give


@pytest.mark.parametrize("says", TAKEN)
def test_a_device_that_is_taken_for_five_seconds_is_waited_for(starting, clock, says):
    calls = starting(says, 5.0)
    assert choose_device("auto", machine=MACHINE, wait=clock.wait(60.0)).platform == "cpu"
    assert clock.now == 5.0
    assert calls[:3] == [0.0, "cleared", 1.0], "jax keeps what it has found, so it is told to look again"
    assert [(progress.phase, progress.done, progress.total) for progress in clock.progress[:2]] == [
        ("device", 0, 60),
        ("device", 1, 60),
    ]
    assert len(clock.told) == 2
    assert clock.told[-1] == "", "it waits no more"


@pytest.mark.parametrize("says", TAKEN)
def test_one_that_is_taken_for_ever_ends_the_start_with_an_error_of_its_own(starting, clock, says):
    calls = starting(says, float("inf"))
    with pytest.raises(DeviceTakenError, match=r"--device-wait") as raised:
        choose_device("auto", machine=MACHINE, wait=clock.wait(7.5))
    assert clock.now == 7.5
    assert calls[-2:] == [7.5, "cleared"], "it looks once more when the time is over"
    assert "\n" not in str(raised.value)
    assert says in str(raised.value)


def test_with_no_time_to_wait_it_ends_at_once(starting, clock):
    starting(VFIO_BUSY, 5.0)
    with pytest.raises(DeviceTakenError, match="--device-wait 0"):
        choose_device("auto", machine=MACHINE, wait=clock.wait(0.0))
    assert clock.now == 0.0


def test_another_failure_is_not_waited_for(starting, clock):
    starting("Unable to initialize backend 'tpu': UNKNOWN: no", 5.0)
    with pytest.raises(ConfigError):
        choose_device("tpu", machine=MACHINE, wait=clock.wait(60.0))
    assert clock.now == 0.0


def test_a_failure_after_a_wait_is_told_as_it_is(monkeypatch, starting, clock):
    says = [VFIO_BUSY, "Unable to initialize backend 'tpu': UNKNOWN: broken"]

    def local_devices():
        raise RuntimeError(says.pop(0))

    starting(VFIO_BUSY, 0.0)
    monkeypatch.setattr(jax, "local_devices", local_devices)
    with pytest.raises(ConfigError, match="broken"):
        choose_device("tpu", machine=MACHINE, wait=clock.wait(60.0))


def test_a_taken_tpu_that_jax_passes_over_is_waited_for_too(monkeypatch, clock, caplog):
    """Without a platform that is asked for, jax takes the CPU, and says why in its log alone."""
    found, cleared = jax.local_devices(), []

    def local_devices():
        if clock.now < 3.0:
            logging.getLogger("jax._src.xla_bridge").info(LIBTPU_IN_USE)
        return found

    monkeypatch.setattr(jax, "local_devices", local_devices)
    monkeypatch.setattr(device_choice, "clear_backends", lambda: cleared.append(clock.now))
    before = jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", None)
    try:
        with caplog.at_level("WARNING"):
            choose_device("auto", machine=MACHINE, wait=clock.wait(60.0))
    finally:
        jax.config.update("jax_platforms", before)
    assert clock.now == 3.0
    assert cleared == [0.0, 1.0, 2.0]
    assert not [record for record in caplog.records if record.name == "jax._src.xla_bridge"], "jax says no more"


def test_jax_is_not_asked_while_the_system_says_that_the_device_is_taken(monkeypatch, clock):
    attempts = []

    def attempt():
        attempts.append(clock.now)
        return TakenDevice("TPU", ("/dev/vfio/0",)) if clock.now < 5.0 else "device"

    monkeypatch.setattr(TakenDevice, "is_busy", property(lambda taken: clock.now < 4.0))
    assert clock.wait(60.0).until_free(attempt) == "device"
    assert attempts == [0.0, 4.0, 5.0]


def test_how_long_to_wait_is_a_flag_that_is_checked():
    assert EngineConfig.from_flags({"model_path": "x"}).execution.device_wait == 60.0
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="--device-wait"):
            EngineConfig.from_flags({"model_path": "x", "device_wait": wrong})
