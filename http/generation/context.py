"""What a route works with: the services of the app (Context), one request (Call), and the route itself (Endpoint)."""

import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, Self, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive

from palladio.http.generation.model_facts import FactsKeeper, ModelFacts, ModelNames, served_names
from palladio.http.generation.params import request_options
from palladio.http.observability.observer import Observer
from palladio.http.observability.records.request_record import Origin
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.text_encoding import TextEncoder
from palladio.http.response_templates.readers import TemplateReaders
from palladio.http.security.callers import Caller, Callers, RequestsById
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.storage.storage import Storage
from palladio.http.wire.body import JsonBody, describe_body, parse_noting, until_disconnect
from palladio.http.wire.fields import NONE_PASS, NoteWarning, Warnings
from palladio.http.wire.protocol import PromptFields, WireModel
from palladio.runtime.front.requests.engine_protocol import EngineClient, not_ready
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError, InvalidRequestError
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.generation_request import RequestOptions

T = TypeVar("T")
B = TypeVar("B", bound=WireModel)

_TRACE_HEADERS = ("traceparent", "tracestate")

BASE_BYTES = 8 << 20  # for tools, schemas, and prompts side by side
TOKEN_BYTES = 64  # of the context: a token is about 4 bytes of English, 9 of escaped Chinese, 8 as an id
MOST_BYTES = 32 << 20  # by default
BASE_VALUES = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of requests; the largest ones while the model's context length is not known."""

    engine: EngineClient
    config: HttpConfig

    @property
    def max_bytes(self) -> int:
        """Bytes of a body, or of a line of a batch."""
        if self.config.max_request_bytes is not None:
            return self.config.max_request_bytes
        return min(BASE_BYTES + TOKEN_BYTES * self._context_length, MOST_BYTES)

    @property
    def max_values(self) -> int:
        """Values of its JSON, as `json_cost` counts them: enough for token ids that fill the context."""
        if self.config.max_request_values is not None:
            return self.config.max_request_values
        return BASE_VALUES + self._context_length

    @property
    def _context_length(self) -> int:
        try:
            return LengthLimit.of(self.engine.info).limit
        except (EngineNotReadyError, EngineDeadError):
            return (MOST_BYTES - BASE_BYTES) // TOKEN_BYTES


@dataclasses.dataclass(frozen=True)
class Context:
    """Built once per app.

    Attributes:
        encoder: for prompts to generate from.
        observer: sees every request.
        storage: for what outlives requests.
        callers: who may ask, by API keys.
        running: the requests that are with the engine.
        template_readers: read answers by the tokenizer's response template.
    """

    engine: EngineClient
    config: HttpConfig
    chat_template: ChatTemplate
    encoder: TextEncoder
    observability: ObservabilityConfig
    observer: Observer
    storage: Storage
    callers: Callers
    started: float = dataclasses.field(default_factory=time.time)
    running: RequestsById = dataclasses.field(default_factory=RequestsById)
    template_readers: TemplateReaders = dataclasses.field(default_factory=TemplateReaders)

    def require_ready(self) -> None:
        """
        Raises:
            EngineNotReadyError: loading or draining.
            EngineDeadError: it ended.
        """
        if self.engine.state != "ready":
            raise not_ready(self.engine)

    def require_generation(self) -> None:
        """
        Raises:
            EngineNotReadyError, EngineDeadError: no engine runs.
            InvalidRequestError: it makes embeddings.
        """
        self.require_ready()
        spec = self.engine.info.embedding
        if spec is not None:
            raise InvalidRequestError(
                "this server's model is an encoder, which makes embeddings and generates no text: use /v1/embeddings"
                if spec.is_encoder and spec.classes is None
                else "this server makes embeddings (--is-embedding) and generates no text: use /v1/embeddings, or "
                "start it without --is-embedding"
                if spec.classes is None
                else "this server's model classifies texts and generates no text: use /v1/classify, /v1/score or "
                "/v1/rerank"
            )

    def metadata(self) -> dict[str, Any]:
        """What an answer of chat or completions says of the weights, as SGLang's do."""
        return {"metadata": {"weight_version": self.engine.model.version}}

    def require_embedding(self) -> EmbeddingSpec:
        """The embeddings that the engine makes.

        Raises:
            EngineNotReadyError, EngineDeadError: no engine runs.
            InvalidRequestError: it generates text.
        """
        self.require_ready()
        if self.engine.info.embedding is None:
            raise InvalidRequestError("this server generates text: start it with --is-embedding to get embeddings")
        return self.engine.info.embedding

    def require_classes(self) -> EmbeddingSpec:
        """The logits that the engine makes.

        Raises:
            EngineNotReadyError, EngineDeadError: no engine runs.
            InvalidRequestError: its model has no head that classifies.
        """
        self.require_ready()
        spec = self.engine.info.embedding
        if spec is None or spec.classes is None:
            does = "generates text" if spec is None else "makes embeddings"
            raise InvalidRequestError(
                f"this server {does}, and its model has no classes: serve a …ForSequenceClassification model with "
                "--is-embedding"
            )
        return spec

    @functools.cached_property
    def _facts(self) -> FactsKeeper:
        return FactsKeeper(self.engine, self.config, self.chat_template)

    @property
    def names(self) -> ModelNames:
        """The names that the model answers to, ready or not."""
        return served_names(self.config, self.engine.config)

    @property
    def facts(self) -> ModelFacts:
        """What is known of the model.

        Raises:
            EngineNotReadyError: still starting.
        """
        return self._facts.facts()

    @functools.cached_property
    def limits(self) -> RequestLimits:
        """How large requests may be."""
        return RequestLimits(self.engine, self.config)

    @functools.cached_property
    def counting_encoder(self) -> TextEncoder:
        """For texts that are only counted, and may be too long to answer."""
        return TextEncoder(self.engine, bounded=False)

    @functools.cached_property
    def note_warning(self) -> NoteWarning | None:
        """Counts a request's field that has no effect; None: such fields are refused (--unknown-fields)."""
        return self.observer.note_warning if self.config.unknown_fields == "warn" else None

    @property
    def no_warnings(self) -> Warnings:
        """Those of a request of which nothing has been read."""
        return Warnings(are_errors=self.note_warning is None)


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Attributes:
    request_id: the request's name, unless its body gives one.
    route: the path that was asked for.
    shown_id: the X-Request-Id that goes back.
    caller: who asks.
    headers: those that carry a distributed trace.
    receive: messages of the client, whose body has been read; None: there is no client that could go away.
    is_background: it only takes what other requests leave, see RequestOptions.
    timeout: seconds that it has where its body does not say; None: as the server's flags have it.
    warnings: of its body.
    """

    request_id: str
    route: str
    shown_id: str
    caller: Caller
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    receive: Receive | None = None
    is_background: bool = False
    timeout: float | None = None
    warnings: Warnings = NONE_PASS

    @classmethod
    def of(cls, request: Request, warnings: Warnings = NONE_PASS) -> Self:
        """The call of an HTTP request.

        Args:
            warnings: warnings about its body.
        """
        headers = {name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers}
        state = request.state
        return cls(
            *(state.request_id, request.url.path, state.shown_id, state.caller, headers, request.receive),
            warnings=warnings,
        )

    def origin(self, *, no_logs: bool | None = None, log_metrics: bool | None = None) -> Origin:
        """For the observer. Args: as the body gives them."""
        return Origin(self.route, self.shown_id, self.headers, not no_logs, log_metrics is not False, self.caller.owner)

    def options(self, body: PromptFields) -> RequestOptions:
        """
        Raises:
            InvalidRequestError: a value is out of range.
        """
        options = request_options(body)
        timeout = self.timeout if options.timeout is None else options.timeout
        return dataclasses.replace(options, background=self.is_background, timeout=timeout, owner=self.caller.owner)

    def detached(self) -> Self:
        """The same for work that goes on when the client goes away."""
        return dataclasses.replace(self, receive=None)

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, and cancels it if the client goes away first.

        Raises:
            HttpError: the client went away.
        """
        return await (work if self.receive is None else until_disconnect(self.receive, work))


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint(Generic[B]):
    """A route whose body is a model, and what answers it; batches call it without HTTP in between.

    Attributes:
        path: of the route.
        model: what its body is.
        answer: what it does; of a body without `stream: true` it gives a plain response.
    """

    path: str
    model: type[B]
    answer: Callable[[Context, Call, B], Awaitable[Response]]

    async def run(self, context: Context, call: Call, body: object) -> Response:
        """Run the route on a body.

        Args:
            body: decoded JSON.

        Raises:
            PalladioError, HttpError: as the route does.
        """
        parsed, warnings = parse_noting(self.model, body, context.note_warning)
        return await self.answer(context, dataclasses.replace(call, warnings=warnings), parsed)

    def add_to(self, router: APIRouter, context: Context, *, by_put: bool = False) -> None:
        """Adds the route.

        Args:
            by_put: the method is PUT, and the schema leaves the route out.
        """
        reader = JsonBody(self.model, context.note_warning)

        async def route(request: Request) -> Response:
            body, warnings = await reader.read(request)
            return await self.answer(context, Call.of(request, warnings), body)

        class DirectRoute(APIRoute):
            """Without FastAPI's own reading of requests, which has nothing to do here and takes a tenth of a start."""

            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                return route

        router.add_api_route(
            self.path,
            route,
            route_class_override=DirectRoute,
            name=self.path.removeprefix("/v1").strip("/").replace("/", "_"),
            methods=["PUT" if by_put else "POST"],
            response_model=None,
            include_in_schema=not by_put,
            openapi_extra=describe_body(self.model),
        )
