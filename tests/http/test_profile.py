"""/start_profile and /stop_profile: SGLang's fields, each applied or refused."""

import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from palladio.runtime.profile_options import ProfileOptions
from tests.fake_engine import FakeEngine


def test_start_and_stop(observe: Callable[..., httpx.Client], engine: FakeEngine, tmp_path: Path) -> None:
    http, folder = observe(profile_folder=str(tmp_path)), str(tmp_path / "mine")
    body = {"output_dir": "mine", "start_step": 2, "num_steps": 5, "host_tracer_level": 3, "python_tracer_level": 1}
    assert http.post("/start_profile", json=body).json() == {"output_dir": folder}
    assert engine.profile == ProfileOptions(folder, 2, 5, 3, 1, 1)
    again = http.post("/start_profile", json=body)
    assert (again.status_code, again.json()["error"]["message"]) == (400, "a profile is under way already")
    assert http.post("/stop_profile").json() == {"output_dir": folder}
    assert http.post("/stop_profile").status_code == 400


def test_without_a_body(http: httpx.Client, engine: FakeEngine) -> None:
    folder = Path(http.post("/start_profile").json()["output_dir"])
    assert engine.profile == ProfileOptions(str(folder))
    assert folder.parent.parent == Path(tempfile.gettempdir()).resolve()
    assert folder.parent.name.startswith("palladio-profiles-")
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    http.post("/stop_profile")
    assert Path(http.post("/start_profile").json()["output_dir"]).parent == folder.parent
    folder.parent.rmdir()


@pytest.mark.parametrize("route", ["/start_profile", "/stop_profile"])
def test_reading_a_page_starts_nothing(http: httpx.Client, engine: FakeEngine, route: str) -> None:
    assert http.get(route).status_code == 405
    assert engine.profile is None


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/x", "/proc", "nul\0", "out/x", "../profiles-of-others", "loop/x"]
)
def test_only_its_own_folder_is_written(
    observe: Callable[..., httpx.Client], engine: FakeEngine, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "profiles"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    answer = observe(profile_folder=str(root)).post("/start_profile", json={"output_dir": name})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "output_dir")
    assert "--profile-folder" in error["message"] or name in ("nul\0", "loop/x")
    assert engine.profile is None


@pytest.mark.parametrize("name", ["a/b", "a/../c", "."])
def test_places_in_it_may_be_named_in_full(
    observe: Callable[..., httpx.Client], engine: FakeEngine, tmp_path: Path, name: str
) -> None:
    client = observe(profile_folder=str(tmp_path))
    for output_dir in (name, str(tmp_path / name)):
        answer = client.post("/start_profile", json={"output_dir": output_dir})
        assert answer.json() == {"output_dir": str((tmp_path / name).resolve())}
        engine.profile = None


@pytest.mark.parametrize(
    ("body", "levels"),
    [
        ({"activities": ["CPU"]}, (2, 0, 0)),
        ({"activities": ["GPU"]}, (0, 0, 1)),
        ({"activities": ["cpu", "tpu"]}, (2, 0, 1)),
        ({"with_stack": True}, (2, 1, 1)),
        ({"record_shapes": False, "merge_profiles": False, "profile_stages": []}, (2, 0, 1)),
    ],
)
def test_fields_that_apply(
    observe: Callable[..., httpx.Client], engine: FakeEngine, tmp_path: Path, body: dict, levels: tuple
) -> None:
    http = observe(profile_folder=str(tmp_path))
    assert http.post("/start_profile", json=body).status_code == 200
    options = engine.profile
    assert (options.host_tracer_level, options.python_tracer_level, options.device_tracer_level) == levels


@pytest.mark.parametrize(
    "body",
    [
        *({"profile_by_stage": True}, {"record_shapes": True}, {"merge_profiles": True}, {"profile_id": "x"}),
        *({"profile_prefix": "x"}, {"profile_stages": ["decode"]}, {"activities": ["MEM"]}, {"num_steps": 0}),
        *({"start_step": -1}, {"host_tracer_level": 4}, {"python_tracer_level": 2}, {"no_such": 1}),
    ],
)
def test_fields_that_do_not_are_named(http: httpx.Client, engine: FakeEngine, body: dict) -> None:
    answer = http.post("/start_profile", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(body))
    assert engine.profile is None
