"""What a tokenizer's `response_template` says, as far as this process looks at it: no pattern of it is run here."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from palladio.http.reasoning.family import TagFamily
from palladio.http.reasoning.registry import BY_TEMPLATE
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
CONTENT_FIELD, CALLS_FIELD = "content", "tool_calls"

_TOGGLES = ("enable_thinking", "thinking")
_DIALECT = ("unquoted_keys", "string_delims")
_MAX_SIZE = 1 << 20  # characters


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseSpec:
    """A template.

    Attributes:
        text: all of it, as JSON.
        tags: that open and close reasoning, if they are plain strings; None: patterns, or there is none.
        calls_are_json: the tool calls that the model writes are JSON.
        specials: special tokens of the tokenizer that it speaks of.
        left_out: fields of its messages that answers have no place for.
    """

    text: str
    tags: tuple[str, str] | None
    calls_are_json: bool
    specials: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """The tokenizer's; None: it has none.

        Raises:
            ConfigError: it is no template.
        """
        raw = tokenizer.response_template
        if raw is None:
            return None
        fields = raw.get("fields") if isinstance(raw, Mapping) else None
        if not isinstance(fields, Mapping) or not all(isinstance(one, Mapping) for one in fields.values()):
            raise ConfigError("the tokenizer's response_template must be an object with fields, each an object")
        text = json.dumps(raw)
        if len(text) > _MAX_SIZE:
            raise ConfigError(f"the tokenizer's response_template has more than {_MAX_SIZE} characters")
        calls = fields.get(CALLS_FIELD, {})
        known = (*REASONING_FIELDS, CONTENT_FIELD, CALLS_FIELD)
        return cls(
            text,
            _tags(fields),
            _is_json(calls),
            _specials(raw, [text for text in tokenizer.added_texts if tokenizer.special_id(text) is not None]),
            tuple(name for name in fields if name not in known),
        )

    def visible_special_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Special tokens that have to be in the text that it reads."""
        found = (tokenizer.special_id(text) for text in self.specials)
        return tuple(token_id for token_id in found if token_id is not None)

    def family(self, variables: Iterable[str]) -> TagFamily | None:
        """How the model reasons, as far as its tags tell: for budgets, grammars and counting. None: they do not.

        Args:
            variables: that the chat template reads.
        """
        if self.tags is None:
            return None
        toggle = next((name for name in _TOGGLES if name in variables), None)
        return TagFamily(BY_TEMPLATE[0], *self.tags, toggle=toggle, anywhere=True, pieces=self.specials)


def _tags(fields: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    field = next((fields[name] for name in REASONING_FIELDS if name in fields), {})
    opening, closing = (_literal(field.get(key)) for key in ("open", "close"))
    return None if opening is None or closing is None else (opening, closing)


def _literal(value: object) -> str | None:
    """The first of the strings."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) and first.strip() else None


def _is_json(calls: Mapping[str, Any]) -> bool:
    arguments = calls.get("content_args")
    has_dialect = isinstance(arguments, Mapping) and any(arguments.get(key) for key in _DIALECT)
    return calls.get("content") == "json" and not has_dialect


def _specials(raw: object, tokens: Iterable[str]) -> tuple[str, ...]:
    """Those of the tokens that stand in a string of the template, escaped as patterns have them or not."""
    texts = [text.replace("\\", "") for text in _strings(raw)]
    return tuple(token for token in tokens if token and any(token in text for text in texts))


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
