"""Programs: built ahead, behind, or when first called; counted by how they came to be; exported and loaded."""

import ast
import contextlib
import logging
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.runtime.execution.compiled import program_store
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.persistent_cache import use_persistent_cache
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.compiled.program_store import SOURCE_ROOMS, ProgramStore, source_digest
from tests.many_devices import call_with_devices

ROOT = Path(__file__).resolve().parents[4]
VECTOR = jax.ShapeDtypeStruct((8,), jnp.float32)
pytestmark = pytest.mark.usefixtures("keeps_cache_options")


@pytest.fixture
def cold(tmp_path):
    """An empty persistent cache."""
    use_persistent_cache(tmp_path / "xla")


@pytest.fixture(scope="module")
def monitor():
    return CompileMonitor()


def numbered(monitor, count=4, store=None, salt=0.0, **told):
    """Programs 0 … count - 1; number n adds n + salt."""
    programs = ProgramCache(monitor, store, **told)
    for number in range(count):
        programs.add(number, jax.jit(lambda x, number=number: x + number + salt), VECTOR)
    return programs


def check(programs, salt=0.0):
    for number in programs.declared:
        np.testing.assert_array_equal(
            programs[number](np.ones(8, np.float32)), np.full(8, 1 + number + salt, np.float32)
        )


def results(programs):
    return sorted((report.name, report.result) for report in programs.reports)


def test_everything_is_built_and_reported(monitor, cold):
    programs, calls = numbered(monitor), []
    programs.build(programs.declared, lambda: calls.append(len(programs)))
    assert len(calls) == 4
    assert calls[-1] == len(programs) == 4
    assert results(programs) == [(str(n), "miss") for n in range(4)]
    assert all(report.seconds > 0 for report in programs.reports)
    before = monitor.count_here()
    check(programs)
    assert monitor.count_here() == before
    assert programs.lazy_seconds == 0
    assert set(programs.programs) == set(programs.declared)


def test_hits_and_misses_are_told_apart_program_by_program(monitor, cold):
    numbered(monitor, 2, salt=0.5).build([0, 1])
    programs = numbered(monitor, 4, salt=0.5)
    programs.build(programs.declared)
    assert results(programs) == [("0", "hit"), ("1", "hit"), ("2", "miss"), ("3", "miss")]
    check(programs, salt=0.5)


def test_a_key_that_was_never_added(monitor):
    with pytest.raises(KeyError):
        numbered(monitor)[7]


def test_a_program_that_is_not_built_is_built_by_the_call_which_waits_for_it(monitor, caplog):
    waited_for = []
    programs = numbered(
        monitor, salt=0.25, around_late_build=lambda key: contextlib.nullcontext(waited_for.append(str(key)))
    )
    programs.build([0])
    with caplog.at_level(logging.INFO):
        check(programs, salt=0.25)
        check(programs, salt=0.25)
    assert waited_for == ["1", "2", "3"]
    assert programs.lazy_seconds > 0
    assert programs.num_expected_compiles == 3
    assert caplog.text.count("built on first use") == 3


def test_in_the_background(monitor):
    programs = numbered(monitor, 6, salt=0.75)
    programs.build([0])
    seen = []
    programs.build_in_background([1, 2, 3, 4, 5], lambda: seen.append(len(programs)))
    programs.wait()
    assert seen == [2, 3, 4, 5, 6]
    check(programs, salt=0.75)
    assert programs.lazy_seconds == 0


def test_cancelling_leaves_the_rest(monitor):
    programs = numbered(monitor, 6, salt=0.125)
    programs.build_in_background(programs.declared, lambda: programs.cancel() if len(programs) == 2 else None)
    programs.wait()
    assert len(programs) == 2


ENDS_EARLY = """
import threading
import jax
import jax.numpy as jnp
from palladio.runtime.execution.compiled.compile_monitor import CompileMonitor
from palladio.runtime.execution.compiled.program_cache import ProgramCache

programs = ProgramCache(CompileMonitor())
def slow(x):
    for number in range(200):
        x = jnp.sin(x[::-1] * number) @ jnp.cos(x.T + number)
    return x
for number in range(50):
    programs.add(number, jax.jit(lambda x, number=number: slow(x + number)), jax.ShapeDtypeStruct((8, 8), jnp.float32))
engine = threading.Thread(target=programs.build_in_background, args=([*range(50)],), daemon=True)
engine.start()
engine.join()
print(programs._thread.is_alive())
"""


@pytest.mark.slow  # a process of its own
def test_a_process_that_ends_waits_for_the_program_that_is_being_compiled():
    """Python ends a daemon thread in the middle of XLA's C++, which aborts the process. An engine is such a thread."""
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_counts_are_of_the_thread_that_compiles(monitor):
    before = monitor.count_here()
    counts = []

    def compile_elsewhere():
        start = monitor.count_here().compiles  # of an earlier thread of the same number
        jax.jit(lambda x: x * 3 + time.time()).lower(VECTOR).compile()
        counts.append(monitor.count_here().compiles - start)

    thread = threading.Thread(target=compile_elsewhere)
    thread.start()
    thread.join()
    assert counts == [1]
    assert monitor.count_here() == before


@pytest.fixture
def store(tmp_path):
    return ProgramStore(tmp_path / "store", "a model", jax.devices()[:1])


def export(monitor, store, salt):
    use_persistent_cache(None)
    programs = numbered(monitor, salt=salt)
    programs.build(programs.declared)
    return programs.export(store)


def test_exported_programs_are_loaded_and_nothing_is_traced_or_compiled(monitor, store, tmp_path):
    assert sum(export(monitor, store, 2.0)) == sum(file.stat().st_size for file in (tmp_path / "store").iterdir())
    programs, before = ProgramCache(monitor, store), monitor.count_here()
    for number in range(4):
        programs.add(number, None, VECTOR)  # there is nothing to trace
    programs.build(programs.declared)
    assert results(programs) == [(str(n), "exported") for n in range(4)]
    assert monitor.count_here() == before
    check(programs, salt=2.0)
    assert programs.export(store) == []  # they are there already


@pytest.mark.parametrize("damage", [b"", b"no pickle", b"\x80\x05K\x01."])
def test_a_damaged_file_is_a_warning_and_a_miss(monitor, store, tmp_path, damage, caplog):
    export(monitor, store, 3.0)
    (damaged,) = (tmp_path / "store").glob("0-*")
    damaged.write_bytes(damage)
    programs = numbered(monitor, salt=3.0, store=store)
    programs.build(programs.declared)
    assert results(programs) == [("0", "miss"), *((str(n), "exported") for n in range(1, 4))]
    assert str(damaged) in caplog.text
    check(programs, salt=3.0)


def test_another_model_version_source_or_argument_is_a_miss(monitor, store, tmp_path, monkeypatch):
    export(monitor, store, 4.0)
    devices, folder = jax.devices()[:1], tmp_path / "store"
    assert ProgramStore(folder, "a model", devices).load("0", (VECTOR,)) is not None
    assert ProgramStore(folder, "another model", devices).load("0", (VECTOR,)) is None
    assert store.load("0", (jax.ShapeDtypeStruct((9,), jnp.float32),)) is None
    assert store.load("0", (jax.ShapeDtypeStruct((8,), jnp.int32),)) is None
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.0.1")
        assert ProgramStore(folder, "a model", devices).load("0", (VECTOR,)) is None
    with monkeypatch.context() as patch:
        patch.setattr(program_store, "source_digest", lambda: "of other source")
        assert ProgramStore(folder, "a model", devices).load("0", (VECTOR,)) is None


def keep_for_one_device(folder: str) -> None:
    assert len(jax.devices()) > 1
    use_persistent_cache(None)  # what comes from there can't be exported
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    store = ProgramStore(Path(folder), "a model", jax.devices()[:1])
    store.save("f", (x,), jax.jit(lambda x: x + 1).lower(x).compile())
    program = store.load("f", (x,))
    assert program is not None
    assert program(jnp.ones(8))[0] == 2


def test_a_program_for_one_of_many_devices(tmp_path):
    call_with_devices(__name__, "keep_for_one_device", str(tmp_path))


def test_exported_programs_can_be_read_by_other_users(monitor, store, tmp_path):
    export(monitor, store, 6.0)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "store").iterdir()} == {0o644}


def test_a_directory_that_cannot_be_written(monitor, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        export(monitor, ProgramStore(tmp_path / "file", "a model", jax.devices()[:1]), 5.0)


DIGESTED_FOLDERS = sorted(  # the rooms, and the rooms in them
    {file.parent.relative_to(ROOT).as_posix() for room in SOURCE_ROOMS for file in (ROOT / room).rglob("*.py")}
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of what the digest is of, and its digest."""
    folder = tmp_path_factory.mktemp("rooms")
    for each in SOURCE_ROOMS:
        shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__"))
    before = source_digest(folder)
    assert before == source_digest(ROOT)
    return folder, before


@pytest.mark.parametrize("room", DIGESTED_FOLDERS)
def test_the_digest_covers_every_room_that_decides_what_a_program_computes(room, copied):
    """A constant that changes in any file of these rooms makes other programs."""
    folder, before = copied
    file = max((folder / room).glob("*.py"), key=lambda path: path.stat().st_size)
    text = file.read_text(encoding="utf-8")
    changed = re.sub(r"^(_?[A-Z][A-Z_]+ = )(.+)$", r"\1(\2)", text, count=1, flags=re.MULTILINE)
    file.write_text(changed if changed != text else text + "\nCHANGED = 1\n", encoding="utf-8")
    try:
        assert source_digest(folder) != before
    finally:
        file.write_text(text, encoding="utf-8")


def test_the_digest_covers_tables_of_tuned_sizes(tmp_path):
    (tmp_path / "pallas_kernels").mkdir()
    table = tmp_path / "pallas_kernels" / "table.json"
    table.write_text("{}", encoding="utf-8")
    before = source_digest(tmp_path)
    table.write_text('{"rows": 2}', encoding="utf-8")
    assert source_digest(tmp_path) != before


def test_what_a_step_is_traced_from_lies_in_the_rooms_of_the_digest():
    """What execution imports of other rooms is in the digest, or in the program's name or arguments."""
    seen_otherwise = {
        "scheduling": "buckets are in the program's name; batches are host arguments",
        "grammar": "the host side of masks, which are arguments",
        "telemetry": "what the process takes of the system's memory",
        "folders": "where compiled programs are kept, which none of them depends on",
    }
    imported = set()
    for file in (ROOT / "runtime" / "execution").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("palladio.runtime."):
                imported.add((node.module or "").split(".")[2])
    covered = {room.removeprefix("runtime/") for room in SOURCE_ROOMS}
    assert imported - covered == set(seen_otherwise)
