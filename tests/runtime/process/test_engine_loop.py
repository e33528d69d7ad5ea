import json

import pytest

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.calls import (
    AbortRequests,
    ControlReply,
    FlushCache,
    GetStats,
    Shutdown,
    StepOutputs,
)
from palladio.runtime.interface.messages.engine_state import EngineFailed, EngineReady, LoadProgress
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.engine_loop import run_engine
from tests.runtime.fake_core import FakeEngineCore, next_token


class ListInbox:
    """Gives its messages in order; None means: nothing now."""

    def __init__(self, messages):
        self._messages = list(messages)
        self.waits = 0

    def get(self, seconds=0.0):
        return self._messages.pop(0) if self._messages else None

    def wait(self):
        self.waits += 1
        while (message := self._messages.pop(0)) is None:
            pass
        return message


def run(messages, **knobs):
    return run_core(messages, **knobs)[1]


def run_core(messages, **knobs):
    config = EngineConfig.from_flags({"model_path": "x", "json_model_override_args": json.dumps(knobs)})
    cores, emitted = [], []

    def create(*args):
        cores.append(FakeEngineCore.create(*args))
        return cores[0]

    run_engine(create, config, ListInbox([*messages, Shutdown()]), emitted.append)
    return cores, [message for message in emitted if not isinstance(message, LoadProgress)]


def add(request_id="a", **params):
    fields = {"max_tokens": 2, "seed": 0, "temperature": 0.0} | params
    return GenerationRequest(request_id, [5], SamplingParams(**fields), (2,), 0.0)


def test_serves_and_shuts_down():
    ready, *steps = run([add(), None, None, GetStats(7), None])
    assert isinstance(ready, EngineReady)
    first, second, reply = steps
    assert first.outputs[0].token_ids == [next_token(5)]
    assert second.outputs[0].finish.type == "length"
    assert (reply.call_id, reply.ok, reply.stats.total.num_running) == (7, True, 0)


def test_all_waiting_messages_are_taken_before_a_step():
    _, step, *_ = run([add("a"), add("b"), AbortRequests(["a"]), None, None])
    assert [output.request_id for output in step.outputs] == ["b"]


def test_bad_request_is_answered_and_the_loop_goes_on():
    _, rejected, step, *_ = run([add("a", logit_bias={13: 13.0}), add("b"), None, None])
    assert isinstance(rejected, StepOutputs)
    assert (rejected.outputs[0].finish.type, rejected.outputs[0].finish.status) == ("abort", 400)
    assert "superstitious" in rejected.outputs[0].finish.message
    assert step.outputs[0].request_id == "b"


def test_flush_cache_is_refused_when_busy():
    _, refused, *_ = run([add(), FlushCache(1), None, None])
    assert refused == ControlReply(1, ok=False, message="requests are running")
    assert run([FlushCache(2)])[1] == ControlReply(2, ok=True)


def test_a_failing_step_ends_the_loop():
    *_, failed = run([add(), None, None], fail_at_step=2)
    assert isinstance(failed, EngineFailed)
    assert not failed.config
    assert "ZeroDivisionError: by the fake" in failed.message


def test_a_core_is_told_whether_it_is_closed_for_a_failure():
    (core,), _ = run_core([add(), None, None])
    assert core.failure == ""
    (core,), _ = run_core([add(), None, None], fail_at_step=2)
    assert core.failure == "ZeroDivisionError: by the fake"


@pytest.mark.parametrize(("error", "config"), [("config", True), ("crash", False)])
def test_failing_start(error, config):
    (failed,) = run([], start_error=error)
    assert isinstance(failed, EngineFailed)
    assert failed.config is config
