"""Tokenizers of checkpoints without tokenizer.json, in the forms that families publish: ranks (Kimi), Mistral's
tekken.json, sentencepiece's tokenizer.model, and WordPiece's vocab.txt. No code of a checkpoint runs for them."""

import base64
import binascii
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from palladio.model.files.small_files import MAX_TABLE_BYTES, read_json, read_object
from palladio.runtime.text.tokenizers.bpe_tokenizers import Split, as_characters, byte_level, ends, merges_by_rank
from palladio.runtime.text.tokenizers.sentencepiece_model import SentencePieceModel
from palladio.runtime.text.tokenizers.tokenizer_files import MAX_ADDED_TOKENS
from palladio.runtime.text.tokenizers.wordpiece import is_wordpiece, read_wordpiece

_TIKTOKEN, _TEKKEN, _SENTENCEPIECE = "tiktoken.model", "tekken.json", "tokenizer.model"
_LETTERS: Final = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"  # in words; Chinese has no words
_SHORT: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_LEAD: Final = r"[^\r\n\p{L}\p{N}]?"
_KIMI_PATTERN: Final = "|".join(
    (
        r"[\p{Han}]+",
        rf"{_LEAD}[\p{{Lu}}\p{{Lt}}{_LETTERS}]*[\p{{Ll}}{_LETTERS}]+{_SHORT}",
        rf"{_LEAD}[\p{{Lu}}\p{{Lt}}{_LETTERS}]+[\p{{Ll}}{_LETTERS}]*{_SHORT}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_KIMI_RESERVED: Final = 256  # special tokens behind the vocabulary, named or not
_KIMI_CLASS: Final = "TikTokenTokenizer"
_TEKKEN_SPECIALS: Final = (  # of files that list none
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTokenizer:
    """
    Attributes:
        backend: encodes and decodes.
        settings: special tokens and chat template, as keyword arguments of transformers' tokenizers.
        tekken_version: of Mistral's format of prompts; None: another one, or unknown.
    """

    backend: Tokenizer
    settings: Mapping[str, Any]
    tekken_version: int | None = None


def read_stored_tokenizer(folder: Path, *, may_run_code: bool = False) -> StoredTokenizer | None:
    """None: the directory has a tokenizer.json, or none of these forms.

    Args:
        may_run_code: leave a class that is not known here to the checkpoint's own code.

    Raises:
        ValueError: its file is malformed, or of a kind that is not supported.
        OSError: it cannot be read.
    """
    if (folder / "tokenizer.json").is_file():
        return None
    config = _read_config(folder)
    if (folder / _TIKTOKEN).is_file():
        if config.get("tokenizer_class") != _KIMI_CLASS and may_run_code:
            return None
        return _read_tiktoken(folder / _TIKTOKEN, config)
    if (folder / _TEKKEN).is_file():
        return _read_tekken(folder / _TEKKEN, config)
    if (folder / _SENTENCEPIECE).is_file():
        return _read_sentencepiece(folder / _SENTENCEPIECE, config)
    if is_wordpiece(folder, config):
        tokenizer, settings = read_wordpiece(folder, config)
        return StoredTokenizer(tokenizer, {**settings, "chat_template": _template(config)})
    return None


def _read_tiktoken(file: Path, config: Mapping[str, Any]) -> StoredTokenizer:
    """Ranks from the file, special tokens from tokenizer_config.json; how text is cut is known of the class."""
    name = config.get("tokenizer_class")
    if name != _KIMI_CLASS:
        raise ValueError(f"{file.name} of a tokenizer_class {name!r}; supported: {_KIMI_CLASS!r} (Kimi)")
    ranks = _ranks(file)
    tokenizer = _by_rank(ranks, _KIMI_PATTERN)
    added, end = _added(config), len(ranks)
    reserved = {number: _special(f"<|reserved_token_{number}|>") for number in range(end, end + _KIMI_RESERVED)}
    _add(tokenizer, reserved | added)
    return StoredTokenizer(tokenizer, _settings(config, {}, tokenizer))


def _read_tekken(file: Path, config: Mapping[str, Any]) -> StoredTokenizer:
    """Special tokens come first, then ranks."""
    content = read_json(file.parent, file.name, MAX_TABLE_BYTES)
    try:
        sizes, vocabulary = content["config"], content["vocab"]
        pattern, num_special = str(sizes["pattern"]), int(sizes["default_num_special_tokens"])
        if not 0 <= num_special <= MAX_ADDED_TOKENS:
            raise ValueError(f"{file.name} has {num_special} special tokens, over the limit of {MAX_ADDED_TOKENS}")
        num_ranks = min(len(vocabulary), int(sizes["default_vocab_size"]) - num_special)
        ranks = [_decoded(entry["token_bytes"]) for entry in vocabulary[:num_ranks]]
        listed = content.get("special_tokens") or [
            {"rank": number, "token_str": name} for number, name in enumerate(_TEKKEN_SPECIALS)
        ]
        named = {int(entry["rank"]): str(entry["token_str"]) for entry in listed}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file.name} is malformed: {error!r}") from error
    specials = [named.get(number, f"<SPECIAL_{number}>") for number in range(num_special)]
    tokenizer = _by_rank(ranks, pattern, before=specials)
    _add(tokenizer, {number: _special(name) for number, name in enumerate(specials)})
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    settings = _settings(config, {role: name for role, name in roles.items() if name in specials}, tokenizer)
    tokenizer.post_processor = ends(tokenizer, settings.get("bos_token"))
    version = str(sizes.get("version", "")).removeprefix("v")
    return StoredTokenizer(tokenizer, settings, int(version) if version.isdigit() else None)


def _read_sentencepiece(file: Path, config: Mapping[str, Any]) -> StoredTokenizer:
    """tokenizer_config.json may give numbers of the model other names, and add tokens behind them."""
    data = file.read_bytes()
    if _is_ranks(data):
        raise ValueError(
            f"{file.name} is in tiktoken's format, as in Meta's original checkpoints: take tokenizer.json of the "
            "Hugging Face version of the model"
        )
    model = SentencePieceModel.read(data)
    added = _added(config)
    tokenizer = model.tokenizer(
        {number: token.content for number, token in added.items()}, first_only=config.get("legacy") is False
    )
    own = {number: _special(name) for number, name in model.controls().items()}
    own |= {number: AddedToken(name, normalized=False) for number, name in model.user_defined().items()}
    _add(tokenizer, own | added)
    settings = _settings(config, model.roles(), tokenizer)
    bos = settings.get("bos_token") if config.get("add_bos_token", True) else None
    eos = settings.get("eos_token") if config.get("add_eos_token", False) else None
    tokenizer.post_processor = ends(tokenizer, bos, eos)
    return StoredTokenizer(tokenizer, settings)


def _by_rank(ranks: Sequence[bytes], pattern: str, *, before: Sequence[str] = ()) -> Tokenizer:
    """A byte-level tokenizer whose merges follow from the tokens' ranks.

    Args:
        before: tokens that have the first numbers.
    """
    vocabulary = {as_characters(token): number for number, token in enumerate(ranks)}
    merges = merges_by_rank(vocabulary, range(len(ranks)))
    numbered = {name: number for number, name in enumerate(before)}
    numbered |= {token: number + len(before) for token, number in vocabulary.items()}
    return byte_level(numbered, merges, Split(pattern, whole_first=True))


def _add(tokenizer: Tokenizer, tokens: Mapping[int, AddedToken]) -> None:
    """
    Raises:
        ValueError: one would get another number.
    """
    tokenizer.add_tokens([tokens[number] for number in sorted(tokens)])
    for number, token in tokens.items():
        found = tokenizer.token_to_id(token.content)
        if found != number:
            raise ValueError(f"its added token {token.content!r} has the number {number}, but would be {found}")


def _ranks(file: Path) -> list[bytes]:
    found: dict[int, bytes] = {}
    for number, line in enumerate(file.read_bytes().splitlines()):
        token, _, rank = line.partition(b" ")
        if not rank.isdigit():
            raise ValueError(f"line {number + 1} of {file.name} is no token and its rank")
        found[int(rank)] = _decoded(token)
    if not found or max(found) != len(found) - 1:
        raise ValueError(f"the ranks of {file.name} are not 0 to {len(found) - 1}")
    return [found[rank] for rank in range(len(found))]


def _is_ranks(data: bytes) -> bool:
    """Whether the first line is a token of tiktoken's format."""
    token, _, rank = data[:200].partition(b"\n")[0].partition(b" ")
    return rank.strip().isdigit() and bool(token) and token.isascii() and b"\n" in data[:200]


def _decoded(token: str | bytes) -> bytes:
    try:
        return base64.b64decode(token, validate=True)
    except binascii.Error:
        raise ValueError(f"{token!r} is not base64") from None


def _read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, what only special_tokens_map.json has, and the template of chat_template.jinja."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            found |= read_object(folder, name) or {}
    templates = {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = folder / "chat_template.jinja"
    if templates:
        texts = {name: file.read_text(encoding="utf-8") for name, file in templates.items()}
        found["chat_template"] = texts["default"] if list(texts) == ["default"] else texts
    return found


def _settings(config: Mapping[str, Any], own: Mapping[str, str], tokenizer: Tokenizer) -> dict[str, Any]:
    """
    Args:
        own: special tokens that the file of the vocabulary names, by their part.

    Raises:
        ValueError: a special token is not in the vocabulary.
    """
    settings: dict[str, Any] = {"clean_up_tokenization_spaces": False, "chat_template": _template(config)}
    for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = _content(config[role]) if role in config else own.get(role)
        if token is not None and tokenizer.token_to_id(token) is None:
            raise ValueError(f"its {role} {token!r} is not in the vocabulary")
        settings[role] = token
    return settings


def _template(config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """One, or several by name, which tokenizer_config.json lists."""
    template = config.get("chat_template")
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return template


def _added(config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Tokens that tokenizer_config.json numbers."""
    return dict(_numbered(config.get("added_tokens_decoder") or {}))


def _numbered(added: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    for number, token in added.items():
        if not number.isdigit() or not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise ValueError(f"added_tokens_decoder of tokenizer_config.json has a malformed entry {number!r}")
        flags = {name: bool(token.get(name, False)) for name in ("special", "normalized", "lstrip", "rstrip")}
        yield int(number), AddedToken(token["content"], single_word=bool(token.get("single_word", False)), **flags)


def _special(name: str) -> AddedToken:
    return AddedToken(name, special=True, normalized=False)


def _content(token: Any) -> str | None:
    """The text of a special token in tokenizer_config.json, which is a text or an object."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) and found else None
