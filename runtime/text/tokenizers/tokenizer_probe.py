"""Whether a tokenizer can divide texts at all, asked at the start: a pattern of its own may need time without end."""

import contextlib
import json
import string
from collections.abc import Iterator
from typing import Any, Final

from tokenizers import Tokenizer

from palladio.runtime.interface.native_panics import is_panic

_REPEATED: Final = 64  # times; a pattern that tries all ways to divide a run gives up long before
_RUNS: Final = ("a", "A", "1", " ", "\n", "-", ".", "é", "中", "\u0301", "a1", "a ", "aA")
_ENDS: Final = ("!", "\x01", "b")
_MAX_CHARACTERS: Final = 32  # of a pattern that are tried, too
_TOO_LONG: Final = 2000  # characters of what the library says


def check_divides(tokenizer: Tokenizer) -> None:
    """Tries it on runs of characters, those of its own patterns among them, with something else at their end.

    Raises:
        ValueError: it fails on one.
    """
    with panics_as_errors("its tokenizer fails on a text"):
        runs = [*_RUNS, *sorted(_characters(tokenizer))[:_MAX_CHARACTERS]]
        for text in ("", *(run * _REPEATED + end for run in runs for end in _ENDS)):
            tokenizer.decode(tokenizer.encode(text).ids)


@contextlib.contextmanager
def panics_as_errors(what: str) -> Iterator[None]:
    """Rust's panics pass `except Exception`.

    Args:
        what: is wrong, for messages.

    Raises:
        ValueError: the library has panicked.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        said = " ".join(str(error).split())[:_TOO_LONG]
        hint = "; its pattern needs too much time: use one without nested repetitions" if "retry-limit" in said else ""
        raise ValueError(f"{what}: {said}{hint}") from None


def _characters(tokenizer: Tokenizer) -> set[str]:
    """Letters and digits that its patterns name."""
    found: set[str] = set()
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder)
    # The state of a part is its JSON. That of the whole tokenizer has the vocabulary, which takes seconds to write.
    level: list[Any] = [json.loads(part.__getstate__()) for part in parts if part is not None]
    while level:
        objects = [each for each in level if isinstance(each, dict)]
        for each in objects:
            found |= {one for one in str(each.get("Regex", "")) if one not in string.punctuation}
        level = [part for each in objects for part in each.values()]
        level += [part for value in level if isinstance(value, list) for part in value]
    return found
