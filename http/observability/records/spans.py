"""Spans: one OpenTelemetry trace a request, made from its record when it has ended (--enable-trace, extra `otel`)."""

from typing import Any, Self

from palladio.http.observability.records.request_record import RequestRecord, SampleRecord
from palladio.runtime.interface.errors import ConfigError

_INSTALL = "--enable-trace needs the OpenTelemetry packages: run `pip install '.[otel]'` in Palladio's repository"
TIMEOUT = 3  # seconds for one batch; how long the end of the server may wait for a collector that is gone
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/generate": "generate_content"}


class Spans:
    """A span for the request, with children queue, prefill and decode for each sample.

    Args:
        processor: an OpenTelemetry SpanProcessor, which gets the spans.
        model: the served name.
    """

    def __init__(self, processor: Any, model: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(f"{_INSTALL} ({error})") from error
        self._provider = TracerProvider(resource=Resource.create({"service.name": "palladio"}))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("palladio")
        self._trace = trace
        self._extract = TraceContextTextMapPropagator().extract
        self._model = model

    @classmethod
    def connect(cls, endpoint: str, model: str) -> Self:
        """Sends to a collector, in a thread of its own.

        Args:
            endpoint: host:port speaks gRPC, a URL with a path speaks HTTP.

        Raises:
            ConfigError: the extra is not installed.
        """
        scheme, _, rest = endpoint.rpartition("://")
        try:
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            if scheme and "/" in rest.rstrip("/"):
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

                exporter: Any = HttpExporter(endpoint, timeout=TIMEOUT)
            else:
                from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

                exporter = GrpcExporter(endpoint, insecure=scheme != "https", timeout=TIMEOUT)
        except ImportError as error:
            raise ConfigError(f"{_INSTALL} ({error})") from error
        return cls(BatchSpanProcessor(exporter), model)

    def record(self, record: RequestRecord) -> None:
        """A request has ended."""
        operation = _OPERATIONS.get(record.origin.route, "generate_content")
        ends = [sample.end.times.finished for sample in record.samples if sample.end and sample.end.times]
        finished = max((end for end in ends if end is not None), default=None)
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=self._extract(record.origin.headers),
            kind=self._trace.SpanKind.SERVER,
            start_time=_nanoseconds(record.received),
            attributes=_attributes(record, operation, self._model),
        )
        if record.error is not None:
            span.set_status(self._trace.StatusCode.ERROR, record.error)
        inside = self._trace.set_span_in_context(span)
        for index, sample in enumerate(record.samples):
            for name, begin, end in _parts(sample):
                part = self._tracer.start_span(
                    name, context=inside, start_time=_nanoseconds(begin), attributes={"palladio.sample": index}
                )
                part.end(_nanoseconds(end))
        span.end(None if finished is None else _nanoseconds(finished))

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _parts(sample: SampleRecord) -> list[tuple[str, float, float]]:
    times = None if sample.end is None else sample.end.times
    if times is None:
        return []
    bounds = (
        ("queue", times.received, times.scheduled),
        ("prefill", times.scheduled, times.first_token),
        ("decode", times.first_token, times.finished),
    )
    return [(name, begin, end) for name, begin, end in bounds if begin is not None and end is not None]


def _attributes(record: RequestRecord, operation: str, model: str) -> dict[str, Any]:
    params = record.requests[0].params
    ends = [sample.end for sample in record.samples if sample.end is not None]
    prompts = [
        sample.end for sample in (record.samples[request.first_index] for request in record.requests) if sample.end
    ]
    finishes = [end.finish.type for end in ends if end.finish is not None]
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "palladio",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": record.name,
        "gen_ai.response.finish_reasons": finishes,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.choice.count": params.n,
        **({} if params.max_tokens is None else {"gen_ai.request.max_tokens": params.max_tokens}),
        "gen_ai.usage.input_tokens": sum(end.prompt_tokens for end in prompts),
        "gen_ai.usage.output_tokens": sum(end.completion_tokens for end in ends),
        "palladio.cached_tokens": sum(end.cached_tokens for end in prompts),
        "palladio.num_retractions": sum(end.num_retractions for end in ends),
        "http.route": record.origin.route,
    }
