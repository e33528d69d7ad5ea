"""The profiler writes xplane files, on request or after so many steps."""

import shutil
import time
from pathlib import Path

import jax
import pytest

from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.profile_options import ProfileOptions
from palladio.runtime.profiler import Profiler
from palladio.runtime.watchdog import Activity
from tests.runtime.tiny_engine import TinyEngine, generate, random_prompt


def traces(folder: Path) -> list[Path]:
    return list(folder.rglob("*.xplane.pb"))


def test_until_it_is_stopped(tiny: TinyEngine, tmp_path: Path) -> None:
    core = tiny.core()
    folder = tmp_path / "made" / "if need be"
    core.start_profile(ProfileOptions(str(folder)))
    with pytest.raises(InvalidRequestError, match=r"a profile is under way already, in .*; stop it first"):
        core.start_profile(ProfileOptions(str(tmp_path)))
    generate(core, {"a": random_prompt(10)}, max_tokens=3)
    assert core.stop_profile() == str(folder)
    (trace,) = traces(folder)
    assert trace.stat().st_size > 1000
    with pytest.raises(InvalidRequestError, match="no profile is under way: start one first"):
        core.stop_profile()


def test_so_many_steps_from_a_later_one_on(tiny: TinyEngine, tmp_path: Path) -> None:
    core = tiny.core()
    core.start_profile(ProfileOptions(str(tmp_path), start_step=3, num_steps=4, host_tracer_level=1))
    generate(core, {"a": random_prompt(10)}, max_tokens=3)
    assert traces(tmp_path) == [], "it has begun, and not ended"
    generate(core, {"b": random_prompt(10)}, max_tokens=10)
    assert len(traces(tmp_path)) == 1
    with pytest.raises(InvalidRequestError, match="no profile"):
        core.stop_profile()


def test_stopped_before_it_began(tiny: TinyEngine, tmp_path: Path) -> None:
    core = tiny.core()
    core.start_profile(ProfileOptions(str(tmp_path), start_step=100))
    core.stop_profile()
    assert traces(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [("file/x", "Not a directory"), ("nul\0", "embedded null byte"), ("/proc", "No such file or directory")],
)
def test_a_folder_that_cannot_be_written_is_named(tiny: TinyEngine, tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("")
    core = tiny.core()
    with pytest.raises(InvalidRequestError, match=rf"output_dir .* cannot be written: .*{reason}") as caught:
        core.start_profile(ProfileOptions(str(tmp_path / name)))
    assert caught.value.param == "output_dir"
    with pytest.raises(InvalidRequestError, match="no profile is under way"):
        core.stop_profile()


def test_a_trace_that_somebody_else_began_is_told(tiny: TinyEngine, tmp_path: Path) -> None:
    core = tiny.core()
    refused = pytest.raises(InvalidRequestError, match="could not be started: Profile has already been started")
    with jax.profiler.trace(tmp_path / "else"), refused:
        core.start_profile(ProfileOptions(str(tmp_path / "ours")))
    core.start_profile(ProfileOptions(str(tmp_path / "ours")))
    core.stop_profile()
    assert traces(tmp_path / "ours")


def spoil(folder: Path) -> None:
    """Nothing can be written there any more."""
    shutil.rmtree(folder)
    folder.write_text("")


def test_what_could_not_be_written_does_not_stand_in_the_way(tiny: TinyEngine, tmp_path: Path) -> None:
    core, folder, other = tiny.core(), tmp_path / "a", ProfileOptions(str(tmp_path / "b"))
    core.start_profile(ProfileOptions(str(folder)))
    spoil(folder)
    with pytest.raises(InvalidRequestError, match=r"the profile could not be written to .*/a: .* is not a directory"):
        core.stop_profile()
    with pytest.raises(InvalidRequestError, match=r"the last profile is still to be written to .*/a, and no other"):
        core.start_profile(other)
    folder.unlink()
    core.start_profile(other)
    assert traces(folder), "the last one is there after all"
    core.stop_profile()
    assert traces(tmp_path / "b")


def test_a_failure_between_steps_is_logged(tiny: TinyEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    core, folder = tiny.core(), tmp_path / "a"
    core.start_profile(ProfileOptions(str(folder), num_steps=3))
    spoil(folder)
    assert len(generate(core, {"a": random_prompt(10)}, max_tokens=8)["a"]) == 8
    assert "The profile in" in caplog.text
    assert "failed: FAILED_PRECONDITION" in caplog.text
    folder.unlink()
    core.start_profile(ProfileOptions(str(tmp_path / "b"), start_step=2))
    caplog.clear()
    with jax.profiler.trace(tmp_path / "else"):
        assert len(generate(core, {"b": random_prompt(10)}, max_tokens=8)["b"]) == 8
    assert "/b failed: Profile has already been started" in caplog.text
    with pytest.raises(InvalidRequestError, match="no profile is under way"):
        core.stop_profile()


def test_one_without_an_end_ends_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    activity = Activity()
    profiler = Profiler(activity, max_seconds=0.2)
    caplog.set_level("INFO")
    profiler.start(ProfileOptions(str(tmp_path)))
    deadline = time.monotonic() + 30
    while "it ends now" not in caplog.text or not traces(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "The profile has run for 0.2 s, without num_steps and without /stop_profile" in caplog.text
    with pytest.raises(InvalidRequestError, match="no profile is under way"):
        profiler.stop()
    profiler.start(ProfileOptions(str(tmp_path / "next")))
    assert profiler.stop() == str(tmp_path / "next")
    assert caplog.text.count("it ends now") == 1


def test_the_watchdog_is_told_of_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activity = Activity()
    activity.begin_step()
    seen = []
    stop = jax.profiler.stop_trace

    def watched() -> None:
        seen.append(activity.now.kind)
        stop()

    monkeypatch.setattr("palladio.runtime.profiler.jax.profiler.stop_trace", watched)
    profiler = Profiler(activity)
    profiler.start(ProfileOptions(str(tmp_path)))
    profiler.stop()
    profiler.start(ProfileOptions(str(tmp_path), num_steps=1))
    profiler.step()
    assert seen == ["profile", "profile"]
    assert activity.now.kind == "step"
