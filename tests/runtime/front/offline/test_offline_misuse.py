"""An offline engine that is used where it cannot work, or as other servers' engines are."""

import asyncio
import functools
import multiprocessing
import warnings

import pytest

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.offline.offline_engine import Engine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import EngineDeadError, InvalidRequestError
from palladio.runtime.process.transport import ThreadTransport
from tests.runtime.fake_core import FACTORY
from tests.tiny_tokenizer import build_tiny_tokenizer

GREEDY = {"temperature": 0, "max_new_tokens": 4}


def make(model_dir):
    config = EngineConfig.from_flags({"model_path": str(model_dir), "json_model_override_args": "{}"})
    return Engine.from_async_engine(AsyncEngine(config, ThreadTransport(FACTORY)))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return build_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(model_dir):
    with make(model_dir) as engine:
        yield engine


def forked(work):
    """What a process made by fork sends of `work`; it has to be quick, or it is ended."""
    ours, theirs = multiprocessing.Pipe(duplex=False)

    def run():
        try:
            theirs.send(work())
        except Exception as error:
            theirs.send(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax and Python warn of what this does on purpose
        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
    try:
        return ours.recv() if ours.poll(30) else "it waits for ever"
    finally:
        process.kill()
        process.join()


def test_an_engine_in_a_process_made_by_fork_says_so(model_dir):
    """None of its threads is there, so whatever waits for them would do so for ever."""
    with make(model_dir) as engine:
        stream = engine.generate("a", GREEDY | {"max_new_tokens": 60}, stream=True)
        next(stream)
        uses = {
            "generate": lambda: engine.generate("a", GREEDY),
            "next": lambda: next(stream),
            "async_generate": lambda: asyncio.run(engine.async_generate("a", GREEDY)),
            "get_server_info": engine.get_server_info,
            "make": lambda: make(model_dir),
        }
        for name, use in uses.items():
            error = forked(use)
            assert isinstance(error, EngineDeadError), (name, error)
            assert 'get_context("spawn")' in str(error)
        assert forked(engine.shutdown) is None
        assert forked(stream.close) is None
        assert engine.generate("a", GREEDY)["output_ids"]


@pytest.mark.parametrize("name", ["lora_path", "return_hidden_states", "image_data", "custom_logit_processor"])
def test_keywords_that_the_server_refuses_get_its_sentence(engine, name):
    calls = (
        engine.generate,
        engine.encode,
        *(functools.partial(_awaited, call) for call in (engine.async_generate, engine.async_encode)),
    )
    for call in calls:
        with pytest.raises(InvalidRequestError) as caught:
            call("a", **{name: "x"})
        assert (str(caught.value), caught.value.param) == (f"not supported yet: {name}", name)
        with pytest.raises(TypeError, match="unexpected keyword argument 'lora_pathx'"):
            call("a", lora_pathx=None)
    assert engine.generate("a", GREEDY, **{name: None}) is not None
    assert engine.generate("a", GREEDY, return_hidden_states=False, image_data=[], user="me") is not None


def _awaited(call, *arguments, **keywords):
    return asyncio.run(call(*arguments, **keywords))


def test_sampling_parameters_that_the_server_refuses_get_its_sentence(engine):
    for name, value, words in (
        ("custom_params", {"a": 1}, "not supported yet: custom_params"),
        ("bad_words", ["x"], r"not supported yet: bad_words \(use logit_bias\)"),
        ("tempreature", 1, "unknown sampling parameter 'tempreature'"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            engine.generate("a", {name: value})
    assert engine.generate("a", GREEDY | {"bad_words": [], "best_of": 1, "user": "me"}) is not None
