"""Token ids to text: the bytes that tokens stand for, and text of one token at a time, never half a code point."""

import codecs
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol

from palladio.runtime.text.tokenizers.bpe_tokenizers import BYTE_OF_CHARACTER

SPACE_MARK = "▁"
TokenKind = Literal["byte_level", "byte_fallback", "other"]
REPLACEMENT = "\ufffd"
_MAX_PENDING_TOKENS = 12  # a code point is at most 4 bytes: a longer run of undecodable tokens is garbage, so show it


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


class IncrementalDetokenizer(Protocol):
    """Turns one sample's tokens into text."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; "" while a code point is unfinished."""

    def flush(self) -> str:
        """What is still held back: an unfinished code point comes out as U+FFFD."""


class ByteDetokenizer:
    """For tokenizers whose tokens are byte strings (byte-level BPE, sentencepiece with byte fallback): exact and O(1).

    Args:
        token_bytes: the bytes of a token.
        known: of those that were asked for before; the call costs more than looking there.
        hidden: tokens that are not shown.
        strip_leading_space: the tokenizer's decoder drops one space at the start of a text, and this is the start.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        known: Mapping[int, bytes] = MappingProxyType({}),
        hidden: Collection[int] = (),
        *,
        strip_leading_space: bool = False,
    ) -> None:
        self._token_bytes = token_bytes
        self._known = known
        self._hidden = hidden
        self._strip = strip_leading_space
        self._pending = b""

    def push(self, token_id: int) -> str:
        data = b"" if token_id in self._hidden else (self._known.get(token_id) or self._token_bytes(token_id))
        if self._strip and data:
            data = data.removeprefix(b" ")
            self._strip = False
        if self._pending:
            data = self._pending + data
        text, consumed = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[consumed:]
        return text

    def flush(self) -> str:
        pending, self._pending = self._pending, b""
        return pending.decode("utf-8", "replace")


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window of tokens twice and takes the difference.

    Args:
        decode: token ids → text.
        context_ids: the prompt's last tokens, so that the first token gets the space that belongs before it.
    """

    def __init__(self, decode: Callable[[list[int]], str], context_ids: Sequence[int]) -> None:
        self._decode = decode
        self._window = list(context_ids)
        self._read = len(self._window)  # window[:read] has been shown
        self._shown = decode(self._window)

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        unfinished = text.endswith(REPLACEMENT) or len(text) <= len(self._shown)
        if unfinished and len(self._window) - self._read < _MAX_PENDING_TOKENS:
            return ""
        return self._take(text)

    def flush(self) -> str:
        return self._take(self._decode(self._window)) if len(self._window) > self._read else ""

    def _take(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._window = self._window[self._read :]
        self._read = len(self._window)
        self._shown = self._decode(self._window)
        return new
