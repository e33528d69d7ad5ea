"""The tokenizer that a GGUF file's metadata describe: its vocabulary, merges and special tokens, and its template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from palladio.model.gguf.gguf_file import GgufFile
from palladio.runtime.text.tokenizers.bpe_tokenizers import (
    LLAMA3,
    SPACE,
    TEKKEN,
    Split,
    byte_level,
    ends,
    sentencepiece,
    sentencepiece_bpe,
)

_KEY: Final = "tokenizer.ggml."
_TEMPLATE: Final = "tokenizer.chat_template"
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens
_QWEN2: Final = LLAMA3.replace("{1,3}", "")

_LLAMA3_SPLIT = Split(LLAMA3, whole_first=True, adds_bos=True)
_QWEN2_SPLIT = Split(_QWEN2, composes=True)
_SPLITS: Final[Mapping[str, Split]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3_SPLIT),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2_SPLIT),
    "tekken": Split(TEKKEN, whole_first=True, adds_bos=True),
    "gpt-2": Split(),
    "smollm": Split(splits_digits=True),
}
"""By tokenizer.ggml.pre."""


def read_tokenizer(path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and its special tokens and template as tokenizer_config.json names them.

    Raises:
        ValueError: the file has none, or one that is not supported.
        CheckpointError: see GgufFile.
    """
    file = GgufFile(path)
    values = file.metadata
    file.close()
    tokens = _list(values, "tokens", str)
    kinds = _list(values, "token_type", int) if f"{_KEY}token_type" in values else [1] * len(tokens)
    if len(kinds) != len(tokens):
        raise ValueError(f"{_KEY}token_type has {len(kinds)} entries for {len(tokens)} tokens")
    model, is_gemma = values.get(f"{_KEY}model"), str(values.get("general.architecture")).startswith("gemma")
    if model == "llama" and is_gemma:  # runs of spaces are written as such, added tokens too
        tokens = [SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
    if model == "gpt2":
        tokenizer, adds_bos = _byte_level(values, tokens)
    elif model == "llama":
        tokenizer, adds_bos = _sentencepiece(values, tokens, is_gemma=is_gemma), True
    else:
        raise ValueError(f"{_KEY}model {model!r} is not supported; supported: 'gpt2', 'llama'")
    tokenizer.add_special_tokens(_added(tokens, kinds, _CONTROL, is_special=True))
    tokenizer.add_tokens(_added(tokens, kinds, _USER_DEFINED, is_special=False))
    settings: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = values.get(f"{_KEY}{key}_token_id")
        if token is not None and not (isinstance(token, int) and 0 <= token < len(tokens)):
            raise ValueError(f"{_KEY}{key}_token_id {token!r} is none of the {len(tokens)} tokens")
        settings[f"{name}_token"] = None if token is None else tokens[token]
    bos = settings["bos_token"]
    if bos is not None and values.get(f"{_KEY}add_bos_token", adds_bos):
        tokenizer.post_processor = ends(tokenizer, bos)
    settings["chat_template"] = _templates(values)
    return tokenizer, settings


def _byte_level(values: Mapping[str, Any], tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """And whether it adds BOS where the file does not say."""
    name = values.get(f"{_KEY}pre")
    split = _SPLITS.get(str(name))
    if split is None:
        raise ValueError(f"{_KEY}pre {name!r} is not supported; supported: {', '.join(map(repr, _SPLITS))}")
    merges = [_pair(merge) for merge in _list(values, "merges", str)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return byte_level(vocabulary, merges, split), split.adds_bos


def _sentencepiece(values: Mapping[str, Any], tokens: Sequence[str], *, is_gemma: bool) -> Tokenizer:
    if is_gemma:  # scores are not in the order of merges: numbers are
        scores: Sequence[float] = [-float(number) for number in range(len(tokens))]
    else:
        scores = _list(values, "scores", float)
    if len(scores) != len(tokens):
        raise ValueError(f"{_KEY}scores has {len(scores)} entries for {len(tokens)} tokens")
    bpe = sentencepiece_bpe(tokens, scores, unknown=values.get(f"{_KEY}unknown_token_id", 0))
    return sentencepiece(bpe, has_prefix=bool(values.get(f"{_KEY}add_space_prefix", not is_gemma)))


def _added(tokens: Sequence[str], kinds: Sequence[int], kind: int, *, is_special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False, special=is_special)
        for token, of in zip(tokens, kinds, strict=True)
        if of == kind and token
    ]


def _templates(values: Mapping[str, Any]) -> str | dict[str, str] | None:
    """One, or several by name."""
    usual, prefix = values.get(_TEMPLATE), f"{_TEMPLATE}."
    named = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    if named and usual is not None:
        return {"default": usual, **named}
    return usual


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _list(values: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    found = values.get(_KEY + key)
    if not isinstance(found, list) or not found or not isinstance(found[0], kind):
        raise ValueError(f"its metadata have no {_KEY}{key}")
    return found
