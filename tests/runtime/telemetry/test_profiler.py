"""The profiler writes xplane files, on request or after so many steps."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages.profile_options import DEFAULT_STEPS, MAX_GROWTH, ProfileOptions, ProfileReport
from palladio.runtime.telemetry.activity import Activity
from palladio.runtime.telemetry.process_memory import resident_bytes
from palladio.runtime.telemetry.profiler import ProfileLimits, Profiler
from tests.runtime.tiny_engine import TinyEngine, generate, random_prompt

KEEPS_THE_LAST = jax.__version_info__ < (0, 12)  # JAX keeps a trace that it could not write


def traces(folder: Path) -> list[Path]:
    return list(folder.rglob("*.xplane.pb"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stop(core: EngineCore) -> ProfileReport:
    """Asks until it is written, as the front does."""
    deadline = time.monotonic() + 30
    while (report := core.stop_profile()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return report


@pytest.fixture
def new_profiler() -> Iterator[Callable[..., Profiler]]:
    """Makes Profilers, without an engine, that leave no trace under way."""
    made: list[Profiler] = []

    def make(memory: Callable[[], int] = resident_bytes, **limits: float) -> Profiler:
        made.append(Profiler(Activity(), ProfileLimits(**limits), memory))
        return made[-1]

    yield make
    for profiler in made:
        profiler.close()


def test_until_it_is_stopped(tiny: TinyEngine, tmp_path: Path) -> None:
    core = tiny.core()
    folder = tmp_path / "made" / "if need be"
    core.start_profile(ProfileOptions(str(folder)))
    with pytest.raises(InvalidRequestError, match=r"a profile is already running, in .*; stop it first"):
        core.start_profile(ProfileOptions(str(tmp_path)))
    generate(core, {"a": random_prompt(10)}, max_tokens=3)
    assert stop(core) == ProfileReport(str(folder))
    (trace,) = traces(folder)
    assert trace.stat().st_size > 1000
    with pytest.raises(InvalidRequestError, match="no profile is running: start one first"):
        core.stop_profile()


def test_so_many_steps_from_a_later_one_on(tiny: TinyEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    core = tiny.core()
    core.start_profile(ProfileOptions(str(tmp_path), start_step=3, num_steps=4, host_tracer_level=1))
    generate(core, {"a": random_prompt(10)}, max_tokens=3)
    assert traces(tmp_path) == [], "it has begun, and not ended"
    generate(core, {"b": random_prompt(10)}, max_tokens=30)
    wait_until(lambda: f"Wrote a profile of 4 steps to {tmp_path}" in caplog.text)
    assert len(traces(tmp_path)) == 1
    with pytest.raises(InvalidRequestError, match=r"no profile is running: .*; the last one is over, and in /"):
        stop(core)


def test_stopped_before_it_began(tiny: TinyEngine, tmp_path: Path) -> None:
    core = tiny.core()
    core.start_profile(ProfileOptions(str(tmp_path), start_step=100))
    assert core.stop_profile() == ProfileReport(str(tmp_path))
    assert traces(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [("file/x", "Not a directory"), ("nul\0", "embedded null"), ("/proc", "No such file or directory")],
)
def test_a_folder_that_cannot_be_written_is_named(tiny: TinyEngine, tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    core = tiny.core()
    with pytest.raises(InvalidRequestError, match=rf"output_dir .* cannot be written: .*{reason}") as caught:
        core.start_profile(ProfileOptions(str(tmp_path / name)))
    assert caught.value.param == "output_dir"
    with pytest.raises(InvalidRequestError, match="no profile is running"):
        core.stop_profile()


def test_a_trace_that_somebody_else_began_is_told(tiny: TinyEngine, tmp_path: Path) -> None:
    core = tiny.core()
    refused = pytest.raises(InvalidRequestError, match="could not be started: Profile has already been started")
    with jax.profiler.trace(tmp_path / "else"), refused:
        core.start_profile(ProfileOptions(str(tmp_path / "ours")))
    core.start_profile(ProfileOptions(str(tmp_path / "ours")))
    stop(core)
    assert traces(tmp_path / "ours")


def spoil(folder: Path) -> None:
    """Nothing can be written there any more."""
    shutil.rmtree(folder)
    folder.write_text("")


def test_what_could_not_be_written_does_not_stand_in_the_way(tiny: TinyEngine, tmp_path: Path) -> None:
    core, folder, other = tiny.core(), tmp_path / "a", ProfileOptions(str(tmp_path / "b"))
    core.start_profile(ProfileOptions(str(folder)))
    spoil(folder)
    with pytest.raises(InvalidRequestError, match=r"cannot write the profile to .*/a: .* is not a directory"):
        stop(core)
    if KEEPS_THE_LAST:
        with pytest.raises(InvalidRequestError, match=r"the last profile could not be written yet to .*/a, so"):
            core.start_profile(other)
    folder.unlink()
    core.start_profile(other)
    assert bool(traces(folder)) == KEEPS_THE_LAST, "the last one is there after all"
    stop(core)
    assert traces(tmp_path / "b")


def test_a_failure_between_steps_is_logged(tiny: TinyEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    core, folder = tiny.core(num_continuous_decode_steps=1), tmp_path / "a"
    core.start_profile(ProfileOptions(str(folder), num_steps=3))
    spoil(folder)
    assert len(generate(core, {"a": random_prompt(10)}, max_tokens=8)["a"]) == 8
    wait_until(lambda: "failed: FAILED_PRECONDITION" in caplog.text)
    assert "The profile in" in caplog.text
    folder.unlink()
    core.start_profile(ProfileOptions(str(tmp_path / "b"), start_step=2))
    caplog.clear()
    with jax.profiler.trace(tmp_path / "else"):
        assert len(generate(core, {"b": random_prompt(10)}, max_tokens=8)["b"]) == 8
    assert "/b failed: Profile has already been started" in caplog.text
    with pytest.raises(InvalidRequestError, match="no profile is running"):
        core.stop_profile()


def test_one_that_nobody_stops_ends_after_so_many_steps(
    tiny: TinyEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = tiny.core(num_continuous_decode_steps=1)
    core.start_profile(ProfileOptions(str(tmp_path)))
    for salt in range(2):  # 60 steps each
        assert traces(tmp_path) == []
        generate(core, {f"r{salt}": random_prompt(10, salt)}, max_tokens=60)
    wait_until(lambda: bool(traces(tmp_path)))
    assert f"was stopped: it reached {DEFAULT_STEPS} steps, the default of num_steps" in caplog.text
    ended_by = f"it reached {DEFAULT_STEPS} steps, the default of num_steps"
    assert stop(core) == ProfileReport(str(tmp_path), ended_by), "who did not ask for that is told"
    with pytest.raises(InvalidRequestError, match="no profile is running"):
        core.stop_profile()


@pytest.mark.parametrize("options", [{}, {"num_steps": 1000}])
def test_one_that_takes_too_long_ends_by_itself(
    new_profiler: Callable[..., Profiler], tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict
) -> None:
    profiler = new_profiler(seconds=0.2)
    profiler.start(ProfileOptions(str(tmp_path / "a"), **options))
    wait_until(lambda: bool(traces(tmp_path)))
    why = "it reached the time limit of 0.2 s"
    assert f"was stopped: {why}" in caplog.text
    wait_until(lambda: profiler.stop() == ProfileReport(str(tmp_path / "a"), why))
    profiler.start(ProfileOptions(str(tmp_path / "next")))
    assert profiler.stop() is None
    wait_until(lambda: profiler.stop() == ProfileReport(str(tmp_path / "next")))
    assert caplog.text.count("was stopped: ") == 1


def test_one_that_fills_the_memory_ends_by_itself(
    new_profiler: Callable[..., Profiler], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = iter([1000, 1000 + MAX_GROWTH - 1])
    profiler = new_profiler(memory=lambda: next(sizes, 1000 + MAX_GROWTH))
    profiler.start(ProfileOptions(str(tmp_path), num_steps=1000))
    wait_until(lambda: bool(traces(tmp_path)))
    why = "the engine process grew by 128 MiB, more than the limit of 128 MiB"
    assert f"was stopped: {why}" in caplog.text
    wait_until(lambda: profiler.stop() == ProfileReport(str(tmp_path), why))


def test_what_the_process_grows_by_is_seen(new_profiler: Callable[..., Profiler], tmp_path: Path) -> None:
    profiler, before = new_profiler(growth=50 * 2**20), resident_bytes()
    profiler.start(ProfileOptions(str(tmp_path)))
    time.sleep(0.2)
    assert traces(tmp_path) == []
    held: list[bytes] = []

    def is_seen() -> bool:
        if resident_bytes() < before + 160 * 2**20:  # what earlier tests left may be given back meanwhile
            held.append(b"x" * (10 * 2**20))
        return bool(traces(tmp_path))

    wait_until(is_seen)


def test_what_a_trace_took_is_given_back_before_the_next_can_begin(
    new_profiler: Callable[..., Profiler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[str] = []
    profiler = new_profiler()
    monkeypatch.setattr(
        "palladio.runtime.telemetry.profiler.give_back", lambda: given_back.append(profiler.profile.phase)
    )
    for _ in range(2):
        profiler.start(ProfileOptions(str(tmp_path)))
        wait_until(lambda: profiler.stop() is not None)
    assert given_back == ["writing"] * 2


def test_steps_run_while_it_is_written(
    tiny: TinyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop_trace, goes_on = jax.profiler.stop_trace, threading.Event()

    def slowly() -> None:
        goes_on.wait(30)
        stop_trace()

    monkeypatch.setattr("palladio.runtime.telemetry.profiler.jax.profiler.stop_trace", slowly)
    core = tiny.core(num_continuous_decode_steps=1, profile_limits=ProfileLimits(write_seconds=0.05))
    core.start_profile(ProfileOptions(str(tmp_path), num_steps=2))
    assert len(generate(core, {"a": random_prompt(10)}, max_tokens=8)["a"]) == 8
    assert core.activity.now.kind != "profile"
    wait_until(lambda: "after 0.05 s; no other profile can start until it is written" in caplog.text)
    with pytest.raises(InvalidRequestError, match=r"the last profile is being written to /.*; try again in a few"):
        core.start_profile(ProfileOptions(str(tmp_path / "b")))
    assert core.stop_profile() is None
    goes_on.set()
    assert stop(core) == ProfileReport(str(tmp_path))
    assert traces(tmp_path)


def test_the_engines_end_ends_it(tiny: TinyEngine, tmp_path: Path) -> None:
    core = tiny.core()
    core.start_profile(ProfileOptions(str(tmp_path)))
    generate(core, {"a": random_prompt(10)}, max_tokens=3)
    core._profiler.close()
    assert traces(tmp_path)
    with jax.profiler.trace(tmp_path / "else"):
        pass  # JAX holds none any more


def test_the_watchdog_is_told_of_what_is_written_between_steps(
    new_profiler: Callable[..., Profiler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler = new_profiler()
    profiler._activity.begin_step()
    seen = []
    start = jax.profiler.start_trace

    def watched(*args: object, **options: object) -> None:
        seen.append(profiler._activity.now.kind)
        start(*args, **options)

    monkeypatch.setattr("palladio.runtime.telemetry.profiler.jax.profiler.start_trace", watched)
    profiler.start(ProfileOptions(str(tmp_path)))
    assert seen == ["profile"]
    assert profiler._activity.now.kind == "step"


@pytest.mark.parametrize(("platform", "given"), [("tpu", {"tpu_trace_mode": "TRACE_ONLY_HOST"}), ("gpu", {})])
def test_the_host_alone(
    tiny: TinyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, given: dict[str, str]
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder, profiler_options: begun.append(profiler_options))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: None)
    core = tiny.core()
    core.start_profile(ProfileOptions(str(tmp_path), traces_device=False))
    generate(core, {"a": random_prompt(10)}, max_tokens=3)
    stop(core)
    (levels,) = begun
    assert levels.advanced_configuration == given
