import asyncio
import itertools
import json
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.offline.offline_engine import Engine
from palladio.runtime.front.requests.sglang_requests import expand_requests
from palladio.runtime.front.requests.sglang_results import finish_reason
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import (
    ConfigError,
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    InvalidRequestError,
)
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.transport import ThreadTransport
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.runtime.fake_core import FACTORY, FakeEngineCore, next_token
from tests.tiny_tokenizer import build_tiny_tokenizer

REPOSITORY = Path(__file__).parents[4]
GREEDY = {"temperature": 0, "max_new_tokens": 4}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = build_tiny_tokenizer(tmp_path_factory.mktemp("model"))
    (directory / "generation_config.json").write_text('{"temperature": 0.0, "eos_token_id": 2}')
    return directory


def make(model_dir, knobs=None, *, factory=FACTORY, **flags):
    flags = {"json_model_override_args": json.dumps(knobs or {}), **flags}
    config = EngineConfig.from_flags({"model_path": str(model_dir), **flags})
    return Engine.from_async_engine(AsyncEngine(config, ThreadTransport(factory)))


@pytest.fixture(scope="module")
def engine(model_dir):
    with make(model_dir) as engine:
        yield engine


def test_shape(engine):
    result = engine.generate("Hello", GREEDY)
    assert set(result) == {"text", "output_ids", "meta_info"}
    assert result["output_ids"][0] == next_token(engine.tokenizer.encode("Hello")[-1])
    assert result["text"] == engine.tokenizer.decode(result["output_ids"])
    meta = result["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(engine.tokenizer.encode("Hello")), 4)
    assert meta["e2e_latency"] > 0
    assert {"id", "cached_tokens", "queue_time", "num_retractions"} <= set(meta)
    json.dumps(result)


def test_lists(engine):
    prompts = [f"{i} apples" for i in range(20)]
    results = engine.generate(prompts, GREEDY)
    assert [r["output_ids"] for r in results] == [engine.generate(p, GREEDY)["output_ids"] for p in prompts]
    assert engine.generate([], GREEDY) == []
    assert isinstance(engine.generate(["one"], GREEDY), list)
    lengths = [{"max_new_tokens": i} for i in (1, 2)]
    assert [len(r["output_ids"]) for r in engine.generate(["a", "b"], lengths)] == [1, 2]


def test_input_ids(engine):
    assert engine.generate(input_ids=[5, 6], sampling_params=GREEDY)["output_ids"][0] == next_token(6)
    results = engine.generate(input_ids=[[5, 6], [7]], sampling_params=SamplingParams(temperature=0, max_tokens=1))
    assert [r["output_ids"] for r in results] == [[next_token(6)], [next_token(7)]]


def test_n(engine):
    results = engine.generate("a", {"n": 3, "temperature": 1, "seed": 3, "max_new_tokens": 4})
    assert len({tuple(r["output_ids"]) for r in results}) == 3
    assert len(engine.generate(["a", "b"], {"n": 2, "max_new_tokens": 1})) == 4


def test_defaults(engine):
    result = engine.generate(input_ids=[5])
    assert len(result["output_ids"]) == 128
    assert result["output_ids"][0] == next_token(5)  # generation_config.json says temperature 0
    assert len(engine.generate(input_ids=[5] * 250)["output_ids"]) == 6  # the default makes way
    with pytest.raises(ContextLengthError):
        engine.generate(input_ids=[5] * 250, sampling_params={"max_new_tokens": 128})
    with pytest.raises(ContextLengthError, match=r"300 tokens.*256 tokens"):
        engine.generate(input_ids=[5] * 300)


def test_logprobs(engine):
    result = engine.generate(
        input_ids=[5, 6, 7],
        sampling_params={"max_new_tokens": 2, "temperature": 0},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        return_text_in_logprobs=True,
    )
    meta = result["meta_info"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == result["output_ids"]
    first = result["output_ids"][0]
    assert meta["output_token_logprobs"][0] == (-first / 100, first, engine.tokenizer.token_text(first))
    assert [entry[:2] for entry in meta["input_token_logprobs"]] == [(None, 5), (-0.06, 6), (-0.07, 7)]
    assert meta["input_top_logprobs"][0] is None
    assert [entry[1] for entry in meta["input_top_logprobs"][1]] == [6, 7]
    assert len(meta["output_top_logprobs"]) == 2
    only_output = engine.generate("a", GREEDY, return_logprob=True)["meta_info"]
    assert only_output["input_token_logprobs"] == []
    assert only_output["output_token_logprobs"][0][2] is None
    assert "output_top_logprobs" not in only_output
    both = engine.generate("a", {"n": 2, "max_new_tokens": 1}, return_logprob=True, logprob_start_len=0)
    assert both[0]["meta_info"]["input_token_logprobs"] == both[1]["meta_info"]["input_token_logprobs"] != []


def test_text_without_a_tokenizer():
    with pytest.raises(InvalidRequestError, match="--skip-tokenizer-init"):
        expand_requests(prompt="Hello", input_ids=None, sampling_params=None, rid=None, options={}, received=0.0)


def test_stream(engine):
    whole = engine.generate("Hello", {"max_new_tokens": 20})
    chunks = list(engine.generate("Hello", {"max_new_tokens": 20}, stream=True))
    assert chunks[-1]["text"] == whole["text"]
    assert chunks[-1]["output_ids"] == whole["output_ids"]
    assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(chunks))
    assert "index" not in chunks[0]
    assert chunks[0]["meta_info"]["finish_reason"] is None or len(chunks) == 1


def test_stream_of_lists(engine):
    whole = engine.generate(["a", "b"], {"n": 2, "max_new_tokens": 5, "seed": 1, "temperature": 1})
    last = {}
    for chunk in engine.generate(["a", "b"], {"n": 2, "max_new_tokens": 5, "seed": 1, "temperature": 1}, stream=True):
        last[chunk["index"]] = chunk
    assert [last[i]["output_ids"] for i in range(4)] == [r["output_ids"] for r in whole]


def test_leaving_a_stream_aborts(model_dir):
    with make(model_dir, {"step_delay": 0.005}) as engine:
        for _ in engine.generate("a", stream=True):
            break
        deadline = time.monotonic() + 2
        while engine.get_server_info()["internal_states"][0]["num_running"]:
            assert time.monotonic() < deadline


def test_async_generate(engine):
    async def main():
        results = await asyncio.gather(*(engine.async_generate(f"{i}", GREEDY) for i in range(3)))
        stream = await engine.async_generate("0", GREEDY, stream=True)
        chunks = [chunk async for chunk in stream]
        return results, chunks

    results, chunks = asyncio.run(main())
    assert results[0]["output_ids"] == chunks[-1]["output_ids"]


def test_calls_from_several_threads(engine):
    results = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: engine.generate(f"{i}", GREEDY)})) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "input_ids": [1]}, "prompt"),
        ({"prompt": [5, 6]}, "prompt"),
        ({"input_ids": ["a"]}, "input_ids"),
        ({"prompt": "a", "sampling_params": {"temprature": 1}}, "temprature"),
        ({"prompt": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"prompt": "a", "sampling_params": {"max_tokens": -1}}, "max_tokens"),
        ({"prompt": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"prompt": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"prompt": "a", "top_logprobs_num": 3}, "top_logprobs_num"),
        ({"prompt": "a", "top_logprobs_num": 300, "return_logprob": True}, "top_logprobs_num"),
        ({"prompt": "a", "token_ids_logprob": [5]}, "token_ids_logprob"),
        ({"prompt": "a", "token_ids_logprob": [-5], "return_logprob": True}, "token_ids_logprob"),
        ({"prompt": ["a", "b"], "token_ids_logprob": [[5]], "return_logprob": True}, "token_ids_logprob"),
        ({"prompt": "a", "logprob_start_len": -2, "return_logprob": True}, "logprob_start_len"),
        ({"prompt": "a", "extra_key": 5}, "extra_key"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
        ({"prompt": ["a", "b"], "cache_salt": ["x"]}, "cache_salt"),
        ({"prompt": "a", "priority": 1}, "priority"),
        ({"prompt": "a", "priority": "high"}, "priority"),
        ({"prompt": ["a", "b"], "timeout": [1, -1]}, "timeout"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b", ""]}, "prompt"),
    ],
)
def test_refusals(engine, arguments, param):
    with pytest.raises(InvalidRequestError) as caught:
        engine.generate(**arguments)
    assert caught.value.param == param
    assert engine.get_server_info()["internal_states"][0]["num_running"] == 0


def test_options(model_dir):
    cores = []

    def create(config, on_progress, on_fatal):
        cores.append(FakeEngineCore.create(config, on_progress, on_fatal))
        return cores[0]

    with make(model_dir, factory=create, schedule_policy="priority") as engine:
        prompts = {"input_ids": [[5], [6]], "sampling_params": {"max_new_tokens": 1}}
        options = {"extra_key": ["x", None], "cache_salt": "y", "priority": [1, 2], "timeout": 30}
        engine.generate(**prompts, **options)
        asyncio.run(engine.async_generate(**prompts, **options))
        engine.generate(input_ids=[7], sampling_params={"max_new_tokens": 1})
    got = [(request.prompt_ids[0], request.options) for request in cores[0].requests]
    expected = [(5, RequestOptions('["y", "x"]', 1, 30)), (6, RequestOptions("y", 2, 30))]
    assert got == [*expected, *expected, (7, RequestOptions())]


def test_deadlines(model_dir):
    with make(model_dir, {"step_delay": 0.005}) as engine:
        with pytest.raises(DeadlineError, match=r"not done within 0.001 s"):
            engine.generate("a", timeout=0.001)
        cut, whole = engine.generate(["a", "b"], {"max_new_tokens": 60}, timeout=[0.1, None])
        reason = {"type": "abort", "message": "not done within 0.1 s", "status_code": 504}
        assert cut["meta_info"]["finish_reason"] == reason
        assert 0 < len(cut["output_ids"]) < 60
        assert whole["meta_info"]["finish_reason"]["type"] == "length"


def test_encode_says_no(engine):
    with pytest.raises(InvalidRequestError, match="embeddings"):
        engine.encode("a")


def test_server_info_and_flush(engine):
    engine.flush_cache()
    info = engine.get_server_info()
    assert info["context_length"] == 256
    assert info["model_type"] == "fake"
    assert (info["max_total_num_tokens"], info["max_req_input_len"]) == (info["max_total_tokens"], 255)
    assert info["tokenizer_path"] == info["model_path"]
    state = info["internal_states"][0]
    assert (state["cache"]["hit_rate"], state["device_idle"]["count"]) == (None, 0)
    assert engine.abort_request() == 0


@pytest.mark.slow  # a process of its own
def test_start_is_shown(model_dir, capsys, monkeypatch, caplog):
    with caplog.at_level("INFO", logger="palladio"), make(model_dir, {"start_delay": 6.5}):
        assert "Loading weights: 1/2 tensors" in caplog.text
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with make(model_dir):
        assert "Loading weights: 100%" in capsys.readouterr().err


def test_server_info_tells_every_flag(engine):
    assert engine.get_server_info().keys() >= engine._engine.config.flags().keys()


def test_progress_bar(engine, capsys):
    engine.generate(["a", "b"], GREEDY, show_progress=True)
    assert "2/2" in capsys.readouterr().err
    engine.generate(["a", "b"], GREEDY)
    assert capsys.readouterr().err == ""


def test_after_shutdown(model_dir):
    engine = make(model_dir)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineDeadError):
        engine.generate("a")


def test_failing_step(model_dir):
    with make(model_dir, {"fail_at_step": 2}) as engine, pytest.raises(EngineDeadError, match="by the fake"):
        engine.generate(["a", "b"])


def test_bad_start(tmp_path, model_dir):
    with pytest.raises(ConfigError, match="no such directory"):
        Engine(model_path=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="unknown engine option"):
        Engine(model_path=model_dir, page_sise=3)
    with pytest.raises(ConfigError, match=r"--schedule-policy must be one of .*, got 'sjf'"):
        Engine(model_path=model_dir, schedule_policy="sjf")
    threads = threading.active_count()
    with pytest.raises(ConfigError):
        make(model_dir, {"start_error": "config"})
    assert threading.active_count() <= threads


@pytest.mark.slow  # a process of its own
def test_leaving_without_shutdown_while_busy(model_dir):
    program = f"""
        import json
        from palladio.runtime.front.async_engine import AsyncEngine
        from palladio.runtime.interface.config.config import EngineConfig
        from palladio.runtime.front.offline.offline_engine import Engine
        from palladio.runtime.process.transport import ThreadTransport

        flags = {{"json_model_override_args": json.dumps({{"step_delay": 0.005}})}}
        config = EngineConfig.from_flags({{"model_path": {str(model_dir)!r}, **flags}})
        engine = Engine.from_async_engine(AsyncEngine(config, ThreadTransport({FACTORY!r})))
        stream = engine.generate("a", stream=True)
        next(stream)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_finish_reasons():
    assert finish_reason(FinishReason("stop", matched="x"), 3) == {"type": "stop", "matched": "x"}
    assert finish_reason(FinishReason("abort"), 3) == {"type": "abort", "message": "aborted"}
    refused = FinishReason("abort", message="no", status=400)
    assert finish_reason(refused, 0) == {"type": "abort", "message": "no", "status_code": 400}


def test_stop_string(model_dir):
    script = Tokenizer.load(model_dir).encode("one, two, three")
    with make(model_dir, {"script": script}) as engine:
        result = engine.generate("a", {"stop": ", t"})
        assert result["text"] == "one"
        assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": ", t"}
