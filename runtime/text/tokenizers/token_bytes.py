"""TokenBytes: the bytes that tokens stand for, as a tokenizer's decoder makes them."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from palladio.runtime.text.tokenizers.bpe_tokenizers import BYTE_OF_CHARACTER

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


class TokenBytes:
    """The bytes of each token, made when they are first asked for.

    Args:
        kind: how the decoder makes bytes.
        added: text of each added token.
        token_of: a token as the vocabulary has it; None for an unused id.
        decode: text of one token, for decoders of other kinds.

    Attributes:
        known: token id → bytes, of all tokens so far; readers may look there first.
    """

    def __init__(
        self,
        kind: TokenKind,
        added: Mapping[int, str],
        token_of: Callable[[int], str | None],
        decode: Callable[[int], str],
    ) -> None:
        self._kind = kind
        self._added = added
        self._token_of = token_of
        self._decode = decode
        self.known: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """The UTF-8 bytes that this token stands for (a part of a code point too); b"" for an unused id."""
        data = self.known.get(token_id)
        if data is None:
            data = self.known[token_id] = self._compute(token_id)
        return data

    def _compute(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._token_of(token_id)
        if token is None:
            return b""
        if self._kind == "byte_level":
            return _byte_level_bytes(token)
        if self._kind == "byte_fallback":
            if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
                return bytes((int(token[3:5], 16),))
            return bytes(token.replace(SPACE_MARK, " ").encode())
        return self._decode(token_id).encode()


_byte_of: Callable[[str], int] = BYTE_OF_CHARACTER.__getitem__


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes(map(_byte_of, token))
    except KeyError:  # not written in the table's alphabet: plain text, as the ByteLevel decoder takes it
        return token.encode()
