"""What the routes share: the fingerprint, the limits, the answer while the engine is not ready."""

import asyncio
import dataclasses
import threading

import pytest

from palladio import __version__
from palladio.http.generation.context import Context
from palladio.http.observability.observer import Observer
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.text_encoding import LONG_TEXT, TextEncoder, run_encoding
from palladio.http.security.callers import Callers
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.storage.storage import Storage
from palladio.http.wire.errors import error_body
from palladio.runtime.front.requests.engine_protocol import not_ready
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import (
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    EngineNotReadyError,
    GenerationError,
    InvalidRequestError,
    PalladioError,
    RequestAbortedError,
    request_error,
)
from palladio.runtime.interface.messages.engine_state import EngineReady, LoadProgress
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.state.new_tokens import NOT_FINITE
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine


class SmallPoolEngine(FakeEngine):
    """Its KV cache holds less than the model's context."""

    @property
    def info(self) -> EngineReady:
        return dataclasses.replace(super().info, context_length=4096, max_total_tokens=100)


def context_of(engine: FakeEngine) -> Context:
    config = HttpConfig()
    told = ObservabilityConfig()
    return Context(
        engine,
        config,
        ChatTemplate(config),
        TextEncoder(engine, bounded=True),
        told,
        Observer(told),
        Storage.temporary(),
        Callers.of(config),
    )


def test_fingerprint_is_computed_once(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(engine)
    engine.state = "starting"
    with pytest.raises(EngineNotReadyError):
        _ = context.facts.system_fingerprint
    engine.state = "ready"
    first = context.facts.system_fingerprint
    monkeypatch.setattr("palladio.http.generation.model_facts.hashlib.sha256", None)
    assert context.facts.system_fingerprint is first
    assert first.startswith("fp_")


def test_fingerprint_follows_the_version(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = context_of(engine).facts.system_fingerprint
    assert context_of(engine).facts.system_fingerprint == before
    monkeypatch.setattr("palladio.http.generation.model_facts.__version__", __version__ + ".1")
    assert context_of(engine).facts.system_fingerprint != before


def test_facts_hold_as_long_as_what_they_are_made_of(engine: FakeEngine) -> None:
    context = context_of(engine)
    facts = context.facts
    assert context.facts is facts
    assert dict(facts.sampling_defaults) == {}
    engine.sampling_defaults = {"temperature": 0.5}
    assert dict(context.facts.sampling_defaults) == {"temperature": 0.5}
    engine.embedding = EmbeddingSpec(8, "last", normalized=True)
    assert context.facts.info.embedding is not None
    engine.tokenizer = None
    with pytest.raises(InvalidRequestError, match="--skip-tokenizer-init"):
        _ = context.facts.tool_format


def test_not_ready(engine: FakeEngine) -> None:
    context = context_of(engine)
    context.require_ready()
    engine.progress = LoadProgress("load", 1, 2)
    engine.failure = "out of memory"
    for state, kind, word in (
        ("starting", EngineNotReadyError, "load: 1 of 2"),
        ("restarting", EngineNotReadyError, r"restarting after a failure \(out of memory\); try again soon"),
        ("draining", EngineNotReadyError, "shutting down"),
        ("dead", EngineDeadError, "out of memory"),
    ):
        engine.state = state
        with pytest.raises(kind, match=word) as caught:
            context.require_ready()
        assert str(caught.value) == str(not_ready(engine))


def test_the_smaller_limit_counts_and_is_named(tokenizer: Tokenizer) -> None:
    context = context_of(SmallPoolEngine(tokenizer))
    assert context.facts.max_model_len == 100
    with pytest.raises(ContextLengthError, match=r"--max-total-tokens.*100 tokens"):
        context.encoder.encode("word " * LONG_TEXT)
    with pytest.raises(ContextLengthError, match=r"model's context length \(2048 tokens\)"):
        TextEncoder(FakeEngine(tokenizer), bounded=True).encode("word " * LONG_TEXT)
    assert len(TextEncoder(context.engine, bounded=False).encode("word " * LONG_TEXT)) > LONG_TEXT


@pytest.mark.parametrize(
    ("finish_status", "kind", "status", "code"),
    [
        (0, RequestAbortedError, 499, "request_aborted"),
        (499, RequestAbortedError, 499, "request_aborted"),
        (500, GenerationError, 500, "generation_failed"),
        (503, PalladioError, 503, "overloaded"),
        (504, DeadlineError, 504, "deadline_exceeded"),
        (400, PalladioError, 400, None),
    ],
)
def test_the_engines_statuses(finish_status: int, kind: type[PalladioError], status: int, code: str | None) -> None:
    error = request_error(finish_status, "why")
    assert isinstance(error, kind)
    body = error_body(error)
    assert (body.status, body.code, body.message) == (status, code, "why")


def test_logits_that_are_not_finite_are_the_servers_fault() -> None:
    assert isinstance(NOT_FINITE.error("the engine refused the request"), GenerationError)


@pytest.mark.parametrize(
    ("num_prompt", "min_tokens", "max_tokens"), [(10, 0, 16), (90, 0, 10), (99, 0, 1), (100, 0, 16), (10, 40, 40)]
)
def test_a_default_length_makes_way_for_the_prompt(
    tokenizer: Tokenizer, num_prompt: int, min_tokens: int, max_tokens: int
) -> None:
    room = LengthLimit.of(SmallPoolEngine(tokenizer).info)
    request = GenerationRequest("r", [5] * num_prompt, SamplingParams(min_tokens=min_tokens), default_length=16)
    assert room.fit(request).max_tokens == max_tokens


def test_only_long_texts_leave_the_event_loop() -> None:
    async def main() -> None:
        assert await run_encoding(threading.get_ident, LONG_TEXT) == threading.get_ident()
        assert await run_encoding(threading.get_ident, LONG_TEXT + 1) != threading.get_ident()

    asyncio.run(main())
