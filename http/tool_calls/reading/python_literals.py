"""Python literals in a model's text → JSON: `['a', True]`, `('a', 'b')`, `{'x': None}`.

The text comes from a model that anybody may make write anything. So its tokens are looked at first: only those of
literals reach Python's own parser, and neither many of them nor deep nesting.
"""

import ast
import json
import re

import orjson

MAX_DEPTH = 64

_MAX_SIZE = 1 << 20  # characters, most of which have to be in strings
_MAX_TOKENS = 10_000  # some ms for Python's parser

# Atomic groups in long quotes: Python before 3.11.4 gets possessive ones wrong whose branches begin with a class.
_TOKEN = re.compile(
    r"""
    (?P<space> [ \t\r\n]++ )
    | (?P<prefix> [rRuU]? )
      (?P<quoted> '''(?>(?:[^'\\]|\\.|'(?!''))*)''' | \"""(?>(?:[^"\\]|\\.|"(?!""))*)\"""
                | '[^'\\]*+(?:\\.[^'\\]*+)*+' | "[^"\\]*+(?:\\.[^"\\]*+)*+" )
    | (?P<number> [+-]?+ (?: 0[xX][0-9a-fA-F_]++ | 0[oO][0-7_]++ | 0[bB][01_]++
                           | (?:[0-9][0-9_]*+(?:\.[0-9_]*+)?+|\.[0-9][0-9_]*+)(?:[eE][+-]?+[0-9_]++)?+ ) (?![\w.]) )
    | (?P<word> (?:True|False|None|true|false|null) (?!\w) )
    | (?P<opening> [\[({] )
    | (?P<closing> [\])}] )
    | [,:]
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"true": "True", "false": "False", "null": "None"}  # JSON's among Python's
_IN_STRING = re.compile(r"\\(?:[\n\\'\"abfnrtvxuU]|[0-3]?[0-7]{1,2}(?![0-7]))|\\|[\r\n]", re.DOTALL)
_WRITTEN = {"\\": "\\\\", "\r": "\\r", "\n": "\\n"}


def literal_json(text: str) -> str | None:
    """The JSON text of a literal; None: it is none, JSON has no such value, or it is too large or too deep.

    What models get wrong often is put right: line breaks and unknown escapes in strings, JSON's true, false and null.
    """
    source = _checked(text)
    if source is None:
        return None
    try:
        found = json.dumps(ast.literal_eval(source), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    # two escapes may be the halves of a pair; one without the other is no character
    found = found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    try:
        orjson.loads(found)
    except orjson.JSONDecodeError:  # a number that no float holds
        return None
    return found


def _checked(text: str) -> str | None:
    """The text as Python writes it, if it has the tokens of a literal alone, within the bounds."""
    if len(text) > _MAX_SIZE:
        return None
    parts: list[str] = []
    depth = at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(parts) == _MAX_TOKENS:
            return None
        at = found.end()
        depth += (found["opening"] is not None) - (found["closing"] is not None)
        if depth > MAX_DEPTH:
            return None
        parts.append(_written(found))
    return "".join(parts).strip()


def _written(token: re.Match[str]) -> str:
    if token["space"]:
        return " "  # a line break would end the expression
    if token["quoted"] and token["prefix"] not in ("r", "R"):
        return _IN_STRING.sub(lambda found: _WRITTEN.get(found[0], found[0]), token[0])
    return _WORDS.get(token[0], token[0])
