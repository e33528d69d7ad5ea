"""A front pauses generation, exchanges the weights and releases memory; what it was told stands in its state."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from palladio.model.loading.readers.safetensors_file import SafetensorsFile
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.control.model_switch import ModelSwitch
from palladio.runtime.front.offline.offline_engine import Engine
from palladio.runtime.front.offline.tensor_file import to_safetensors
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import EngineNotReadyError, InvalidRequestError
from palladio.runtime.interface.messages.calls import ControlReply
from palladio.runtime.interface.messages.model_messages import UpdateOptions
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.transport import ThreadTransport
from tests.runtime.fake_core import FACTORY, started
from tests.tiny_tokenizer import build_tiny_tokenizer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes((50, 51, 52, 2)))  # what the fake says with them
    return folder


def make(model_dir: Path) -> AsyncEngine:
    flags = {"json_model_override_args": json.dumps({"step_delay": 0.002}), "weight_version": "v0"}
    return AsyncEngine(EngineConfig.from_flags({"model_path": str(model_dir), **flags}), ThreadTransport(FACTORY))


@contextlib.asynccontextmanager
async def running(model_dir: Path) -> AsyncIterator[AsyncEngine]:
    async with started(make(model_dir)) as engine:
        yield engine


async def say(engine: AsyncEngine, name: str = "r", count: int = 3) -> tuple[list[int], str]:
    request = GenerationRequest(name, [5], SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True))
    outputs = [output async for output in engine.generate(request)]
    return [i for output in outputs for i in output.token_ids], outputs[-1].finish.type


async def test_an_update_has_a_version(model_dir, weights):
    async with running(model_dir) as engine:
        assert (engine.model.version, engine.model.path) == ("v0", None)
        assert await engine.model.update(weights, UpdateOptions()) == 0
        assert (engine.model.version, engine.model.path) == ("update-1", str(weights))
        await engine.model.update(weights, UpdateOptions(weight_version="step 7"))
        assert engine.model.version == "step 7"
        assert (await say(engine))[0] == [50, 51, 52]
        with pytest.raises(InvalidRequestError, match="is missing"):
            await engine.model.update(weights.parent, UpdateOptions(weight_version="bad", keep_pause=True))
        assert (engine.model.version, engine.model.path, engine.model.paused) == ("step 7", str(weights), None)
        assert (await say(engine))[0] == [50, 51, 52]


async def test_weights_that_were_sent_are_kept_for_a_restart_and_removed_at_the_end(
    model_dir, weights, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def kept() -> list[Path]:
        return list(tmp_path.glob("palladio-weights-*/model.safetensors"))

    async with running(model_dir) as engine:
        await engine.model.update_sent(bytes((60, 61)), UpdateOptions())
        (file,) = kept()
        assert os.stat(file.parent).st_mode & 0o777 == 0o700
        await engine.model.update_sent(bytes((70, 71)), UpdateOptions())
        assert [file.read_bytes() for file in kept()] == [bytes((70, 71))]
        assert (await say(engine, count=2))[0] == [70, 71]
        assert engine.model.path is None
    assert not kept()
    async with running(model_dir) as engine:
        await engine.model.update_sent(bytes((70, 71)), UpdateOptions())
        await engine.model.update(weights, UpdateOptions())
        assert not kept()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("the weights in {} are only a part", "the weights that were sent are only a part"),
        ("unexpected keys in checkpoint {}: a", "unexpected keys in the weights that were sent: a"),
        ("{}/model.safetensors is cut off", "the weights that were sent is cut off"),
    ],
)
async def test_an_error_of_weights_that_were_sent_names_no_temporary_directory(tmp_path, monkeypatch, told, expected):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def ask(make: Callable[[int], Any], seconds: float) -> ControlReply:
        return ControlReply(1, ok=False, message=told.format(make(1).path))

    async def abort(request_id: str | None) -> int:
        return 0

    with pytest.raises(InvalidRequestError) as caught:
        await ModelSwitch(ask, abort, "v0").update_sent(b"", UpdateOptions())
    assert str(caught.value) == expected
    assert list(tmp_path.iterdir()) == []


async def test_weights_cannot_be_sent_to_several_hosts():
    async def ask(message: object, seconds: float) -> None:
        raise AssertionError("nothing is to be asked")

    async def abort(request_id: str | None) -> int:
        return 0

    with pytest.raises(InvalidRequestError, match="/update_weights_from_disk"):
        await ModelSwitch(ask, abort, "v0", num_hosts=2).update_sent(b"", UpdateOptions())


async def test_pause_abort_ends_requests_and_later_ones_wait(model_dir):
    async with running(model_dir) as engine:
        asking = asyncio.create_task(say(engine, "before", 200))
        await asyncio.sleep(0.03)
        await engine.model.pause()
        assert (await asking)[1] == "abort"
        later = asyncio.create_task(say(engine, "later"))
        await asyncio.sleep(0.05)
        assert not later.done()
        await engine.model.go_on()
        assert (await later)[1] == "length"
        await engine.model.go_on()
        with pytest.raises(InvalidRequestError, match="mode must be one of abort, retract, in_place, got 'stop'"):
            await engine.model.pause("stop")


async def test_an_update_can_abort_requests_and_keep_the_pause(model_dir, weights):
    async with running(model_dir) as engine:
        asking = asyncio.create_task(say(engine, "before", 200))
        await asyncio.sleep(0.03)
        await engine.model.update(weights, UpdateOptions(abort_all_requests=True, keep_pause=True))
        assert (await asking)[1] == "abort"
        assert engine.model.paused == "retract"
        later = asyncio.create_task(say(engine, "later"))
        await asyncio.sleep(0.05)
        assert not later.done()
        await engine.model.go_on()
        assert (await later)[0] == [50, 51, 52]


async def test_requests_are_refused_while_memory_is_released(model_dir, weights):
    async with running(model_dir) as engine:
        await engine.model.release(["kv_cache"])
        await engine.model.release()
        assert (engine.state, engine.model.released) == ("released", {"weights", "kv_cache"})
        with pytest.raises(EngineNotReadyError, match=r"\(kv_cache, weights\); POST /resume_memory_occupation"):
            await say(engine)
        await engine.model.resume(["kv_cache"])
        assert engine.state == "released"
        await engine.model.update(weights, UpdateOptions())  # takes the old weights' place
        assert (engine.state, engine.model.released) == ("ready", set())
        assert (await say(engine))[0] == [50, 51, 52]
        with pytest.raises(InvalidRequestError, match="unknown tag 'disk'; tags are weights, kv_cache"):
            await engine.model.release(["disk"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"is_async": True}, "is_async"),
        ({"token_step": 3}, "token_step"),
        ({"flush_cache": False}, "flush_cache"),
        ({"load_format": "pt"}, "load_format"),
        ({"load_format": "dummy"}, "load_format"),
        ({"manifest": {}}, "manifest"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_fields_that_cannot_be_followed_are_refused_by_name(fields, param):
    with pytest.raises(InvalidRequestError, match=param) as error:
        UpdateOptions.of(fields)
    assert error.value.param == param


def test_neutral_fields_pass():
    neutral = {"is_async": False, "token_step": 0, "flush_cache": True, "load_format": "auto", "manifest": None}
    ignored = {"torch_empty_cache": True, "recapture_cuda_graph": True, "disable_draft_model": True}
    given = {"weight_version": "a", "abort_all_requests": True, "keep_pause": True}
    assert UpdateOptions.of({**neutral, **ignored, **given}) == UpdateOptions("a", True, True)
    assert UpdateOptions.of({}) == UpdateOptions()


def test_tensors_as_a_file(tmp_path):
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(3, ml_dtypes.bfloat16),
        "c": np.zeros((0, 4), np.float16),
    }
    (tmp_path / "x").write_bytes(to_safetensors((name, tensor) for name, tensor in tensors.items()))
    file = SafetensorsFile(tmp_path / "x")
    for name, tensor in tensors.items():
        found = file.read(file.tensors[name])
        assert (found.dtype, found.tolist()) == (tensor.dtype, tensor.tolist())
    with pytest.raises(InvalidRequestError, match="tensor a is given twice"):
        to_safetensors([("a", np.ones(1)), ("a", np.ones(1))])
    with pytest.raises(InvalidRequestError, match="tensor a has dtype int64"):
        to_safetensors([("a", np.arange(3))])
    with pytest.raises(InvalidRequestError, match="tensor a"):
        to_safetensors([("a", "text")])


def test_torch_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = [("a", torch.ones(2, dtype=torch.bfloat16)), ("b", torch.ones(2, requires_grad=True))]
    (tmp_path / "x").write_bytes(to_safetensors(tensors))
    file = SafetensorsFile(tmp_path / "x")
    assert {name: file.read(tensor).tolist() for name, tensor in file.tensors.items()} == {"a": [1, 1], "b": [1, 1]}


def answer(engine: Engine, count: int) -> dict[str, Any]:
    result = engine.generate("a", {"max_new_tokens": count})
    assert isinstance(result, dict)
    return result


def test_offline(model_dir, weights):
    with Engine.from_async_engine(make(model_dir)) as engine:
        assert answer(engine, 1)["meta_info"]["weight_version"] == "v0"
        assert engine.update_weights_from_disk(weights, weight_version="v1") == (
            True,
            "Succeeded to update model weights.",
        )
        result = answer(engine, 3)
        assert (result["output_ids"], result["meta_info"]["weight_version"]) == ([50, 51, 52], "v1")
        assert engine.get_server_info()["weight_version"] == "v1"
        assert engine.update_weights_from_tensor([("a", np.ones(2, np.float32))])[0]
        engine.release_memory_occupation(tags=["kv_cache"])
        with pytest.raises(EngineNotReadyError, match="kv_cache"):
            engine.generate("a", {"max_new_tokens": 1})
        engine.resume_memory_occupation()
        engine.pause_generation("retract")
        engine.continue_generation()
        engine.update_weights_from_disk(weights)
        assert answer(engine, 3)["output_ids"] == [50, 51, 52]
        with pytest.raises(InvalidRequestError, match="flush_cache"):
            engine.update_weights_from_disk(weights, flush_cache=False)
