"""What libtpu and XLA say of a taken device, in their own words, and who has it."""

import errno
import os
import subprocess
import sys

import pytest

from palladio.runtime.devices import taken_device
from palladio.runtime.devices.accelerators import Machine
from palladio.runtime.devices.taken_device import LOCK_FILE, TakenDevice, find_holders
from tests.runtime.devices.messages import LIBTPU_LOCKED, NOT_TAKEN, TAKEN, VFIO_BUSY

VFIO = ("/dev/vfio/0", "/dev/vfio/1")
MACHINE = Machine({"tpu": VFIO[0], "cuda": "/dev/nvidia0"}, {}, files={"tpu": VFIO, "cuda": ("/dev/nvidia0",)})


@pytest.mark.parametrize("says", TAKEN)
def test_each_message_of_a_taken_device_is_known(says):
    taken = TakenDevice.of(says, MACHINE)
    assert taken is not None
    assert taken.says == says
    assert set(taken.files) <= {*VFIO, LOCK_FILE, "/dev/nvidia0"}
    assert taken.files


@pytest.mark.parametrize("says", NOT_TAKEN)
def test_other_failures_are_not_waited_for(says):
    assert TakenDevice.of(says, MACHINE) is None


def test_the_file_and_the_process_that_are_named_are_the_ones_looked_for():
    busy = TakenDevice.of(VFIO_BUSY, MACHINE)
    assert busy is not None
    assert busy.files == ("/dev/vfio/0",)
    named = TakenDevice.of("ABORTED: The TPU is already in use by process with pid 4711. Not attempting to", MACHINE)
    assert named is not None
    assert named.pid == 4711


@pytest.fixture
def held(tmp_path):
    """A file like a device's, and the process that has it open."""
    file = tmp_path / "dev" / "vfio" / "0"
    file.parent.mkdir(parents=True)
    file.touch()
    code = f"file = open({str(file)!r}); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield str(file), process
        process.kill()


def test_a_process_that_holds_the_file_is_named_until_it_ends(held):
    file, process = held
    (holder,) = find_holders([file])
    assert (holder.pid, holder.file) == (process.pid, file)
    taken = TakenDevice.of(VFIO_BUSY.replace("/dev/vfio/0", file), MACHINE)
    assert taken is not None
    assert f"process {process.pid} ({holder.command}) has {file} open" in taken.describe()
    process.communicate("")
    assert find_holders([file]) == []
    assert f"`sudo lsof -w {file}`" in taken.describe()


def test_this_process_is_no_holder(held):
    file, process = held
    with open(file):
        assert [holder.pid for holder in find_holders([file])] == [process.pid]


def test_a_lock_that_nobody_holds_is_to_be_deleted():
    taken = TakenDevice.of(LIBTPU_LOCKED, MACHINE)
    assert taken is not None
    assert f"delete {LOCK_FILE}" in taken.describe()


def test_no_supported_gpu_means_a_taken_one_only_where_a_process_has_it(held):
    file, process = held
    says = "Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA"
    machine = Machine({"cuda": file}, {}, files={"cuda": (file,)})
    assert TakenDevice.of(says, machine) is not None
    process.communicate("")
    assert TakenDevice.of(says, machine) is None


@pytest.fixture
def busy_files(monkeypatch):
    """Files that only one process can open, and another one has."""
    busy: set[str] = set()
    opened = os.open

    def fake(file, *arguments, **options):
        if file in busy:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return opened(os.devnull if file in VFIO else file, *arguments, **options)

    monkeypatch.setattr(os, "open", fake)
    return busy


def test_a_tpu_is_seen_to_be_taken_only_if_all_its_chips_are(busy_files):
    assert TakenDevice.seen(MACHINE) is None
    busy_files.add(VFIO[0])
    assert TakenDevice.seen(MACHINE) is None, "the other chips may be the ones that this process is to use"
    busy_files.add(VFIO[1])
    seen = TakenDevice.seen(MACHINE)
    assert seen is not None
    assert seen.is_busy
    busy_files.clear()
    assert not seen.is_busy
    assert TakenDevice.seen(Machine({}, {})) is None


def test_a_chip_that_this_process_has_itself_is_not_taken(busy_files, monkeypatch):
    busy_files.update(VFIO)
    monkeypatch.setattr(taken_device, "_open_files", lambda folder: frozenset(VFIO))
    assert TakenDevice.seen(MACHINE) is None
