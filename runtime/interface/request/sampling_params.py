"""How the tokens of a request are sampled, and when its output ends."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.foreign_fields import refuse_parameter
from palladio.runtime.interface.request.grammar_spec import GRAMMAR_NAMES, Grammar, Thinking, with_grammar

GREEDY_TEMPERATURE = 1e-6  # below this, dividing logits by the temperature overflows float32: take the argmax instead
MAX_LOGPROBS = 20  # top-k width compiled into the sampler; OpenAI's limit
MAX_LOGIT_BIAS = 512  # entries of the sparse bias row that each running request owns on the device
MAX_N = 128

ALIASES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request.

    Attributes:
        max_tokens: maximum tokens to generate. None: the rest of the context. 0: score the prompt only.
        min_tokens: minimum tokens before end-of-sequence, `stop_token_ids` or `stop` can end the output.
        temperature: higher is more random; 0 (or below 1e-6) is greedy.
        top_p: sample from the smallest set of tokens whose probabilities add up to this; 1 keeps all.
        top_k: sample from the k likeliest tokens; -1 (or 0) keeps all.
        min_p: drop tokens whose probability is below this fraction of the likeliest token's.
        frequency_penalty: subtracted from a token's logit for each time it is in the output.
        presence_penalty: subtracted from a token's logit once if it is in the output.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output.
        logit_bias: token id → value added to its logit.
        allowed_token_ids: the only tokens that the output may have, end-of-sequence ids too. None: all.
        stop: strings that end the output and are cut from it.
        stop_regex: patterns that end the output with their first match, which stays in the text.
        stop_token_ids: token ids that end the output, in addition to the model's end-of-sequence ids.
        ignore_eos: do not end at the model's end-of-sequence ids.
        seed: any 64-bit integer. The same seed gives the same tokens, whatever else runs. None: the engine chooses.
        n: samples per prompt; sample i uses seed + i.
        logprobs: report the log-probability of each token and of this many likeliest ones (0 … 20). None: report none.
        prompt_logprobs: the same for the prompt's tokens.
        logprob_token_ids: tokens to report wherever `logprobs` or `prompt_logprobs` report any; at most 128.
        skip_special_tokens: leave special tokens out of the text.
        visible_special_ids: special tokens to keep in the text nevertheless, for parsers that need them.
        spaces_between_special_tokens: put spaces between special tokens in the text.
        no_stop_trim: keep the matched stop string in the text.
        grammar: the grammar that the output must follow.
        thinking: which part of the output is reasoning, to which the grammar does not apply, and its maximum length.
        max_new_tokens, min_new_tokens, sampling_seed: SGLang's names of max_tokens, min_tokens and seed. Their values
            move to those three fields, and they become None.

    Raises:
        InvalidRequestError: a value has the wrong type or is out of range, or a parameter is given under both of its
            names; `param` names it.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    skip_special_tokens: bool = True
    visible_special_ids: tuple[int, ...] = ()
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    # Fields and not dataclasses.InitVar, which msgspec does not take.
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        others = self._take_other_names()
        try:
            self._check()
        except InvalidRequestError as error:
            raise error.rename(others) from None

    def _take_other_names(self) -> dict[str, str]:
        """Moves values from SGLang's names to ours. Returns our name → SGLang's, of those that were given."""
        others: dict[str, str] = {}
        for name, field in ALIASES.items():
            value = object.__getattribute__(self, name)
            if value is None:
                continue
            if object.__getattribute__(self, field) != type(self).__dataclass_fields__[field].default:
                message = "{name!r} and {field!r} name the same parameter; give one"
                raise InvalidRequestError.of(message, param=name, name=name, field=field)
            object.__setattr__(self, field, value)
            object.__setattr__(self, name, None)
            others[field] = name
        return others

    def _check(self) -> None:
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 0, None)
        check_int("min_tokens", self.min_tokens, 0, None)
        check_lengths(self.min_tokens, self.max_tokens)
        check_float("temperature", self.temperature, 0.0, None)
        check_float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        check_int("top_k", self.top_k, -1, None)
        check_float("min_p", self.min_p, 0.0, 1.0)
        check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_float("repetition_penalty", self.repetition_penalty, 0.0, None, open_low=True)
        check_int("n", self.n, 1, MAX_N)
        if self.seed is not None:
            check_int("seed", self.seed, -(2**63), 2**64 - 1)
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                check_int(name, value, 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"):
            if not isinstance(object.__getattribute__(self, name), bool):
                raise InvalidRequestError.of("{param} must be true or false", param=name)
        self._check_logit_bias()
        readers = (("stop", read_stop_strings), ("stop_token_ids", read_stop_ids), ("stop_regex", read_stop_regex))
        for name, read in readers:
            if (given := object.__getattribute__(self, name)) != ():
                object.__setattr__(self, name, read(given))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", read_allowed_ids(self.allowed_token_ids))
        if self.logprob_token_ids is not None:
            object.__setattr__(self, "logprob_token_ids", read_logprob_ids(self.logprob_token_ids))

    def _check_logit_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequestError("logit_bias must map token ids to numbers", param="logit_bias")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            message = f"logit_bias takes at most {MAX_LOGIT_BIAS} entries, got {len(self.logit_bias)}"
            raise InvalidRequestError(message, param="logit_bias")
        bias: dict[int, float] = {}
        for key, value in self.logit_bias.items():
            try:
                token_id = int(key)
            except (TypeError, ValueError):
                raise InvalidRequestError(f"logit_bias key {key!r} is not a token id", param="logit_bias") from None
            if not is_number(value) or not -100.0 <= value <= 100.0:
                message = f"logit_bias value {value!r} for token {token_id} must be a number in [-100, 100]"
                raise InvalidRequestError(message, param="logit_bias")
            bias[token_id] = float(value)
        object.__setattr__(self, "logit_bias", bias)

    def with_checked(self, **fields: Any) -> Self:
        """The same with other values of fields, each valid by itself. Lists are not checked again, because they may be
        long and a request may have thousands of samples. Raises: InvalidRequestError: min_tokens is over max_tokens."""
        other = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(other, name, value)
        check_lengths(other.min_tokens, other.max_tokens)
        return other

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def uses_penalties(self) -> bool:
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def has_history(self) -> bool:
        """Whether the sampler needs the request's row of device state, beyond its last token."""
        return self.uses_penalties or bool(self.logit_bias) or self.min_tokens > 0 or bool(self.logprob_token_ids)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None) -> Self:
        """Builds from a JSON object; None values mean "not given". SGLang's names are accepted.

        Args:
            values: field name → value; json_schema, regex, ebnf and structural_tag stand for `grammar`.
            defaults: the values of fields that are not given (the checkpoint's generation_config.json); min_tokens
                makes way for a lower max_tokens.

        Raises:
            InvalidRequestError: an unknown name, the same field under two names, or a bad value.
        """
        if not values.keys().isdisjoint(GRAMMAR_NAMES):
            values = with_grammar(values)
        known = {field.name for field in dataclasses.fields(cls)}
        merged: dict[str, Any] = {k: v for k, v in (defaults or {}).items() if v is not None}
        given: dict[str, Any] = {}
        aliases: dict[str, str] = {}  # field → the other name that the caller used
        for name, value in ((name, value) for name, value in values.items() if value is not None):
            field = ALIASES.get(name, name)
            if field not in known:
                refuse_parameter(name, value)
                continue
            if field in given:
                message = "{name!r} and {field!r} name the same parameter; give one"
                raise InvalidRequestError.of(message, param=name, name=name, field=field)
            given[field] = value
            if field != name:
                aliases[field] = name
        most, least = given.get("max_tokens"), merged.get("min_tokens")
        if most is not None and least is not None and is_int(most) and 0 <= most < least:
            merged["min_tokens"] = most
        try:
            return cls(**(merged | given))
        except InvalidRequestError as error:
            raise error.rename(aliases) from None


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_int(name: str, value: object, low: int, high: int | None) -> None:
    """
    Raises:
        InvalidRequestError: not an integer, or not in low … high (None: no limit).
    """
    if not is_int(value) or value < low or (high is not None and value > high):  # type: ignore[operator]
        bounds = f"an integer ≥ {low}" if high is None else f"an integer in [{low}, {high}]"
        raise InvalidRequestError.of("{param} must be {bounds}, got {value!r}", param=name, bounds=bounds, value=value)


def check_float(name: str, value: object, low: float, high: float | None, *, open_low: bool = False) -> None:
    """
    Raises:
        InvalidRequestError: not a finite number, or not in low … high (None: no limit; `open_low`: low is not in).
    """
    if (
        not is_number(value)
        or value < low  # type: ignore[operator]
        or (open_low and value == low)
        or (high is not None and value > high)  # type: ignore[operator]
    ):
        bounds = f"a number {'>' if open_low else '≥'} {low:g}" + ("" if high is None else f" and ≤ {high:g}")
        raise InvalidRequestError.of("{param} must be {bounds}, got {value!r}", param=name, bounds=bounds, value=value)


MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH, MAX_STOP_CHARACTERS = 4096, 16_384  # of one stop string, and of all: their search is made beforehand
STOP_REGEX = "stop_regex"
MAX_STOP_PATTERNS = 8
MAX_PATTERN = 256  # characters
MAX_LOGPROB_IDS = 128  # columns that the programs compute for each row
MAX_STOP_TOKEN_IDS = 64  # entries of the row of ids that min_tokens suppresses
MAX_ALLOWED_IDS = 1 << 14  # each of a request's samples is told all of them


def check_lengths(min_tokens: int, max_tokens: int | None) -> None:
    """
    Raises:
        InvalidRequestError: min_tokens is over max_tokens.
    """
    if max_tokens is not None and min_tokens > max_tokens:
        message, names = "{param} ({least}) must not be over {limit} ({most})", {"limit": "max_tokens"}
        raise InvalidRequestError.of(message, param="min_tokens", fields=names, least=min_tokens, most=max_tokens)


def read_stop_strings(value: object) -> tuple[str, ...]:
    """
    Raises:
        InvalidRequestError: they are none, too many or too long.
    """
    stop = [value] if isinstance(value, str) else value
    if not isinstance(stop, list | tuple) or not all(isinstance(string, str) and string for string in stop):
        raise InvalidRequestError.of("{param} must be a non-empty string or a list of them", param="stop")
    if len(stop) > MAX_STOP_STRINGS:
        message = "{param} takes at most {most} strings, got {count}"
        raise InvalidRequestError.of(message, param="stop", most=MAX_STOP_STRINGS, count=len(stop))
    if (longest := max(map(len, stop), default=0)) > MAX_STOP_LENGTH:
        message = "{param} takes strings of at most {most} characters, got one of {longest}"
        raise InvalidRequestError.of(message, param="stop", most=MAX_STOP_LENGTH, longest=longest)
    if (size := sum(map(len, stop))) > MAX_STOP_CHARACTERS:
        message = "{param} takes strings of at most {most} characters together, got {size}"
        raise InvalidRequestError.of(message, param="stop", most=MAX_STOP_CHARACTERS, size=size)
    return tuple(stop)


def read_stop_ids(value: object) -> tuple[int, ...]:
    """
    Raises:
        InvalidRequestError: they are no ids, or too many.
    """
    name = "stop_token_ids"
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {int} or (value and min(value) < 0):
        raise InvalidRequestError.of("{param} must be a list of token ids ≥ 0", param=name)
    if len(value) > MAX_STOP_TOKEN_IDS:
        message = "{param} takes at most {most} ids, got {count}"
        raise InvalidRequestError.of(message, param=name, most=MAX_STOP_TOKEN_IDS, count=len(value))
    return tuple(value)


def read_allowed_ids(value: object) -> tuple[int, ...]:
    """The ids once each, in order.

    Raises:
        InvalidRequestError: they are none, or too many.
    """
    name = "allowed_token_ids"
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {int} or not value or min(value) < 0:
        raise InvalidRequestError.of("{param} must be a list of token ids ≥ 0, at least one", param=name)
    if len(value) > MAX_ALLOWED_IDS:
        message = "{param} takes at most {most} ids, got {count}"
        raise InvalidRequestError.of(message, param=name, most=MAX_ALLOWED_IDS, count=len(value))
    return tuple(sorted(set(value)))


def read_logprob_ids(value: object) -> tuple[int, ...] | None:
    """The ids once each, in the order given; None: there are none.

    Raises:
        InvalidRequestError: they are no ids, or too many.
    """
    name = "logprob_token_ids"
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {int} or (value and min(value) < 0):
        raise InvalidRequestError.of("{param} must be a list of token ids ≥ 0", param=name)
    ids = tuple(dict.fromkeys(value))
    if len(ids) > MAX_LOGPROB_IDS:
        message = "{param} takes at most {most} ids, got {count}"
        raise InvalidRequestError.of(message, param=name, most=MAX_LOGPROB_IDS, count=len(ids))
    return ids or None


def read_stop_regex(value: object) -> tuple[str, ...]:
    """The patterns; what they say is looked at where they are followed.

    Raises:
        InvalidRequestError: they are none, too many or too long.
    """
    given = [value] if isinstance(value, str) and value else value
    if not isinstance(given, list | tuple) or not all(isinstance(pattern, str) and pattern for pattern in given):
        raise InvalidRequestError.of("{param} must be a non-empty pattern or a list of them", param=STOP_REGEX)
    if len(given) > MAX_STOP_PATTERNS or any(len(pattern) > MAX_PATTERN for pattern in given):
        message = "{param} takes at most {most} patterns of at most {longest} characters"
        raise InvalidRequestError.of(message, param=STOP_REGEX, most=MAX_STOP_PATTERNS, longest=MAX_PATTERN)
    return tuple(given)
