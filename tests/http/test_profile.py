"""/start_profile and /stop_profile: SGLang's fields, each applied or refused."""

import httpx
import pytest

from palladio.runtime.profile_options import ProfileOptions
from tests.fake_engine import FakeEngine


def test_start_and_stop(http: httpx.Client, engine: FakeEngine) -> None:
    body = {"output_dir": "/tmp/x", "start_step": 2, "num_steps": 5, "host_tracer_level": 3, "python_tracer_level": 1}
    assert http.post("/start_profile", json=body).json() == {"output_dir": "/tmp/x"}
    assert engine.profile == ProfileOptions("/tmp/x", 2, 5, 3, 1, 1)
    again = http.post("/start_profile", json=body)
    assert (again.status_code, again.json()["error"]["message"]) == (400, "a profile is under way already")
    assert http.post("/stop_profile").json() == {"output_dir": "/tmp/x"}
    assert http.post("/stop_profile").status_code == 400


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_a_body(http: httpx.Client, engine: FakeEngine, method: str) -> None:
    folder = http.request(method, "/start_profile").json()["output_dir"]
    assert "palladio-profile-" in folder
    assert engine.profile == ProfileOptions(folder)


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
def test_fields_that_apply(http: httpx.Client, engine: FakeEngine, body: dict, levels: tuple) -> None:
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
