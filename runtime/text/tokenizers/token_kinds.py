"""How a tokenizer's decoder makes bytes of tokens."""

from collections.abc import Mapping
from typing import Any, Literal

SPACE_MARK = "▁"
TokenKind = Literal["byte_level", "byte_fallback", "other"]


def token_kind(decoder: Mapping[str, Any] | None) -> TokenKind:
    parts = _decoder_parts(decoder)
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"]:
        return "byte_level"
    replaces = [part for part in parts if part["type"] == "Replace"]
    spaces_only = all(p["pattern"] == {"String": SPACE_MARK} and p["content"] == " " for p in replaces)
    strips = [part for part in parts if part["type"] == "Strip"]
    strips_one = all((p["content"], p["start"], p["stop"]) == (" ", 1, 0) for p in strips)
    known = set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}
    if known and "ByteFallback" in kinds and len(replaces) == 1 and spaces_only and strips_one:
        return "byte_fallback"
    return "other"


def _decoder_parts(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def has_strip(decoder: Mapping[str, Any] | None) -> bool:
    return any(part["type"] == "Strip" for part in _decoder_parts(decoder))
