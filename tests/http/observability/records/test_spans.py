"""OpenTelemetry: one trace a request, made when it has ended."""

import sys
from collections.abc import Callable

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from palladio.http.app import create_app
from palladio.http.observability.observer import Observer
from palladio.http.observability.records.spans import Spans
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.errors import ConfigError
from tests.fake_engine import CACHED_TOKENS, FakeEngine

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"prompt": "Hello", "max_tokens": 3, "temperature": 0.5, "ignore_eos": True, "rid": "r1"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def client(observe: Callable[..., httpx.Client], exporter: InMemorySpanExporter) -> httpx.Client:
    return observe(Observer(ObservabilityConfig(), Spans(SimpleSpanProcessor(exporter), "tiny")))


def test_a_request_is_a_span_with_its_stages(client: httpx.Client, exporter: InMemorySpanExporter) -> None:
    answer = client.post("/v1/completions", json=BODY).json()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"text_completion tiny", "queue", "prefill", "decode"}
    whole = spans["text_completion tiny"]
    assert whole.attributes["gen_ai.operation.name"] == "text_completion"
    assert whole.attributes["gen_ai.response.id"] == "r1"
    assert whole.attributes["gen_ai.request.temperature"] == 0.5
    assert whole.attributes["gen_ai.request.max_tokens"] == 3
    assert whole.attributes["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert whole.attributes["gen_ai.usage.output_tokens"] == 3
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert whole.attributes["palladio.cached_tokens"] == CACHED_TOKENS
    assert whole.parent is None
    assert whole.status.is_ok
    for name in ("queue", "prefill", "decode"):
        assert spans[name].parent.span_id == whole.context.span_id
    assert spans["queue"].start_time == whole.start_time
    assert spans["queue"].end_time == spans["prefill"].start_time
    assert (spans["queue"].end_time - spans["queue"].start_time) / 1e9 == pytest.approx(0.5, abs=1e-3)
    assert spans["decode"].end_time == whole.end_time


def test_it_joins_the_clients_trace(client: httpx.Client, exporter: InMemorySpanExporter) -> None:
    client.post("/v1/completions", json=BODY, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    spans = exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    assert f"{spans[-1].parent.span_id:016x}" == PARENT


def test_every_sample_has_its_stages(client: httpx.Client, exporter: InMemorySpanExporter) -> None:
    client.post("/v1/completions", json=BODY | {"n": 2})
    decodes = [span for span in exporter.get_finished_spans() if span.name == "decode"]
    assert [span.attributes["palladio.sample"] for span in decodes] == [0, 1]


def test_failures_are_errors(client: httpx.Client, exporter: InMemorySpanExporter, engine: FakeEngine) -> None:
    engine.abort_status, engine.fail_after = 504, 1
    client.post("/v1/completions", json=BODY)
    whole = exporter.get_finished_spans()[-1]
    assert not whole.status.is_ok
    assert whole.status.description == "the engine gave up"


@pytest.mark.parametrize("endpoint", ["localhost:4317", "http://localhost:4318/v1/traces"])
def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    for name in list(sys.modules):
        if name.startswith("opentelemetry"):
            monkeypatch.setitem(sys.modules, name, None)
    config = ObservabilityConfig(enable_trace=True, otlp_traces_endpoint=endpoint)
    with pytest.raises(ConfigError, match=r"pip install '\.\[otel\]'"):
        create_app(FakeEngine(None), HttpConfig(), config)
    with pytest.raises(ConfigError, match=r"pip install '\.\[otel\]'"):
        Spans(None, "tiny")
