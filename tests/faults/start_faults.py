"""Faults of a start on a chip: the wait for it, and the checks of what was loaded."""

from tests.faults.fault import Fault

START_FAULTS = (
    Fault(
        "a changed byte in one device's part of the weights is not noticed",
        "model/loading/read_back.py",
        "for shard in found.addressable_shards:",
        "for shard in found.addressable_shards[:1]:",
        ("tests/model/loading/test_read_back.py",),
    ),
    Fault(
        "a first answer that differs is not reported",
        "runtime/core/start/startup.py",
        'return "" if answer is None else answer.problem',
        'return "" if answer is not None else "not compared"',
        ("tests/runtime/core/start/test_first_answer.py",),
    ),
    Fault(
        "the wait for a device ends as if it were there",
        "runtime/devices/device_wait.py",
        "while isinstance(found, TakenDevice):",
        "while isinstance(found, TakenDevice) and self.clock() - begun < self.seconds:",
        ("tests/runtime/devices/test_device_wait.py",),
    ),
    Fault(
        "a device that another process has ends the server as any failure does",
        "palladio/server/launch.py",
        "if isinstance(error, DeviceTakenError):",
        "if isinstance(error, DeviceTakenError) and error.args == ():",
        ("tests/integration/test_taken_device.py",),
    ),
    Fault(
        "the time-out of one host hides that another one waits for its chip",
        "runtime/multihost/coordinator.py",
        "if culprit is not None and not culprit.startswith(link.name):",
        "if culprit is not None and culprit.startswith(link.name):",
        ("tests/runtime/multihost/test_coordinator.py",),
    ),
)
