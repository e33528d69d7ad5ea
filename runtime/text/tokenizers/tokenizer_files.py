"""The files that a tokenizer is read from, looked at before transformers reads them: it has no limits, and some of them
would keep it busy for minutes, or take all memory."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import CheckpointError
from palladio.model.files.folder_files import find_files
from palladio.model.files.small_files import MAX_SETTINGS_BYTES, MAX_TABLE_BYTES, parse_json, read_bytes
from palladio.runtime.text.templates.template_limits import MAX_TEMPLATE_BYTES

MAX_ADDED_TOKENS: Final = 70_000
"""Published tokenizers have up to 65,800 (those of models that speak); transformers takes 0.1 ms of CPU for each."""
MAX_TOKEN: Final = 4096  # characters of an added token
MAX_COUNT: Final = 4096  # of layers and labels in a tokenizer's config.json: transformers makes lists of them

_MOST_SHOWN: Final = 1000  # characters of what a library says
_PATTERNS: Final = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "additional_chat_templates/*.jinja")
_TABLES: Final = ("tokenizer.json", "tekken.json", "vocab.json", "added_tokens.json")
_LISTS_OF_TOKENS: Final = ("added_tokens", "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")

_COUNTED: Final = ("layer", "depth", "blocks", "stages", "num_labels")  # in the names of such numbers, of any model
_FORMS: Final = (  # of tokenizers
    *("tokenizer.json", "tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json", "vocab.txt"),
    *("*.tiktoken", "tokenizer_config.json"),
)


def check_tokenizer_files(folder: Path) -> None:
    """
    Raises:
        CheckpointError: a file is too large, nested too deeply or not JSON, no regular file, or lies elsewhere; it has
            too many added tokens, or too long ones; config.json has more layers than any model.
    """
    for pattern in _PATTERNS:
        for file in find_files(folder, pattern):
            if not file.name.endswith(".index.json"):
                check_tokenizer_file(folder, file)


def check_tokenizer_file(folder: Path, file: Path) -> None:
    """Check one file.

    Raises:
        CheckpointError: see check_tokenizer_files.
    """
    name = str(file.relative_to(folder))
    if file.suffix == ".jinja":
        most = MAX_TEMPLATE_BYTES
    elif file.suffix != ".json" or file.name in _TABLES:
        most = MAX_TABLE_BYTES
    else:
        most = MAX_SETTINGS_BYTES
    data = read_bytes(folder, name, most)
    if file.suffix != ".json" or data is None:
        return
    content = parse_json(data, file)
    _check_added(file, content)
    if file.name == "config.json":
        _check_counts(file, content)


def _check_added(file: Path, content: Any) -> None:
    if not isinstance(content, dict):
        return
    names = [content] if file.name == "added_tokens.json" else [content.get(key) for key in _LISTS_OF_TOKENS]
    special = {key: value for key, value in content.items() if key.endswith("_token")}  # pad_token and others
    for found in (*names, [*special.values()]):
        texts = list(_texts(found))
        if len(texts) > MAX_ADDED_TOKENS:
            raise CheckpointError(f"{file} has {len(texts):,} added tokens, over the limit of {MAX_ADDED_TOKENS:,}")
        longest = max(texts, key=len, default="")
        if len(longest) > MAX_TOKEN:
            raise CheckpointError(
                f"{file} has an added token of {len(longest):,} characters, over the limit of {MAX_TOKEN:,}: "
                f"{shown(longest[:MAX_TOKEN])}"
            )


def _texts(found: Any) -> Iterator[str]:
    """Texts of added tokens, which come by number, by name, or in a list, as texts or objects with their content."""
    entries: Iterable[Any] = ()
    if isinstance(found, dict):
        entries = (key if isinstance(value, int) else value for key, value in found.items())
    elif isinstance(found, list):
        entries = found
    for entry in entries:
        text = entry.get("content") if isinstance(entry, dict) else entry
        yield text if isinstance(text, str) else json.dumps(text)


def _check_counts(file: Path, content: Any) -> None:
    """Check the counts in the config of a model that need not be served: the tokenizer may be another model's."""
    level = [content]
    while level:
        objects = [each for each in level if isinstance(each, dict)]
        for key, value in ((key, value) for each in objects for key, value in each.items()):
            if isinstance(value, int) and value > MAX_COUNT and any(word in key for word in _COUNTED):
                raise CheckpointError(f"{file}: {key[:100]} must be at most {MAX_COUNT}, found {shown(value)}")
        level = [value for each in objects for value in each.values()]


def why_unusable(path: Path, error: Exception) -> str:
    """Why a tokenizer cannot be used, in a line.

    Args:
        error: the error of reading the tokenizer of a directory or of a GGUF file.
    """
    if not path.is_dir() and not path.is_file():
        return "no such directory"
    if path.is_dir() and not any(next(path.glob(pattern), None) for pattern in _FORMS):
        return "it holds no tokenizer files"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:_MOST_SHOWN]
