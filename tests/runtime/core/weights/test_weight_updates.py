"""Weights are exchanged between two steps: the same programs, the tokens of an engine that started with them."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.model.cache.kv_cache import CacheLayout
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.plan.memory import DeviceMemory
from palladio.runtime.core.weights import weight_loader
from palladio.runtime.interface.messages.calls import ControlReply
from palladio.runtime.interface.messages.model_messages import ModelMessage, SetPause, SetReleased, UpdateWeights
from palladio.runtime.interface.request.generation_request import RequestOptions
from tests.many_devices import call_with_devices
from tests.runtime.tiny_engine import Collector, create_core, generate, random_prompt
from tests.tiny_model import make_checkpoint

FLAGS: dict[str, Any] = {
    "load_format": "auto",
    "skip_tokenizer_init": True,
    "max_running_requests": 4,
    "cuda_graph_bs": (1,),
    "chunked_prefill_size": 32,
    "num_continuous_decode_steps": 1,
    "compile": "lazy",
}
PROMPTS = {f"{length}": random_prompt(length) for length in (3, 9, 40)}
LONG = {"max_tokens": 12}
EVENTS = "inproc://kv-events-of-updated-weights"


Change = Callable[[dict[str, np.ndarray]], None]


def make_other(folder: Path, like: Path, change: Change = lambda tensors: None) -> Path:
    """A checkpoint of the same shapes with other values."""
    folder.mkdir()
    tensors = load_file(like / "model.safetensors")
    tensors = {name: np.ascontiguousarray(np.roll(array, 1, 0)) for name, array in tensors.items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((like / "config.json").read_text())
    return folder


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("first") / "model", "qwen3")


@pytest.fixture(scope="module")
def second(first: Path) -> Path:
    return make_other(first.parent / "second", first)


@pytest.fixture(scope="module")
def core(first: Path) -> Iterator[EngineCore]:
    core = create_core(first, **FLAGS, kv_events_config=json.dumps({"publisher": "zmq", "endpoint": EVENTS}))
    yield core
    core.close()


@pytest.fixture(scope="module")
def expected(core: EngineCore, second: Path) -> dict[str, dict[str, list[int]]]:
    """What engines say that were started with each checkpoint."""
    other = create_core(second, **FLAGS)
    return {"first": generate(core, PROMPTS, **LONG), "second": generate(other, PROMPTS, **LONG)}


@pytest.fixture(autouse=True)
def begin_with_the_first(core: EngineCore, first: Path, expected: object) -> None:
    assert steer(core, UpdateWeights(0, str(first))).ok


def steer(core: EngineCore, message: ModelMessage) -> ControlReply:
    outputs, reply = core.steer(message)
    assert not outputs, "nothing ran"
    return reply


def steer_into(collector: Collector, message: ModelMessage) -> ControlReply:
    """Likewise while requests run: what was under way is theirs."""
    outputs, reply = collector.core.steer(message)
    collector.take(outputs)
    return reply


def test_an_update_gives_the_tokens_of_a_start_without_a_compile(core, second, expected):
    num_programs = len(core.stats().compile.programs)
    assert expected["first"] != expected["second"]
    assert generate(core, PROMPTS, **LONG) == expected["first"]
    assert core.stats().total.num_cached_tokens > 0
    num_batches = core.stats().total.num_event_batches
    assert steer(core, UpdateWeights(1, str(second))) == ControlReply(1, ok=True)
    assert core.stats().total.num_cached_tokens == 0, "keys and values of the old weights"
    assert core.stats().total.num_event_batches == num_batches + 1, "subscribers wait for a step to hear of it"
    assert generate(core, PROMPTS, **LONG) == expected["second"]
    stats = core.stats()
    assert (len(stats.compile.programs), stats.num_compiles_after_ready) == (num_programs, 0)


def test_running_requests_keep_their_tokens_and_go_on_with_the_new_weights(core, second):
    collector = Collector(core)
    collector.add("x", PROMPTS["9"], **LONG)
    for _ in range(5):
        collector.step()
    assert steer_into(collector, UpdateWeights(1, str(second))).count == 1
    before = list(collector.tokens["x"])
    assert 0 < len(before) < 12
    collector.run()
    assert collector.tokens["x"][: len(before)] == before
    rest = generate(core, {"rest": PROMPTS["9"] + before}, max_tokens=12 - len(before))["rest"]
    assert collector.tokens["x"] == before + rest
    assert collector.num_retractions["x"] == 1


@pytest.mark.parametrize(("mode", "num_running", "num_retractions"), [("in_place", 3, 0), ("retract", 0, 1)])
def test_a_paused_engine_computes_nothing_and_then_goes_on(core, expected, mode, num_running, num_retractions):
    collector = Collector(core)
    for name, tokens in PROMPTS.items():
        collector.add(name, tokens, **LONG)
    for _ in range(6):
        collector.step()
    assert steer_into(collector, SetPause(1, mode)).ok
    said = {name: list(tokens) for name, tokens in collector.tokens.items()}
    for _ in range(3):
        collector.step()
    assert collector.tokens == said
    assert core.has_work
    assert core.spare_seconds > 0, "the loop does not spin"
    assert core.stats().total.num_running == num_running
    assert steer(core, SetPause(2, None)).ok
    assert collector.run().tokens == expected["first"]
    assert set(collector.num_retractions.values()) == {num_retractions}


def test_paused_requests_have_deadlines_and_can_be_aborted(core):
    assert steer(core, SetPause(1, "in_place")).ok
    collector = Collector(core)
    collector.add("late", PROMPTS["3"], options=RequestOptions(timeout=0.01), received=1.0)
    collector.add("gone", PROMPTS["3"])
    core.abort(["gone"])
    collector.step()
    assert collector.finish["late"].status == 504
    assert not core.has_work
    assert steer(core, SetPause(2, None)).ok


def drop(tensors: dict[str, np.ndarray]) -> None:
    del tensors["model.norm.weight"]


def keep_one(tensors: dict[str, np.ndarray]) -> None:
    for name in tensors.keys() - {"model.norm.weight"}:
        del tensors[name]


def add(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.extra"] = np.zeros(3, np.float32)


def reshape(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.norm.weight"] = np.ones(7, np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop, "only a part of the model's: there is no model.norm.weight. An update exchanges all weights"),
        (keep_one, "only a part of the model's: there is no tensor of layer 0. An update"),
        (add, "unexpected keys .* model.extra"),
        (reshape, "shape mismatch"),
    ],
)
def test_weights_of_another_shape_change_nothing(core, first, expected, tmp_path, change, words):
    generate(core, PROMPTS, **LONG)
    num_cached = core.stats().total.num_cached_tokens
    reply = steer(core, UpdateWeights(1, str(make_other(tmp_path / "other", first, change))))
    assert not reply.ok
    assert re.search(words, reply.message)
    assert core.stats().total.num_cached_tokens == num_cached
    assert generate(core, PROMPTS, **LONG) == expected["first"]


def test_a_config_of_another_model_is_refused(core, second, expected, tmp_path):
    other = make_other(tmp_path / "other", second)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": 500000.0}))
    reply = steer(core, UpdateWeights(1, str(other)))
    assert not reply.ok
    assert "rope" in reply.message
    (other / "config.json").write_text(json.dumps(config | {"eos_token_id": [2, 5]}))  # the front has its own
    assert steer(core, UpdateWeights(2, str(other))).ok
    (other / "config.json").unlink()  # tensors alone
    assert steer(core, UpdateWeights(3, str(other))).ok


def test_a_window_that_no_sequence_fills_is_no_other_model(tmp_path):
    folder = make_checkpoint(tmp_path / "model", "gemma3")  # its window is 12
    core = create_core(folder, **FLAGS | {"context_length": 12, "compile": "lazy"})
    reply = steer(core, UpdateWeights(1, str(folder)))
    assert reply.ok, reply.message


@pytest.mark.parametrize("content", [None, b"", b"\x80\x04K\x01."])
def test_what_is_no_safetensors_file_is_refused(core, expected, tmp_path, content):
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04K\x01.")
    assert not steer(core, UpdateWeights(1, str(tmp_path))).ok
    assert generate(core, PROMPTS, **LONG) == expected["first"]


def test_missing_memory_is_named_in_bytes_and_old_weights_can_make_room(core, second, expected, monkeypatch):
    needed = core.stats().memory.weights
    monkeypatch.setattr(DeviceMemory, "of", lambda device: DeviceMemory(1 << 30, needed - 1000))
    reply = steer(core, UpdateWeights(1, str(second)))
    assert not reply.ok
    assert "1,000 bytes are missing" in reply.message
    assert "/release_memory_occupation" in reply.message
    assert generate(core, PROMPTS, **LONG) == expected["first"]
    assert steer(core, SetReleased(2, ["weights"])).ok
    assert steer(core, UpdateWeights(3, str(second))).ok  # takes their place
    assert generate(core, PROMPTS, **LONG) == expected["second"]


@pytest.mark.parametrize("tags", [["weights"], ["kv_cache"], ["kv_cache", "weights"]])
def test_released_memory_is_freed_and_comes_back(core, second, expected, tags):
    assert steer(core, UpdateWeights(1, str(second))).ok
    generate(core, PROMPTS, **LONG)
    state = core._runner.executor.state
    arrays = {"weights": state.weights, "kv_cache": state.kv_cache}
    assert steer(core, SetReleased(2, tags)).ok
    assert {name: all(array.is_deleted() for array in arrays[name]) for name in arrays} == {
        name: name in tags for name in arrays
    }
    assert core.step() == []
    assert steer(core, SetReleased(3, [])).ok
    assert bool(core.stats().total.num_cached_tokens) == ("kv_cache" not in tags)
    assert generate(core, PROMPTS, **LONG) == expected["second"], "the weights of the last update"
    assert core.stats().num_compiles_after_ready == 0


def test_memory_that_others_took_meanwhile_stays_released(core, first, expected, monkeypatch):
    def fail(*args: object, **kwargs: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    assert steer(core, SetReleased(1, ["kv_cache", "weights"])).ok
    for owner, name in ((weight_loader, "load_model"), (CacheLayout, "allocate")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            reply = steer(core, SetReleased(2, []))
            assert (reply.ok, "RESOURCE_EXHAUSTED" in reply.message) == (False, True)
    assert steer(core, SetReleased(3, [])).ok
    assert generate(core, PROMPTS, **LONG) == expected["first"]


def test_memory_is_not_released_under_running_requests(core, expected):
    collector = Collector(core)
    collector.add("9", PROMPTS["9"], **LONG)
    collector.step()
    assert "/pause_generation" in steer_into(collector, SetReleased(1, ["kv_cache"])).message
    steer_into(collector, SetPause(2, "in_place"))
    assert not steer_into(collector, SetReleased(3, ["kv_cache"])).ok  # it has pages
    steer_into(collector, SetPause(4, "retract"))
    assert steer_into(collector, SetReleased(5, ["kv_cache"])).ok
    assert steer_into(collector, SetReleased(6, [])).ok
    assert steer_into(collector, SetPause(7, None)).ok
    assert collector.run().tokens["9"] == expected["first"]["9"]


def run_on_ranks(first: str, second: str) -> list[dict[str, list[int]]]:
    core = create_core(Path(first), dp_size=2, tp_size=2, **FLAGS, fail_on_recompile=False)
    said = [generate(core, PROMPTS, **LONG)]
    assert core.steer(UpdateWeights(1, second))[1].ok
    said.append(generate(core, PROMPTS, **LONG))
    assert core.steer(SetReleased(1, ["weights", "kv_cache"]))[1].ok
    assert core.steer(SetReleased(1, []))[1].ok
    return [*said, generate(core, PROMPTS, **LONG)]


@pytest.mark.slow  # test_states.py has such ranks; an engine of one follows above
def test_every_rank_follows(first, second, expected):
    said = call_with_devices(__name__, "run_on_ranks", str(first), str(second))
    assert said == [expected["first"], expected["second"], expected["second"]]


def test_a_folder_that_leads_elsewhere_or_has_no_end_is_refused(core, second, expected, tmp_path):
    links = make_other(tmp_path / "links", second)
    (links / "model.safetensors").unlink()
    (links / "model.safetensors").symlink_to(second / "model.safetensors")
    pipe = make_other(tmp_path / "pipe", second)
    (pipe / "model.safetensors").unlink()
    os.mkfifo(pipe / "model.safetensors")
    deep = make_other(tmp_path / "deep", second)
    (deep / "config.json").write_text("[" * 100_000 + "]" * 100_000)
    for folder, words in ((links, "outside of"), (pipe, "is a pipe"), (deep, "nests lists")):
        reply = steer(core, UpdateWeights(1, str(folder)))
        assert not reply.ok
        assert words in reply.message
    assert generate(core, PROMPTS, **LONG) == expected["first"]


def test_weights_in_a_folder_below_are_read(core, second, expected, tmp_path):
    folder = make_other(tmp_path / "other", second)
    (folder / "below").mkdir()
    (folder / "model.safetensors").unlink()
    (folder / "below" / "a.safetensors").write_bytes((second / "model.safetensors").read_bytes())
    names = dict.fromkeys(load_file(second / "model.safetensors"), "below/a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    reply = steer(core, UpdateWeights(1, str(folder)))
    assert reply.ok, reply.message
    assert generate(core, PROMPTS, **LONG) == expected["second"]
