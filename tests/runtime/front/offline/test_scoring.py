"""Engine.score, streams of SGLang's tutorials, and profiles, with a fake core: token i has log-probability -i/100."""

import asyncio
import math

import pytest

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.offline.offline_engine import Engine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError
from palladio.runtime.process.transport import ThreadTransport
from palladio.utils import async_stream_and_merge, stream_and_merge
from tests.runtime.fake_core import FACTORY
from tests.tiny_tokenizer import build_tiny_tokenizer


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    directory = build_tiny_tokenizer(tmp_path_factory.mktemp("model"))
    config = EngineConfig.from_flags({"model_path": str(directory)})
    with Engine.from_async_engine(AsyncEngine(config, ThreadTransport(FACTORY))) as engine:
        yield engine


def test_score_is_a_probability_for_each_item_and_label(engine) -> None:
    expected = [math.exp(-0.05), math.exp(-0.2)]
    assert engine.score("Paris? ", ["yes", "no", "no"], [5, 20]) == [pytest.approx(expected)] * 3
    assert engine.score("Paris? ", "yes", [20, 5]) == [pytest.approx(expected[::-1])]
    assert engine.score([7, 8], [[9], [10, 11]], [5, 20], item_first=True) == [pytest.approx(expected)] * 2
    assert engine.score("x", [], [5]) == []
    shares = engine.score("Paris? ", ["yes"], [5, 20], apply_softmax=True)[0]
    assert shares == pytest.approx([value / sum(expected) for value in expected])
    assert sum(shares) == pytest.approx(1)
    assert asyncio.run(engine.async_score("Paris? ", ["yes"], [5, 20])) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("arguments", "param", "message"),
    [
        ({}, "label_token_ids", "must be a list of token ids"),
        ({"label_token_ids": [10**6], "query": "a", "items": "b"}, "label_token_ids", "1000000 is not a token id of"),
        ({"label_token_ids": [-1], "query": "a", "items": "b"}, "label_token_ids", "-1 is not a token id of this"),
        ({"label_token_ids": ["x"], "query": "a", "items": "b"}, "label_token_ids", "must be a list of integers"),
        ({"label_token_ids": [5], "items": ["b"]}, "query", "must both be given"),
        ({"label_token_ids": [5], "query": "a"}, "items", "must both be given"),
        ({"label_token_ids": [5], "query": "a", "items": [[1]]}, "items", "must both be texts, or both be token ids"),
        ({"label_token_ids": [5], "query": [1], "items": ["a"]}, "items", "must both be texts, or both be token ids"),
        ({"label_token_ids": [5], "query": [], "items": [[]]}, "query", "must not both be empty"),
    ],
)
def test_score_says_what_is_wrong(engine, arguments: dict, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        engine.score(**arguments)
    assert error.value.param == param


def test_an_item_that_is_too_long_ends_the_call(engine) -> None:
    with pytest.raises(ContextLengthError):
        engine.score([5], [[6], [7] * 300], [5])


def test_streams_of_the_tutorial(engine) -> None:
    params = {"temperature": 0, "max_new_tokens": 12}
    whole = engine.generate("Hello", params)["text"]
    assert stream_and_merge(engine, "Hello", params) == whole != ""

    async def pieces() -> list[str]:
        return [piece async for piece in async_stream_and_merge(engine, "Hello", params)]

    found = asyncio.run(pieces())
    assert "".join(found) == whole
    assert len(found) > 1


def test_fields_of_a_profile_are_those_of_the_route(engine) -> None:
    with pytest.raises(InvalidRequestError, match="record_shapes is not supported: shapes are static"):
        engine.start_profile(record_shapes=True)
    with pytest.raises(InvalidRequestError, match="activities may be CPU"):
        engine.start_profile(activities=["XPU"])


def test_profile(engine, tmp_path) -> None:
    engine.start_profile(tmp_path / "trace", num_steps=3, activities=["CPU"], record_shapes=False)
    with pytest.raises(InvalidRequestError, match="already running"):
        engine.start_profile(str(tmp_path))
    assert engine.stop_profile() == str(tmp_path / "trace")
    with pytest.raises(InvalidRequestError, match="no profile"):
        engine.stop_profile()
    engine.start_profile()
    assert "palladio-profile-" in engine.stop_profile()
