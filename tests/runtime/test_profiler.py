"""The profiler writes xplane files, on request or after so many steps."""

from pathlib import Path

import pytest

from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.profile_options import ProfileOptions
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


def test_a_folder_that_cannot_be_made_is_named(tiny: TinyEngine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequestError, match=r"output_dir .*file/x cannot be made: Not a directory") as caught:
        tiny.core().start_profile(ProfileOptions(str(tmp_path / "file" / "x")))
    assert caught.value.param == "output_dir"
