"""The errors that Palladio raises, in one tree:

    PalladioError
    ├── InvalidRequestError          the request is wrong; names the field (HTTP 400)
    │   ├── ContextLengthError       prompt, or prompt + max_tokens, longer than the context (400)
    │   └── ModelNotFoundError       no such model is served here (404)
    ├── ConfigError                  a flag, a config value or a checkpoint is wrong; found at start-up
    │   ├── UnsupportedFlagError     a flag asks for what is not here
    │   ├── FlagErrors               several flags are wrong
    │   └── CheckpointError          a weight is missing, unexpected, misshapen or unreadable
    │       └── MissingKeysError     a weight is missing
    ├── OverloadedError              try again later (503 with Retry-After)
    │   └── EngineNotReadyError      the engine is starting, restarting or shutting down (503)
    ├── RequestAbortedError          the request was aborted before it ended (499)
    ├── GenerationError              generation failed for this request; other requests continue (500)
    ├── DeviceTakenError             another process has the TPU or GPU, and did not release it in time
    ├── ReadBackError                a device holds other weights than were read from the files
    ├── HostLostError                another host that runs this model did not connect, or was lost
    ├── DeadlineError                the request's timeout passed before it ended (504)
    └── EngineDeadError              the engine failed or was shut down (503)

Every message says what was wrong and what to change. The branch that a model can raise is rooted in `model.errors`.
"""

import dataclasses
import string
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self

from palladio.model.base.errors import CheckpointError as CheckpointError
from palladio.model.base.errors import ConfigError as ConfigError
from palladio.model.base.errors import MissingKeysError as MissingKeysError
from palladio.model.base.errors import PalladioError as PalladioError
from palladio.model.base.errors import ReadBackError as ReadBackError

_FORMATTER = string.Formatter()


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """What is wrong, in words, with the fields that the words mention kept apart: each route has its own names of them.

    Attributes:
        parts: texts, and between each two of them the path of a field. What a caller sent stands in the texts, and is
            never taken for a field.
    """

    parts: tuple[str, ...]

    @classmethod
    def of(cls, template: str, fields: Mapping[str, str | Sequence[str]], values: Mapping[str, object]) -> Self:
        """
        Args:
            template: words, with {placeholders} as of `str.format`.
            fields: placeholder → the path of a field, or several, which "and" joins.
            values: placeholder → what is written there.
        """
        parts = [""]
        for text, name, spec, conversion in _FORMATTER.parse(template):
            parts[-1] += text
            if name is None:
                continue
            if name not in fields:
                parts[-1] += _FORMATTER.format_field(_FORMATTER.convert_field(values[name], conversion), spec or "")
                continue
            given = fields[name]
            paths = [given] if isinstance(given, str) else given
            for position, path in enumerate(paths):
                parts[-1] += " and " if position else ""
                parts += [path, ""]
        return cls(tuple(parts))

    def rename(self, name: Callable[[str], str]) -> Self:
        """The same message with other names of fields.

        Args:
            name: gives the name of a path.
        """
        renamed = (name(part) if position % 2 else part for position, part in enumerate(self.parts))
        return dataclasses.replace(self, parts=tuple(renamed))

    def __str__(self) -> str:
        return "".join(self.parts)


class UnsupportedFlagError(ConfigError):
    """A flag asks for a feature that is not here.

    Attributes:
        flag: as typed, with its value if the value is what is missing.
        feature: a sentence about the feature, the same for all flags of it.
    """

    def __init__(self, message: str, *, flag: str, feature: str) -> None:
        super().__init__(message)
        self.flag = flag
        self.feature = feature


class FlagErrors(ConfigError):  # noqa: N818 - it is several errors
    """Several flags of a command are wrong.

    Attributes:
        sentences: one for each missing feature, however many flags name it, and one for each other mistake.
    """

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = tuple(sentences)

    @classmethod
    def join(cls, errors: Sequence[ConfigError]) -> ConfigError:
        """Join errors, of which there is at least one; a single one stays as it is."""
        if len(errors) == 1:
            return errors[0]
        flags: dict[str, list[str]] = {}
        sentences: dict[str, str] = {}
        for error in errors:
            key = error.feature if isinstance(error, UnsupportedFlagError) else str(error)
            sentences.setdefault(key, str(error))
            if isinstance(error, UnsupportedFlagError) and error.flag not in flags.setdefault(key, []):
                flags[key].append(error.flag)
        for feature, names in flags.items():
            if len(names) > 1:
                sentences[feature] = f"{', '.join(names[:-1])} and {names[-1]} are not supported: {feature}"
        return cls(list(sentences.values()))


class InvalidRequestError(PalladioError, ValueError):
    """The request is wrong and cannot succeed unchanged.

    `InvalidRequestError(text, param=…)` is for words that stay as they are. Words that mention a field which some route
    calls otherwise go through `of`. A translation gives the error the client's names on its way out; an
    error within a stream gets them where it is answered.

    Attributes:
        message: the words.
        param: the path of the offending field, or None.
        code: a machine-readable code in OpenAI's style, such as `context_length_exceeded`, or None.
    """

    default_param: ClassVar[str | None] = None
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str | Message, *, param: str | None = None, code: str | None = None) -> None:
        self.message = message if isinstance(message, Message) else Message((message,))
        super().__init__(str(self.message))
        self.param = self.default_param if param is None else param
        self.code = self.default_code if code is None else code

    @classmethod
    def of(
        cls,
        template: str,
        /,
        *,
        param: str | None = None,
        code: str | None = None,
        fields: Mapping[str, str | Sequence[str]] | None = None,
        **values: object,
    ) -> Self:
        """An error whose words mention fields:
        `of("{param} must be ≤ {limit}, got {value!r}", param="min_tokens", fields={"limit": "max_tokens"}, value=5)`.

        Args:
            template: a constant, see `Message.of`; {param} is the offending field.
            fields: placeholder → the paths of other fields.
            values: placeholder → value.
        """
        own = {} if param is None else {"param": param}
        return cls(Message.of(template, {**own, **(fields or {})}, values), param=param, code=code)

    def rename(self, names: Mapping[str, str]) -> Self:
        """The same for a caller who writes these paths otherwise."""

        def name(path: str) -> str:
            return names.get(path, path)

        return self.renamed(name, name)

    def renamed(self, name: Callable[[str], str], param: Callable[[str], str]) -> Self:
        """The same with other names of fields.

        Args:
            name: path → the name in the words.
            param: path → the offending field's path.
        """
        path = None if self.param is None else param(self.param)
        return type(self)(self.message.rename(name), param=path, code=self.code)


@dataclasses.dataclass(frozen=True, slots=True)
class PromptLength:
    """The length of a prompt that is too long.

    Attributes:
        num_tokens: tokens of the prompt.
        limit: tokens that a prompt may have; fewer than num_tokens.
        note: more to say about these numbers.
    """

    num_tokens: int
    limit: int
    note: str = ""


class ContextLengthError(InvalidRequestError):
    """The prompt, or the prompt plus max_tokens, is longer than the context.

    Attributes:
        length: of a prompt that leaves no room for output; None: of the prompt alone there would be room.
    """

    default_code = "context_length_exceeded"
    length: PromptLength | None = None

    @classmethod
    def of_prompt(cls, message: str, num_tokens: int, limit: int, note: str = "") -> Self:
        """The error of a prompt that is too long.

        Args:
            num_tokens, limit, note: see PromptLength.
        """
        error = cls(message, param="prompt")
        error.length = PromptLength(num_tokens, limit, note)
        return error

    def renamed(self, name: Callable[[str], str], param: Callable[[str], str]) -> Self:
        renamed = super().renamed(name, param)
        renamed.length = self.length
        return renamed


class MalformedJsonError(InvalidRequestError):
    """A text of the request that should be JSON is not."""


class RenderLimitError(InvalidRequestError):
    """The chat template takes too long for the messages, or makes too much text of them."""


class ModelNotFoundError(InvalidRequestError):
    """The server does not serve a model of this name."""

    default_param = "model"
    default_code = "model_not_found"


class OverloadedError(PalladioError):
    """The server cannot accept the request now; try again later.

    Attributes:
        retry_after: seconds after which a retry makes sense.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineNotReadyError(OverloadedError):
    """The engine is starting, restarting or shutting down."""


class RequestAbortedError(PalladioError):
    """The request was aborted before it ended."""


class GenerationError(PalladioError):
    """Generation failed for this request; other requests continue."""


class DeadlineError(PalladioError):
    """The request's timeout passed before it ended."""


class DeviceTakenError(PalladioError):
    """Another process has the TPU or GPU, or most of its memory, and did not release it in time."""


class HostLostError(PalladioError):
    """Another host that runs this model did not connect, or the connection to it was lost."""


class EngineDeadError(PalladioError):
    """The engine failed or was shut down; it answers no more requests."""


def request_error(status: int, message: str, param: str | None = None, parts: tuple[str, ...] = ()) -> PalladioError:
    """The error of a request that the engine ended with an HTTP status (0: an abort that somebody asked for).

    Args:
        param: the field that is wrong, if it is one.
        parts: of the `Message`, if it mentions fields.
    """
    match status:
        case 400:
            return InvalidRequestError(Message(parts or (message,)), param=param)
        case 503:
            return OverloadedError(message)
        case 504:
            return DeadlineError(message)
        case 0 | 499:
            return RequestAbortedError(message)
        case _:
            return GenerationError(message)
