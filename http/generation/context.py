"""What every route needs: the engine, the configuration and what follows from the two."""

import dataclasses
import functools
import hashlib
import time
from collections.abc import Mapping
from typing import Any

from palladio.http.observability.observer import Observer
from palladio.http.prompts.chat_messages import TextEncoder, Truncation
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.reasoning_detection import ModelTraits, choose_family
from palladio.http.reasoning.family import ReasoningFamily
from palladio.http.security.callers import Callers, RequestsById
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.http.storage.storage import Storage
from palladio.http.tool_calls.detection import choose_format
from palladio.http.tool_calls.formats import ToolFormat
from palladio.http.wire.errors import NoteWarning
from palladio.runtime.front.requests.engine_protocol import EngineClient, not_ready
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import (
    EngineDeadError,
    EngineNotReadyError,
    InvalidRequestError,
    ModelNotFoundError,
)
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from palladio.version import __version__

BASE_BYTES = 8 << 20  # for tools, schemas, and prompts side by side
TOKEN_BYTES = 64  # of the context: a token is about 4 bytes of English, 9 of escaped Chinese, 8 as an id
MOST_BYTES = 32 << 20  # by default
BASE_VALUES = 1_000_000
_HOW_TO_SAMPLE = frozenset(("temperature", "top_p", "top_k", "min_p"))
THE_SERVED = "default"  # a name of whatever model is served, as many examples have it


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
        observer: is told of every request.
        storage: for what outlives requests.
        callers: who may ask, by API keys.
        running: the requests that are with the engine.
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

    @property
    def tokenizer(self) -> Tokenizer:
        """
        Raises:
            InvalidRequestError: the server runs without one.
        """
        return self.encoder.tokenizer

    @functools.cached_property
    def limits(self) -> RequestLimits:
        """How large requests may be."""
        return RequestLimits(self.engine, self.config)

    @functools.cached_property
    def counting_encoder(self) -> TextEncoder:
        """For texts that are only counted, and may be too long to answer."""
        return TextEncoder(self.engine, bounded=False)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names to show; "*" only widens what is accepted."""
        names = tuple(name for name in self.config.served_model_name or () if name != "*")
        return names or (self.engine.config.source.model_path,)

    def model_name(self, asked: str | None) -> str:
        """The name to answer with.

        Raises:
            ModelNotFoundError: no such model is served here.
        """
        names = self.model_names
        if asked is None or (asked == THE_SERVED and asked not in names):
            return names[0]
        if asked not in names and not self.takes_any_name:
            raise ModelNotFoundError(
                f"the model {asked!r} is not served here; served: {', '.join(names)} "
                '(--served-model-name "*" accepts any name)'
            )
        return asked

    @property
    def takes_any_name(self) -> bool:
        """Whether the model answers to names that are not its own."""
        return "*" in (self.config.served_model_name or ())

    def is_name(self, asked: str) -> bool:
        """Whether this is a name of the model, and not just accepted."""
        return asked == THE_SERVED or asked in self.model_names

    @functools.cached_property
    def note_warning(self) -> NoteWarning | None:
        """Is told of a request's fields that have no effect; None: they are refused (--unknown-fields)."""
        return self.observer.note_warning if self.config.unknown_fields == "warn" else None

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """By the names of SamplingParams; of max_tokens see `sampling.default_length`."""
        of_model = self.engine.sampling_defaults if self.config.sampling_defaults == "model" else {}
        return {**of_model, **self._preferred}

    @property
    def chat_sampling(self) -> Mapping[str, Any]:
        """What our own chats send where neither the model's files nor the flags say how to sample: at temperature 1,
        small models write nonsense."""
        is_told = self.config.sampling_defaults != "model" or _HOW_TO_SAMPLE & self.sampling_defaults.keys()
        return {} if is_told else {"temperature": 0.7, "min_p": 0.05}

    @functools.cached_property
    def _preferred(self) -> Mapping[str, Any]:
        return self.config.preferred_defaults

    def truncation(self, asked: int | None, reserved: int | None) -> Truncation | None:
        """What becomes of a prompt that is too long: see `Truncation.of`."""
        room = LengthLimit.of(self.engine.info)
        return Truncation.of(room, asked, reserved, is_automatic=self.config.allow_auto_truncate)

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together that a request may have here."""
        return LengthLimit.of(self.engine.info).limit

    @functools.cached_property
    def reasoning(self) -> ReasoningFamily | None:
        """How the model reasons; None: it is not known to.

        Raises:
            EngineNotReadyError: still starting.
        """
        traits = ModelTraits(
            self.engine.config.source.model_path,
            self.engine.info.model_type,
            self.chat_template.source(self.tokenizer),
        )
        return choose_family(self.config.reasoning_parser, traits)

    @functools.cached_property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls.

        Raises:
            EngineNotReadyError: still starting.
            InvalidRequestError: the server runs without a tokenizer.
        """
        return choose_format(
            self.config.tool_call_parser,
            template=self.chat_template.source(self.tokenizer, tools=True),
            model_type=self.engine.info.model_type,
            tokenizer=self.tokenizer,
        )

    @property
    def takes_tools(self) -> bool:
        """Whether requests to a model with a tokenizer may have tools. Where the chat template does not write them, the
        prompt has them as plain text, and the answer a warning."""
        if self.chat_template.source(self.tokenizer) is None:
            return False
        return self.chat_template.reads_tools(self.tokenizer) or self.note_warning is not None

    def template_warnings(self) -> list[str]:
        """Lines for the log, about a ready engine: see `ChatTemplate.warnings`."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None or self.engine.info.embedding is not None or not self.chat_template.source(tokenizer):
            return []
        return self.chat_template.warnings(tokenizer, self.tool_format)

    @functools.cached_property
    def system_fingerprint(self) -> str:
        """Changes with anything that may change the tokens of a seeded request.

        Raises:
            EngineNotReadyError: still starting.
        """
        info = self.engine.info
        parts = (__version__, self.engine.config.source.model_path, info.architecture, info.dtype, info.device)
        return "fp_" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:10]
