"""WordPiece tokenizers of folders with vocab.txt and no tokenizer.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from palladio.model.files.small_files import MAX_TABLE_BYTES, read_text

VOCABULARY: Final = "vocab.txt"
MAX_WORD: Final = 100  # characters; a longer word is one unknown token, as everywhere

_BERT: Final = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
_MPNET: Final = {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "[UNK]", "pad_token": "<pad>"}
_CLASSES: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "LxmertTokenizer"), _BERT),
    "MPNetTokenizer": _MPNET,
}


def is_wordpiece(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder's vocabulary is one of WordPiece.

    Args:
        config: tokenizer_config.json; without a class in it, the vocabulary has to have BERT's special tokens.
    """
    if not (folder / VOCABULARY).is_file():
        return False
    name = config.get("tokenizer_class")
    if name is not None:
        return str(name).removesuffix("Fast") in _CLASSES
    return {*_BERT.values()} <= _read(folder).keys()


def read_wordpiece(folder: Path, config: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Read a tokenizer, and its special tokens as keyword arguments of transformers' tokenizers.

    Raises:
        ValueError: a special token is not in the vocabulary.
        CheckpointError: the file cannot be read.
    """
    name = str(config.get("tokenizer_class", "BertTokenizer")).removesuffix("Fast")
    roles = {role: _text(config.get(role)) or token for role, token in _CLASSES[name].items()}
    mask = _text(config.get("mask_token")) or ("<mask>" if name == "MPNetTokenizer" else "[MASK]")
    vocabulary = _read(folder)
    for role, token in roles.items():
        if token not in vocabulary:
            raise ValueError(f"its {role} {token!r} is not in {VOCABULARY}")
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary,
            unk_token=roles["unk_token"],
            continuing_subword_prefix="##",
            max_input_chars_per_word=MAX_WORD,
        )
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars") is not False,
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case") is not False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    special = dict.fromkeys((*roles.values(), *([mask] if mask in vocabulary else ())))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    first, last = roles["cls_token"], roles["sep_token"]
    tokenizer.post_processor = _frame(tokenizer, first, last, repeats=name == "MPNetTokenizer")
    settings: dict[str, Any] = {**roles, "clean_up_tokenization_spaces": False}
    return tokenizer, settings | ({"mask_token": mask} if mask in vocabulary else {})


def _frame(tokenizer: Tokenizer, first: str, last: str, *, repeats: bool) -> processors.TemplateProcessing:
    """The special tokens around a text and a pair.

    Args:
        repeats: MPNet: the separator stands twice between two texts, whose tokens have the same type.
    """
    pair = f"{first} $A {last} {last} $B {last}" if repeats else f"{first} $A {last} $B:1 {last}:1"
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    return processors.TemplateProcessing(single=f"{first} $A {last}", pair=pair, special_tokens=ids)


def _read(folder: Path) -> dict[str, int]:
    text = read_text(folder, VOCABULARY, MAX_TABLE_BYTES) or ""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


def _text(token: Any) -> str | None:
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) and found else None
