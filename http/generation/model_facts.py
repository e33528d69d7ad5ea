"""ModelFacts: what requests need to know of the served model, as values."""

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Mapping
from typing import Any

from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.reasoning_detection import ModelTraits, choose_family
from palladio.http.prompts.text_encoding import Truncation, required
from palladio.http.reasoning.family import ReasoningFamily
from palladio.http.reasoning.registry import AUTO, BY_TEMPLATE
from palladio.http.response_templates.spec import ResponseSpec
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.detection import choose_format
from palladio.http.tool_calls.json_formats import response_template
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, ModelNotFoundError
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from palladio.version import __version__

logger = logging.getLogger(__name__)

THE_SERVED = "default"  # a name of whatever model is served, as many examples have it
_HOW_TO_SAMPLE = frozenset(("temperature", "top_p", "top_k", "min_p"))


@dataclasses.dataclass(frozen=True, slots=True)
class ModelNames:
    """The names that the model answers to.

    Attributes:
        shown: its own; answers carry the first.
        takes_any: it answers to names that are not its own, too.
    """

    shown: tuple[str, ...]
    takes_any: bool

    def answering(self, asked: str | None) -> str:
        """The name to answer with.

        Raises:
            ModelNotFoundError: no such model is served here.
        """
        names = self.shown
        if asked is None or (asked == THE_SERVED and asked not in names):
            return names[0]
        if asked not in names and not self.takes_any:
            raise ModelNotFoundError(
                f"the model {asked!r} is not served here; served: {', '.join(names)} "
                '(--served-model-name "*" accepts any name)'
            )
        return asked

    def has(self, asked: str) -> bool:
        """Whether this is a name of the model, and not just accepted."""
        return asked == THE_SERVED or asked in self.shown


def served_names(config: HttpConfig, engine: EngineConfig) -> ModelNames:
    """Those of --served-model-name, of which "*" only widens what is accepted; else the model's path."""
    given = config.served_model_name or ()
    names = tuple(name for name in given if name != "*")
    return ModelNames(names or (engine.source.model_path,), "*" in given)


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """A model that is ready.

    Attributes:
        info: what the engine has chosen.
        loaded_tokenizer: None: the server runs without one.
        loaded_defaults: default sampling fields of the checkpoint.
        template: renders its chats.
    """

    config: HttpConfig
    engine: EngineConfig
    info: EngineReady
    loaded_tokenizer: Tokenizer | None
    loaded_defaults: Mapping[str, Any]
    template: ChatTemplate

    def hold(
        self, engine: EngineConfig, info: EngineReady, tokenizer: Tokenizer | None, defaults: Mapping[str, Any]
    ) -> bool:
        """Whether they are those of an engine that has these."""
        is_same = self.engine is engine and self.loaded_tokenizer is tokenizer and self.loaded_defaults is defaults
        return is_same and (self.info is info or self.info == info)

    @property
    def tokenizer(self) -> Tokenizer:
        """
        Raises:
            InvalidRequestError: the server runs without one.
        """
        return required(self.loaded_tokenizer)

    @functools.cached_property
    def room(self) -> LengthLimit:
        """Most tokens of prompt and output together that a request may have here, and what limits them."""
        return LengthLimit.of(self.info)

    @property
    def max_model_len(self) -> int:
        """Tokens of `room`."""
        return self.room.limit

    def truncation(self, asked: int | None, reserved: int | None) -> Truncation | None:
        """What becomes of a prompt that is too long: see `Truncation.of`."""
        return Truncation.of(self.room, asked, reserved, is_automatic=self.config.allow_auto_truncate)

    @functools.cached_property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """By the names of SamplingParams; of max_tokens see `params.default_length`."""
        of_model = self.loaded_defaults if self.config.sampling_defaults == "model" else {}
        return {**of_model, **self.config.preferred_defaults}

    @property
    def chat_sampling(self) -> Mapping[str, Any]:
        """What our own chats send where neither the model's files nor the flags say how to sample: at temperature 1,
        small models write nonsense."""
        is_given = self.config.sampling_defaults != "model" or _HOW_TO_SAMPLE & self.sampling_defaults.keys()
        return {} if is_given else {"temperature": 0.7, "min_p": 0.05}

    @functools.cached_property
    def response(self) -> ResponseSpec | None:
        """How the checkpoint itself says that its answers are read; None: it does not, or the flags name parsers.

        Raises:
            ConfigError: a flag asks for what the checkpoint does not have.
        """
        flags = {"--tool-call-parser": self.config.tool_call_parser, "--reasoning-parser": self.config.reasoning_parser}
        asked = [f"{flag} {name}" for flag, name in flags.items() if name in BY_TEMPLATE]
        others = [f"{flag} {name}" for flag, name in flags.items() if name not in (*BY_TEMPLATE, AUTO)]
        if others and asked:
            raise ConfigError(f"{asked[0]} reads reasoning and calls alike: leave out {others[0]}")
        if others:
            return None
        try:
            spec = ResponseSpec.of(self.tokenizer)
        except ConfigError as error:
            if asked:
                raise ConfigError(f"{asked[0]}: {error}") from None
            logger.warning("%s; it is left out", error)
            return None
        if spec is None and asked:
            raise ConfigError(f"{asked[0]}: the tokenizer has no response_template; leave the flag out")
        if spec is not None:
            logger.info("Reading answers by the tokenizer's response_template")
        return spec

    @functools.cached_property
    def reasoning(self) -> ReasoningFamily | None:
        """How the model reasons; None: it is not known to."""
        family: ReasoningFamily | None
        if self.response is not None:
            family = self.response.family(self.template.variables(self.tokenizer))
        else:
            source = self.template.source(self.tokenizer)
            traits = ModelTraits(self.engine.source.model_path, self.info.model_type, source)
            family = choose_family(self.config.reasoning_parser, traits)
        if family is None or self.config.empty_answer == "close":
            return family
        return dataclasses.replace(family, answers=False)

    @functools.cached_property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls.

        Raises:
            InvalidRequestError: the server runs without a tokenizer.
        """
        if self.response is not None:
            return response_template(is_json=self.response.calls_are_json)
        return choose_format(
            self.config.tool_call_parser,
            template=self.template.source(self.tokenizer, tools=True),
            model_type=self.info.model_type,
            tokenizer=self.tokenizer,
        )

    @functools.cached_property
    def forbidden_thoughts(self) -> tuple[int, ...]:
        """Ids of the marks of tool calls that are one token, if they may not stand in reasoning."""
        family = self.reasoning
        if not self.config.enable_strict_thinking or family is None:
            return ()
        marks = (mark for mark in self.tool_format.special if not any(mark in border for border in family.borders))
        found = map(self.tokenizer.added_id, marks)
        return tuple(mark for mark in found if mark is not None)

    @property
    def takes_tools(self) -> bool:
        """Whether requests to a model with a tokenizer may have tools. Where the chat template does not write them, the
        prompt has them as plain text, and the answer a warning."""
        if self.template.source(self.tokenizer) is None:
            return False
        return self.template.reads_tools(self.tokenizer) or self.config.unknown_fields == "warn"

    @property
    def template_warnings(self) -> list[str]:
        """Lines for the log: those of `ChatTemplate.warnings`, and one of a flag that has no effect on this model."""
        tokenizer = self.loaded_tokenizer
        if tokenizer is None or self.info.embedding is not None or not self.template.source(tokenizer):
            return []
        fields = () if self.response is None else self.response.left_out
        left_out = [f"the response_template has fields that answers leave out: {', '.join(fields)}"] if fields else []
        warnings = [*left_out, *self.template.warnings(tokenizer, self.tool_format)]
        if self.config.enable_strict_thinking and not self.forbidden_thoughts:
            reason = "its tool calls have no mark that is one token" if self.reasoning else "it has no reasoning parser"
            warnings = [*warnings, f"--enable-strict-thinking has no effect for this model: {reason}"]
        return warnings

    @functools.cached_property
    def system_fingerprint(self) -> str:
        """Changes with anything that may change the tokens of a seeded request."""
        info = self.info
        parts = (__version__, self.engine.source.model_path, info.architecture, info.dtype, info.device)
        return "fp_" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:10]


class FactsKeeper:
    """Makes the facts of an engine's model, once for as long as they hold."""

    def __init__(self, engine: EngineClient, config: HttpConfig, template: ChatTemplate) -> None:
        self._engine = engine
        self._config = config
        self._template = template
        self._last: ModelFacts | None = None

    def facts(self) -> ModelFacts:
        """
        Raises:
            EngineNotReadyError: still starting.
        """
        engine, last = self._engine, self._last
        info, tokenizer, defaults = engine.info, engine.tokenizer, engine.sampling_defaults
        if last is None or not last.hold(engine.config, info, tokenizer, defaults):
            self._last = last = ModelFacts(self._config, engine.config, info, tokenizer, defaults, self._template)
        return last
