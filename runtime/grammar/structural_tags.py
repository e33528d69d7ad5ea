"""SGLang's and vLLM's structural tags: free text in which certain beginnings must be followed by certain JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TEXT = r"TAG_TEXT: /(.|\n)*/"


def structural_tag_lark(tag: object, is_special: Callable[[str], bool], rewrite: Callable[[Any], Any]) -> str:
    """The tag as a grammar in llguidance's Lark.

    Args:
        tag: {"structures": [{"begin", "schema", "end"}, …], "triggers": [text, …]}: where the output says a trigger,
            the `begin` of a structure that starts with it must follow, then JSON of its schema, then its `end`.
        is_special: whether a text is one special token of the tokenizer.
        rewrite: makes of a client's schema what the compiler is to have.

    Raises:
        ValueError: it is malformed.
    """
    structures, triggers = _read(tag)
    rules = []
    for number, structure in enumerate(structures):
        begin, end = structure["begin"], structure["end"]
        trigger = next((text for text in triggers if begin.startswith(text)), None)
        if trigger is None:
            raise ValueError(f"structures.{number}.begin {begin!r} starts with none of the triggers")
        body = f"{_literal(begin[len(trigger) :])} %json {json.dumps(rewrite(structure['schema']))} {_literal(end)}"
        if is_special(trigger):
            rules.append(f"tag_{number}: TAG_TEXT {trigger} {body}")
        else:
            rules.append(f"trigger_{number}[lazy]: TAG_TEXT {_literal(trigger)}")
            rules.append(f"tag_{number}: trigger_{number} {body}")
    tags = " | ".join(f"tag_{number}" for number in range(len(structures)))
    return "\n".join(["%llguidance {}", f"start: ({tags})* tag_end", "tag_end: TAG_TEXT", _TEXT, *rules]) + "\n"


def _read(tag: object) -> tuple[list[dict[str, Any]], Sequence[str]]:
    if isinstance(tag, Mapping) and "format" in tag:
        raise ValueError("structural_tag.format is not supported; give structures and triggers")
    if not isinstance(tag, Mapping) or not isinstance(tag.get("structures"), list) or not tag["structures"]:
        raise ValueError("structural_tag needs a non-empty list of structures")
    triggers = tag.get("triggers")
    if not isinstance(triggers, list) or not triggers or not all(isinstance(text, str) and text for text in triggers):
        raise ValueError("structural_tag needs triggers, a list of non-empty strings")
    structures = []
    for number, structure in enumerate(tag["structures"]):
        if not isinstance(structure, Mapping) or not isinstance(structure.get("begin"), str):
            raise ValueError(f"structures.{number} must have a begin, a string")
        end, schema = structure.get("end", ""), structure.get("schema", {})
        if not isinstance(end, str) or not isinstance(schema, Mapping):
            raise ValueError(f"structures.{number} must have an end, a string, and a schema, an object")
        structures.append({"begin": structure["begin"], "end": end, "schema": schema})
    return structures, triggers


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""
