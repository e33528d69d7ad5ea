"""Routes that pause generation, exchange the weights and release memory: who may, what from, and SGLang's fields."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.front.offline.tensor_file import to_safetensors
from palladio.runtime.interface.errors import ConfigError
from tests.fake_engine import FakeEngine

ROUTES = {
    "/pause_generation": {},
    "/continue_generation": {},
    "/release_memory_occupation": {},
    "/resume_memory_occupation": {},
    "/update_weights_from_disk": {"model_path": "/x"},
    "/update_weights_from_tensor": {"safetensors": "eA=="},
}
SECRET, ADMIN = {"authorization": "Bearer secret"}, {"authorization": "Bearer admin"}
PROXY = {"x-forwarded-for": "127.0.0.1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "weights" / "step-1").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "weights" / "link").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "weights"


@pytest.fixture
def http(serve: Callable[..., str], folder: Path) -> Iterator[httpx.Client]:
    url = serve(weight_update_folders=(str(folder), "/nonexistent"))
    with httpx.Client(base_url=url, timeout=20, verify=False) as client:
        yield client


def refusal(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["param"]


@pytest.mark.parametrize(
    ("flags", "headers", "status"),
    [
        ({}, PROXY, 403),
        ({"api_key": "secret"}, SECRET, 403),
        ({"api_key": "secret"}, {}, 401),
        ({"api_key": "secret", "admin_api_key": "admin"}, SECRET, 401),
        ({"admin_api_key": "admin"}, {}, 401),
    ],
)
def test_who_may_not(serve, engine: FakeEngine, folder: Path, flags: dict, headers: dict, status: int) -> None:
    url = serve(**flags, weight_update_folders=("/",))
    with httpx.Client(base_url=url, headers=headers) as client:
        for route, body in ROUTES.items():
            answer = client.post(route, json=body)
            assert answer.status_code == status, route
            error = answer.json()["error"]
            assert error["code"] == ("admin_key_required" if status == 403 else "invalid_api_key")
    assert engine.steered == []


def test_who_may(serve, engine: FakeEngine, folder: Path) -> None:
    url = serve(api_key="secret", admin_api_key="admin", weight_update_folders=(str(folder),))
    with httpx.Client(base_url=url, headers=ADMIN | PROXY) as client:
        for route, body in ROUTES.items():
            body = {"model_path": str(folder)} if "model_path" in body else body
            assert client.post(route, json=body).status_code == 200, route
    assert len(engine.steered) == 6


def test_updates_are_off_unless_a_folder_is_named(serve, engine: FakeEngine) -> None:
    with httpx.Client(base_url=serve()) as client:
        for route in ("/update_weights_from_disk", "/update_weights_from_tensor"):
            answer = client.post(route, json=ROUTES[route])
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "weight_updates_off")
            assert "--weight-update-folders" in answer.json()["error"]["message"]
    assert engine.steered == []
    with pytest.raises(ConfigError, match="--weight-update-folders must not be empty"):
        HttpConfig(weight_update_folders=("",))


def test_an_update_from_disk(http: httpx.Client, engine: FakeEngine, folder: Path) -> None:
    assert http.get("/model_info").json()["weight_version"] == "default"
    path = str(folder / "step-1")
    answer = http.post("/update_weights_from_disk", json={"model_path": path, "weight_version": "step-1"})
    assert answer.json() == {
        "success": True,
        "message": "Succeeded to update model weights.",
        "num_paused_requests": 0,
        "weight_version": "step-1",
    }
    assert engine.steered == [("UpdateWeights", path)]
    info = http.get("/model_info").json()
    assert (info["weight_version"], info["model_path"]) == ("step-1", path)
    assert info["tokenizer_path"] == engine.config.source.model_path
    assert http.get("/server_info").json()["weight_version"] == "step-1"
    answer = http.post("/generate", json={"text": "a", "sampling_params": {"max_new_tokens": 1}})
    assert answer.json()["meta_info"]["weight_version"] == "step-1"
    chat = {"messages": [{"role": "user", "content": "a"}]}
    for route, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "a"})):
        assert http.post(route, json=body).json()["metadata"] == {"weight_version": "step-1"}
        assert "weight_version" not in http.post(route, json=body | {"stream": True}).text


@pytest.mark.parametrize(
    "path", ["{0}/../elsewhere", "{0}/link", "{0}-2", "/", "/etc", "relative", "{0}/none", "{0}/\0", "qwen/qwen3"]
)
def test_other_places_are_refused(http: httpx.Client, engine: FakeEngine, folder: Path, path: str) -> None:
    answer = http.post("/update_weights_from_disk", json={"model_path": path.format(folder)})
    assert refusal(answer) == (400, "model_path")
    assert engine.steered == []


@pytest.mark.parametrize(
    "field", [{"is_async": True}, {"flush_cache": False}, {"token_step": 2}, {"load_format": "pt"}]
)
def test_what_cannot_be_done_is_refused_by_name(http, engine: FakeEngine, folder: Path, field: dict) -> None:
    for body in ({"model_path": str(folder)}, {"safetensors": "eA=="}):
        route = "/update_weights_from_" + ("disk" if "model_path" in body else "tensor")
        assert refusal(http.post(route, json=body | field)) == (400, next(iter(field)))
    assert engine.steered == []


def test_a_refusal_of_the_engine_is_a_400(http: httpx.Client, engine: FakeEngine, folder: Path) -> None:
    engine.steer_error = "shape mismatch: x"
    answer = http.post("/update_weights_from_disk", json={"model_path": str(folder)})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "shape mismatch: x")
    assert http.get("/model_info").json()["weight_version"] == "default"


def test_tensors_are_safetensors_and_never_pickles(http: httpx.Client, engine: FakeEngine) -> None:
    content = base64.b64encode(to_safetensors([("a", [0.5])])).decode()
    answer = http.post("/update_weights_from_tensor", json={"safetensors": content, "disable_draft_model": True})
    assert answer.json()["weight_version"] == "update-1"
    ((kind, path),) = engine.steered
    assert kind == "UpdateWeights"
    assert base64.b64encode((Path(path) / "model.safetensors").read_bytes()).decode() == content
    pickled = http.post("/update_weights_from_tensor", json={"serialized_named_tensors": ["gASVAAAA"]})
    assert refusal(pickled) == (400, "serialized_named_tensors")
    assert "safetensors" in pickled.json()["error"]["message"]
    assert refusal(http.post("/update_weights_from_tensor", json={})) == (400, "safetensors")
    assert refusal(http.post("/update_weights_from_tensor", json={"safetensors": "!"})) == (400, "safetensors")
    assert len(engine.steered) == 1
    engine.model.close()


def test_pause_and_continue(http: httpx.Client, engine: FakeEngine) -> None:
    paused = {"message": "Generation paused successfully.", "status": "ok"}
    assert http.post("/pause_generation").json() == paused
    assert http.post("/pause_generation", json={"mode": "in_place"}).json() == paused
    assert refusal(http.post("/pause_generation", json={"mode": "stop"})) == (400, "mode")
    continued = http.post("/continue_generation", json={"torch_empty_cache": True})
    assert continued.json() == {"message": "Generation continued successfully.", "status": "ok"}
    assert engine.steered == [("SetPause", "abort"), ("SetPause", "in_place"), ("SetPause", None)]


def test_release_and_resume(http: httpx.Client, engine: FakeEngine) -> None:
    assert http.post("/release_memory_occupation", json={"tags": ["kv_cache"]}).json() == {"released": ["kv_cache"]}
    assert http.post("/release_memory_occupation").json() == {"released": ["kv_cache", "weights"]}
    resumed = http.post("/resume_memory_occupation", json={"tags": ["weights"]})
    assert resumed.json() == {"released": ["kv_cache"]}
    assert refusal(http.post("/resume_memory_occupation", json={"tags": ["cuda_graph"]})) == (400, "tags")
    assert engine.steered == [
        ("SetReleased", ["kv_cache"]),
        ("SetReleased", ["kv_cache", "weights"]),
        ("SetReleased", ["kv_cache"]),
    ]
    engine.steer_error = "requests run"
    assert http.post("/release_memory_occupation", json={"tags": ["weights"]}).status_code == 400
    assert engine.model.released == {"kv_cache"}
