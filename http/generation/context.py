"""Context: the services that routes use. What is known of the model is a value of its own, ModelFacts."""

import dataclasses
import functools
import time
from typing import Any

from palladio.http.generation.model_facts import FactsKeeper, ModelFacts, ModelNames, served_names
from palladio.http.observability.observer import Observer
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.text_encoding import TextEncoder
from palladio.http.response_templates.readers import TemplateReaders
from palladio.http.security.callers import Callers, RequestsById
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.storage.storage import Storage
from palladio.http.wire.field_warnings import NoteWarning, Warnings
from palladio.runtime.front.requests.engine_protocol import EngineClient, not_ready
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import (
    EngineDeadError,
    EngineNotReadyError,
    InvalidRequestError,
)
from palladio.runtime.interface.request.embedding import EmbeddingSpec

BASE_BYTES = 8 << 20  # for tools, schemas, and prompts side by side
TOKEN_BYTES = 64  # of the context: a token is about 4 bytes of English, 9 of escaped Chinese, 8 as an id
MOST_BYTES = 32 << 20  # by default
BASE_VALUES = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class RequestLimits:
    """Of one server. While the model's context is not known, they are the largest."""

    engine: EngineClient
    config: HttpConfig

    @property
    def max_bytes(self) -> int:
        """Of a body, or of a line of a batch."""
        if self.config.max_request_bytes is not None:
            return self.config.max_request_bytes
        return min(BASE_BYTES + TOKEN_BYTES * self._context_length, MOST_BYTES)

    @property
    def max_values(self) -> int:
        """Of its JSON: see json_cost. A prompt of token ids that fits the context fits here."""
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
                "this server makes embeddings (--is-embedding) and generates no text: use /v1/embeddings, or start it "
                "without --is-embedding"
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
        """Those that the model answers to, ready or not."""
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
