"""Tokenizers made of a vocabulary, where there is no tokenizer.json: byte-level ones, and sentencepiece's."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPACE: Final = "▁"
LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_MOST_DIVIDED: Final = 1 << 28  # sum of squares of tokens' lengths; published vocabularies have 2**24


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """How text is cut before merges.

    Attributes:
        pattern: of a piece; None: GPT-2's.
        splits_digits: every digit is one piece.
        composes: characters are composed before (NFC).
        whole_first: a piece that is a token is not merged together.
        adds_bos: where nothing else says so.
    """

    pattern: str | None = None
    splits_digits: bool = False
    composes: bool = False
    whole_first: bool = False
    adds_bos: bool = False


def byte_level(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], split: Split) -> Tokenizer:
    """A byte-level BPE tokenizer.

    Args:
        vocabulary: the id of each token, which is written as `as_characters` writes bytes.
        merges: pairs of such tokens, the first ones first.
    """
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), list(merges), ignore_merges=split.whole_first))
    steps: list[Any] = []
    if split.splits_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if split.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def merges_by_rank(vocabulary: Mapping[str, int], ranks: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to put a token together of two others, tokens of low ranks first: so merge tiktoken, which knows tokens
    and no merges, and sentencepiece, whose scores are ranks with a sign.

    Args:
        ranks: by number of the token.

    Raises:
        ValueError: tokens are so long that trying all ways would take minutes.
    """
    if sum(len(token) ** 2 for token in vocabulary) > _MOST_DIVIDED:
        raise ValueError(f"its tokens are too long: the longest one has {max(map(len, vocabulary)):,} characters")
    found = []
    for token, number in vocabulary.items():
        for place in range(1, len(token)):
            left, right = vocabulary.get(token[:place]), vocabulary.get(token[place:])
            if left is not None and right is not None:
                found.append((ranks[number], left, right, token[:place], token[place:]))
    found.sort()
    return [(left, right) for *_, left, right in found]


def sentencepiece_bpe(
    tokens: Sequence[str], scores: Sequence[float], *, unknown: int, has_bytes: bool = True
) -> models.BPE:
    """
    Args:
        unknown: the number of the token for what has none.
        has_bytes: a character without a token becomes its bytes.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = merges_by_rank(vocabulary, [-score for score in scores])
    return models.BPE(vocabulary, merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=has_bytes)


def sentencepiece(
    model: models.Model, *, before: Sequence[Any] = (), has_prefix: bool, first_only: bool = False
) -> Tokenizer:
    """Writes spaces as sentencepiece does, on the way in and back.

    Args:
        before: normalizers that come before.
        has_prefix: a space is put before the text, and taken off what is decoded.
        first_only: not before what follows a special token.
    """
    tokenizer = Tokenizer(model)
    steps = list(before)
    if has_prefix and not first_only:
        steps.append(normalizers.Prepend(SPACE))
    if has_prefix and first_only:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    else:
        steps.append(normalizers.Replace(" ", SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    after = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def ends(tokenizer: Tokenizer, bos: str | None, eos: str | None = None) -> processors.TemplateProcessing:
    """Writes special tokens of the vocabulary around every text."""
    single = " ".join([*([f"{bos}:0"] if bos else []), "$A:0", *([f"{eos}:0"] if eos else [])])
    special = [(token, tokenizer.token_to_id(token)) for token in (bos, eos) if token is not None]
    return processors.TemplateProcessing(single=single, special_tokens=special)


def _make_byte_level_table() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER: Final[Mapping[str, int]] = _make_byte_level_table()
_CHARACTERS: Final = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


def as_characters(data: bytes) -> str:
    """Bytes in the alphabet that byte-level vocabularies are written in."""
    return "".join(map(_CHARACTERS.__getitem__, data))
