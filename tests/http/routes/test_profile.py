"""/start_profile and /stop_profile: SGLang's fields, each applied or refused."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from palladio.http.app import create_app
from palladio.http.observability.profile_folder import NUM_KEPT, ProfileFolder
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.messages.profile_options import MAX_STEPS, ProfileOptions
from tests.fake_engine import FakeEngine


def test_start_and_stop(observe: Callable[..., httpx.Client], engine: FakeEngine, tmp_path: Path) -> None:
    http, folder = observe(profile_folder=str(tmp_path)), str(tmp_path / "mine")
    body = {"output_dir": "mine", "start_step": 2, "num_steps": 5, "host_tracer_level": 3, "python_tracer_level": 1}
    assert http.post("/start_profile", json=body).json() == {"output_dir": folder}
    assert engine.profile == ProfileOptions(folder, 2, 5, 3, 1, 1)
    again = http.post("/start_profile", json=body)
    assert (again.status_code, again.json()["error"]["message"]) == (400, "a profile is already running")
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


def test_a_bound_that_has_ended_it_is_told(http: httpx.Client, engine: FakeEngine) -> None:
    engine.profile, engine.profile_ended_by = ProfileOptions("/x"), "it reached 100 steps"
    assert http.post("/stop_profile").json() == {"output_dir": "/x", "ended_by": "it reached 100 steps"}


SECRET, ADMIN = {"authorization": "Bearer secret"}, {"authorization": "Bearer admin"}
PROXY = {"x-forwarded-for": "127.0.0.1"}


@pytest.mark.parametrize(
    ("flags", "headers", "status"),
    [
        ({}, {}, 200),
        ({}, {"x-forwarded-for": "8.8.8.8"}, 403),
        ({}, PROXY, 403),
        ({}, {"via": "1.1 proxy"}, 403),
        ({}, {"forwarded": "for=127.0.0.1"}, 403),
        ({"api_key": "secret"}, SECRET, 403),
        ({"api_key": "secret"}, {}, 401),
        ({"api_key": "secret", "admin_api_key": "admin"}, SECRET, 401),
        ({"api_key": "secret", "admin_api_key": "admin"}, ADMIN | PROXY, 200),
        ({"admin_api_key": "admin"}, {}, 401),
        ({"admin_api_key": "admin"}, ADMIN, 200),
    ],
)
def test_who_may(
    serve: Callable[..., str], engine: FakeEngine, monkeypatch, tmp_path: Path, flags: dict, headers: dict, status: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with httpx.Client(base_url=serve(**flags), headers=headers) as client:
        for route in ("/start_profile", "/stop_profile"):
            answer = client.post(route, json={})
            assert answer.status_code == status
            if status == 403:
                error = answer.json()["error"]
                assert (error["code"], "--admin-api-key" in error["message"]) == ("admin_key_required", True)
    assert engine.profile is None


@pytest.mark.parametrize("client", [("8.8.8.8", 1), ("::ffff:8.8.8.8", 1), ("unix", 0), None])
async def test_others_may_not_without_a_key(engine: FakeEngine, client: tuple[str, int] | None) -> None:
    transport = httpx.ASGITransport(create_app(engine, HttpConfig()), client=client)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        answer = await http.post("/start_profile", json={})
    assert (answer.status_code, engine.profile) == (403, None)


def test_a_file_of_keys_is_keys_too(serve: Callable[..., str], engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    answer = httpx.post(serve(api_key_file=str(tmp_path / "keys")) + "/start_profile", headers=SECRET)
    assert (answer.status_code, engine.profile) == (403, None)


def test_a_temporary_folder_keeps_the_last_ones_and_goes_with_the_server(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = ProfileFolder(None)
    names = [f"p{number}" for number in range(NUM_KEPT + 2)]
    for age, name in zip(reversed(range(len(names))), names, strict=True):
        place = Path(folder.place(name))
        (place / "plugins").mkdir(parents=True)
        os.utime(place, (1e9 - age, 1e9 - age))
        folder.began(str(place))
    (root,) = tmp_path.iterdir()
    assert sorted(entry.name for entry in root.iterdir()) == names[-NUM_KEPT:]
    folder.began(folder.place(names[2] + "/again"))  # the one that is under way stays, however old its folder is
    assert sorted(entry.name for entry in root.iterdir()) == names[-NUM_KEPT:]
    folder.close()
    assert list(tmp_path.iterdir()) == []
    assert Path(folder.place("x")).parent != root, "a place of its own again"


def test_nothing_is_removed_from_a_folder_of_the_user(tmp_path: Path) -> None:
    folder = ProfileFolder(str(tmp_path))
    for number in range(NUM_KEPT + 2):
        place = Path(folder.place(f"p{number}"))
        place.mkdir()
        folder.began(str(place))
    folder.close()
    assert len(list(tmp_path.iterdir())) == NUM_KEPT + 2


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
        ({"activities": ["CPU"]}, (1, 0, False)),
        ({"activities": ["GPU"]}, (0, 0, True)),
        ({"activities": ["cpu", "tpu"]}, (1, 0, True)),
        ({"with_stack": True}, (1, 1, True)),
        ({"record_shapes": False, "merge_profiles": False, "profile_stages": []}, (1, 0, True)),
    ],
)
def test_fields_that_apply(
    observe: Callable[..., httpx.Client], engine: FakeEngine, tmp_path: Path, body: dict, levels: tuple
) -> None:
    http = observe(profile_folder=str(tmp_path))
    assert http.post("/start_profile", json=body).status_code == 200
    options = engine.profile
    assert (options.host_tracer_level, options.python_tracer_level, options.traces_device) == levels


@pytest.mark.parametrize(
    "body",
    [
        *({"profile_by_stage": True}, {"record_shapes": True}, {"merge_profiles": True}, {"profile_id": "x"}),
        *({"profile_prefix": "x"}, {"profile_stages": ["decode"]}, {"activities": ["MEM"]}, {"num_steps": 0}),
        {"num_steps": MAX_STEPS + 1},
        *({"start_step": -1}, {"host_tracer_level": 4}, {"python_tracer_level": 2}, {"no_such": 1}),
    ],
)
def test_fields_that_do_not_are_named(http: httpx.Client, engine: FakeEngine, body: dict) -> None:
    answer = http.post("/start_profile", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(body))
    assert engine.profile is None
