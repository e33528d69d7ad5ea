import asyncio
import contextlib
import json
import subprocess
import sys
import time

import pytest

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import (
    ConfigError,
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    EngineNotReadyError,
    InvalidRequestError,
    OverloadedError,
)
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.transport import ThreadTransport
from palladio.runtime.text.hub.hub import read_sampling_defaults, resolve_model_path
from tests.runtime.fake_core import FACTORY, FakeEngineCore, next_token, started
from tests.tiny_tokenizer import build_tiny_tokenizer

GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return build_tiny_tokenizer(tmp_path_factory.mktemp("model"))


def make(model_dir, knobs=None, *, factory=FACTORY, **flags):
    flags = {"json_model_override_args": json.dumps(knobs or {}), **flags}
    config = EngineConfig.from_flags({"model_path": str(model_dir), **flags})
    return AsyncEngine(config, ThreadTransport(factory))


@contextlib.asynccontextmanager
async def running(model_dir, knobs=None, **flags):
    engine = make(model_dir, knobs, **flags)
    async with started(engine):
        yield engine


async def collect(engine, prompt, request_id="r", **params):
    return [output async for output in engine.generate(GenerationRequest(request_id, prompt, SamplingParams(**params)))]


def greedy_ids(start, count):
    ids = [next_token(start)]
    while len(ids) < count:
        ids.append(next_token(ids[-1]))
    return ids


def ids_of(outputs, index=0):
    return [i for output in outputs if output.index == index for i in output.token_ids]


async def until(condition):
    deadline = time.monotonic() + 30  # on a busy machine the tokenizer alone takes seconds to load
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


async def test_generate(model_dir):
    async with running(model_dir) as engine:
        outputs = await collect(engine, [5, 6], max_tokens=5, **GREEDY)
        assert ids_of(outputs) == greedy_ids(6, 5)
        last = outputs[-1]
        assert (last.finish.type, last.prompt_tokens, last.completion_tokens) == ("length", 2, 5)
        assert "".join(output.text for output in outputs) == engine.tokenizer.decode(ids_of(outputs))


async def test_n_samples_and_seed(model_dir):
    async with running(model_dir) as engine:
        outputs = await collect(engine, [5], max_tokens=4, n=3, seed=7)
        alone = await collect(engine, [5], max_tokens=4, seed=9)
        assert ids_of(outputs, 2) == ids_of(alone)
        assert [sum(o.finish is not None for o in outputs if o.index == i) for i in range(3)] == [1, 1, 1]


async def test_stop_string_aborts_in_the_engine(model_dir):
    script = build_script(model_dir, "one, two, three")
    async with running(model_dir, {"script": script, "step_delay": 0.002}) as engine:
        outputs = await collect(engine, [5], stop=[", t"])
        assert "".join(output.text for output in outputs) == "one"
        assert outputs[-1].finish.matched == ", t"
        assert (await engine.stats()).total.num_running == 0


def build_script(model_dir, text):
    from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

    return Tokenizer.load(model_dir).encode(text)


async def test_closing_early_aborts(model_dir):
    async with running(model_dir, {"step_delay": 0.005}) as engine:
        source = engine.generate(GenerationRequest("r", [5], SamplingParams(n=2)))
        await anext(source)
        assert (await engine.stats()).total.num_running == 2
        await source.aclose()
        assert (await engine.stats()).total.num_running == 0
        await engine.flush_cache()
        assert len(await collect(engine, [5], max_tokens=1)) == 1  # the id is free again


async def test_cancelling_the_reader_aborts(model_dir):
    async with running(model_dir, {"step_delay": 0.005}) as engine:
        task = asyncio.create_task(collect(engine, [5]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await engine.stats()).total.num_running == 0


async def test_abort_from_elsewhere(model_dir):
    async with running(model_dir, {"step_delay": 0.005}) as engine:
        tasks = [asyncio.create_task(collect(engine, [5], str(i), n=2)) for i in range(3)]
        await asyncio.sleep(0.05)
        assert await engine.abort("nobody") == 0
        assert await engine.abort("1") == 1
        outputs = await tasks[1]
        assert [output.finish.type for output in outputs if output.finish] == ["abort", "abort"]
        assert (await engine.stats()).total.num_running == 4
        assert await engine.abort(None) == 2
        await asyncio.gather(*tasks)
        assert (await engine.stats()).total.num_running == 0


async def test_slow_reader_gets_everything_merged(model_dir):
    async with running(model_dir) as engine:
        source = engine.generate(GenerationRequest("slow", [5], SamplingParams(max_tokens=100, **GREEDY)))
        outputs = [await anext(source)]
        assert len(await collect(engine, [9], "fast", max_tokens=100)) > 0
        await asyncio.sleep(1.0)
        outputs += [output async for output in source]
        assert ids_of(outputs) == greedy_ids(5, 100)
        assert len(outputs) < 10


async def test_refusals(model_dir):
    async with running(model_dir, {"step_delay": 0.005}, max_queued_requests=1, context_length=64) as engine:
        with pytest.raises(ContextLengthError, match=r"100 tokens.*64 tokens"):
            await collect(engine, [5] * 100)
        with pytest.raises(InvalidRequestError, match="superstitious"):
            await collect(engine, [5], logit_bias={13: 13.0})
        source = engine.generate(GenerationRequest("r", [5], SamplingParams()))
        await anext(source)
        with pytest.raises(InvalidRequestError, match="already running"):
            await collect(engine, [5])
        with pytest.raises(OverloadedError, match="--max-queued-requests"):
            await collect(engine, [5], "other")
        with pytest.raises(OverloadedError):
            await engine.flush_cache()
        await source.aclose()


async def test_options_reach_every_sample(model_dir):
    cores = []

    def create(config, on_progress, on_fatal):
        cores.append(FakeEngineCore.create(config, on_progress, on_fatal))
        return cores[0]

    flags = {"schedule_policy": "priority", "request_timeout": 60.0}
    async with running(model_dir, factory=create, **flags) as engine:
        given = RequestOptions("salt", 5, 30.0)
        params = SamplingParams(n=2, max_tokens=1)
        assert [output async for output in engine.generate(GenerationRequest("a", [5], params, options=given))]
        await collect(engine, [5], max_tokens=1)
    assert [request.options for request in cores[0].requests] == [given, given, RequestOptions(timeout=60.0)]


async def test_priority_needs_the_policy(model_dir):
    async with running(model_dir) as engine:
        source = engine.generate(GenerationRequest("r", [5], SamplingParams(), options=RequestOptions(priority=1)))
        with pytest.raises(InvalidRequestError, match="--schedule-policy priority"):
            await anext(source)
        assert len(await collect(engine, [5], max_tokens=1)) == 1  # the id is free again


async def test_deadlines(model_dir):
    async with running(model_dir, {"step_delay": 0.005}) as engine:

        def start(seconds):
            options = RequestOptions(timeout=seconds)
            return engine.generate(GenerationRequest("r", [5], SamplingParams(n=2, **GREEDY), options=options))

        with pytest.raises(DeadlineError, match=r"not done within 0.001 s"):
            await anext(start(0.001))
        outputs = [output async for output in start(0.1)]
        ends = [output.finish for output in outputs if output.finish is not None]
        assert [(end.type, end.status) for end in ends] == [("abort", 504)] * 2
        assert ids_of(outputs) == greedy_ids(5, len(ids_of(outputs))) != []
        assert (await engine.stats()).total.num_running == 0


async def test_failing_step_reaches_every_stream(model_dir):
    async with running(model_dir, {"fail_at_step": 5, "step_delay": 0.01}) as engine:
        results = await asyncio.gather(*(collect(engine, [5], str(i)) for i in range(3)), return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert engine.state == "dead"
        assert "by the fake" in engine.failure
        with pytest.raises(EngineDeadError, match="by the fake"):
            await collect(engine, [5])
        with pytest.raises(EngineDeadError):
            await engine.stats()


async def test_integrity_is_checked_only_if_asked(model_dir):
    async with running(model_dir, {"broken": "a page is lost"}) as engine:
        assert (await engine.stats()).integrity_error is None
        assert (await engine.stats(check_integrity=True)).integrity_error == "a page is lost"


async def test_states(model_dir):
    engine = make(model_dir, {"start_delay": 1.0, "step_delay": 0.01})
    with pytest.raises(EngineNotReadyError):
        _ = engine.info
    await engine.start()
    assert engine.state == "starting"
    with pytest.raises(EngineNotReadyError, match="starting"):
        await collect(engine, [5])
    await until(lambda: engine.progress is not None)
    assert (engine.progress.phase, engine.progress.total) == ("load", 2)
    await engine.wait_ready()
    assert (engine.state, engine.progress) == ("ready", None)
    running_request = asyncio.create_task(collect(engine, [5], max_tokens=150))
    await asyncio.sleep(0)  # it has been sent
    stopping = asyncio.create_task(engine.shutdown(drain_seconds=30))
    await asyncio.sleep(0)
    assert engine.state == "draining"
    with pytest.raises(EngineNotReadyError, match="shutting down"):
        await collect(engine, [5], "late")
    assert (await running_request)[-1].finish.type == "length"
    await stopping
    assert engine.state == "dead"
    await engine.shutdown()


async def test_drain_gives_up(model_dir):
    engine = make(model_dir, {"step_delay": 0.02})
    await engine.start()
    await engine.wait_ready()
    finishes = set()

    async def read():
        async for output in engine.generate(GenerationRequest("r", [5], SamplingParams(max_tokens=150))):
            finishes.add(output.finish)

    task = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    await engine.shutdown(drain_seconds=0.05)
    with pytest.raises(EngineNotReadyError, match="--drain-timeout"):
        await task
    assert finishes == {None}, "what it had comes first"


@pytest.mark.parametrize(("knobs", "error"), [("config", ConfigError), ("crash", EngineDeadError)])
async def test_failing_start(model_dir, knobs, error):
    engine = make(model_dir, {"start_error": knobs})
    await engine.start()
    with pytest.raises(error):
        await engine.wait_ready()
    assert engine.state == "dead"
    await engine.shutdown()


async def test_missing_model_and_tokenizer(tmp_path):
    for directory, match in ((tmp_path / "none", "no such directory"), (tmp_path, "--skip-tokenizer-init")):
        engine = make(directory)
        await engine.start()
        with pytest.raises(ConfigError, match=match):
            await engine.wait_ready()


async def test_without_tokenizer(tmp_path):
    async with running(tmp_path, skip_tokenizer_init=True) as engine:
        outputs = await collect(engine, [5], max_tokens=3, **GREEDY)
        assert ids_of(outputs) == greedy_ids(5, 3)
        with pytest.raises(InvalidRequestError, match="token ids"):
            await collect(engine, "text")


async def test_shutdown_while_starting(model_dir):
    engine = make(model_dir, {"start_delay": 0.3})
    await engine.start()
    await asyncio.sleep(0.05)
    await engine.shutdown()
    assert engine.state == "dead"


def test_sampling_defaults(tmp_path):
    def read(content):
        (tmp_path / "generation_config.json").write_text(content)
        return read_sampling_defaults(tmp_path)

    assert read_sampling_defaults(tmp_path) == {}
    assert read('{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2], "min_p": null}') == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    assert read('{"do_sample": false, "temperature": 0.6}') == {"temperature": 0.0}
    assert read('{"temperature": -3}') == {}
    assert read("not json") == {}


def test_resolve_model_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve_model_path(str(tmp_path)) == tmp_path
    (tmp_path / "model.bin").touch()
    for path, match in (
        (str(tmp_path / "model.bin"), "is a file; give the directory that holds .*, or a GGUF file"),
        ("./nowhere", "no such directory"),
        ("a/b/c", "no such directory"),
        ("palladio-tests/does-not-exist", "local hub cache"),
    ):
        with pytest.raises(ConfigError, match=match):
            resolve_model_path(path, download_dir=str(tmp_path / "cache"))


def test_imports_neither_jax_nor_zmq():
    code = (
        "import sys, palladio.runtime.front.async_engine, palladio.runtime.front.offline.offline_engine;"
        "assert not {'jax', 'zmq', 'msgspec', 'transformers', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
