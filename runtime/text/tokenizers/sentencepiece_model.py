"""sentencepiece's model files: what they hold, and a tokenizer that encodes like them."""

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

from tokenizers import Regex, Tokenizer, models, normalizers

from palladio.runtime.text.tokenizers.bpe_tokenizers import sentencepiece, sentencepiece_bpe

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # types of pieces
_UNIGRAM, _BPE = 1, 2  # types of models
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # kinds of fields
_NO_ID: Final = 2**64 - 1  # -1
# numbers of fields, from sentencepiece_model.proto
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK, _UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 3, 35, 40, 41, 42, 43
_CHARSMAP, _ADDS_PREFIX, _REMOVES_SPACES, _ESCAPES_SPACES = 2, 3, 4, 5


@dataclasses.dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """
    Attributes:
        pieces, scores, kinds: by number.
        trainer, normalizer: settings by number of the field, the last one of each.
    """

    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    kinds: tuple[int, ...]
    trainer: Mapping[int, Any]
    normalizer: Mapping[int, Any]

    @classmethod
    def read(cls, data: bytes) -> Self:
        """
        Raises:
            ValueError: malformed.
        """
        pieces: list[str] = []
        scores: list[float] = []
        kinds: list[int] = []
        parts: dict[int, Mapping[int, Any]] = {_TRAINER: {}, _NORMALIZER: {}}
        for number, value in _fields(data):
            if number not in (_PIECES, *parts):
                continue
            if not isinstance(value, bytes):
                raise ValueError("the sentencepiece model is malformed")
            fields = dict(_fields(value))
            if number in parts:
                parts[number] = fields
                continue
            pieces.append(_bytes(fields, _TEXT).decode("utf-8"))
            (score,) = struct.unpack("<f", _bytes(fields, _SCORE, b"\0\0\0\0"))
            scores.append(score)
            kinds.append(int(fields.get(_KIND, _NORMAL)))
        if not pieces:
            raise ValueError("the sentencepiece model has no pieces")
        return cls(tuple(pieces), tuple(scores), tuple(kinds), parts[_TRAINER], parts[_NORMALIZER])

    def controls(self) -> dict[int, str]:
        """Special tokens by number."""
        return {number: self.pieces[number] for number, kind in enumerate(self.kinds) if kind in (_UNKNOWN, _CONTROL)}

    def user_defined(self) -> dict[int, str]:
        """Tokens by number that are never merged nor divided, and that are no special ones."""
        return {number: self.pieces[number] for number, kind in enumerate(self.kinds) if kind == _USER_DEFINED}

    def roles(self) -> dict[str, str]:
        """The tokens that have a part of their own, by transformers' names."""
        usual = {"unk_token": (_UNK_ID, 0), "bos_token": (_BOS_ID, 1), "eos_token": (_EOS_ID, 2)}
        found = {role: self.trainer.get(field, default) for role, (field, default) in usual.items()}
        found["pad_token"] = self.trainer.get(_PAD_ID, _NO_ID)
        controls = self.controls()
        return {role: controls[number] for role, number in found.items() if number in controls}

    def tokenizer(self, names: Mapping[int, str], *, first_only: bool) -> Tokenizer:
        """Encodes as sentencepiece does.

        Args:
            names: of pieces that are called otherwise than in the file.
            first_only: see `sentencepiece`.

        Raises:
            ValueError: it is of a kind that is not supported.
        """
        pieces = [names.get(number, piece) for number, piece in enumerate(self.pieces)]
        unknown = next((number for number, kind in enumerate(self.kinds) if kind == _UNKNOWN), 0)
        has_bytes = bool(self.trainer.get(_BYTE_FALLBACK, False))
        kind = self.trainer.get(_MODEL_TYPE, _UNIGRAM)
        if kind == _BPE:
            model: models.Model = sentencepiece_bpe(pieces, self.scores, unknown=unknown, has_bytes=has_bytes)
        elif kind == _UNIGRAM:
            scored = list(zip(pieces, self.scores, strict=True))
            model = models.Unigram(scored, unk_id=unknown, byte_fallback=has_bytes)
        else:
            raise ValueError(f"a sentencepiece model of type {kind}; supported: BPE and unigram")
        if not self.normalizer.get(_ESCAPES_SPACES, True):
            raise ValueError("a sentencepiece model that does not escape white space is not supported")
        has_prefix = bool(self.normalizer.get(_ADDS_PREFIX, True))
        return sentencepiece(model, before=self._normalizers(), has_prefix=has_prefix, first_only=first_only)

    def _normalizers(self) -> list[Any]:
        charsmap = self.normalizer.get(_CHARSMAP, b"")
        steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
        if self.normalizer.get(_REMOVES_SPACES, True):
            steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        return steps


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, in its order; fixed ones as bytes.

    Raises:
        ValueError: it is malformed.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError("the sentencepiece model is malformed")
        if at + length > len(data):
            raise ValueError("the sentencepiece model is truncated")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("the sentencepiece model is truncated")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("the sentencepiece model is malformed")


def _bytes(fields: Mapping[int, int | bytes], number: int, default: bytes = b"") -> bytes:
    found = fields.get(number, default)
    if not isinstance(found, bytes):
        raise ValueError("the sentencepiece model is malformed")
    return found
