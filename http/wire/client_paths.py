"""Errors of a request that was translated to a chat request: they name what the client sent."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from palladio.runtime.interface.errors import InvalidRequestError

_MESSAGE = re.compile(r"\bmessages\.(\d+)[\w.\-]*")


@contextlib.contextmanager
def client_paths(paths: Mapping[str, str], messages: Sequence[str], whole: str) -> Iterator[None]:
    """
    Args:
        paths: regular expressions of paths in the chat request → what they are in the client's, in their order.
        messages: the client's path of each message.
        whole: the client's path of all of them.
    """
    try:
        yield
    except InvalidRequestError as exc:
        exc.args = (_renamed(str(exc), paths, messages, whole),)
        exc.param = None if exc.param is None else _renamed(exc.param, paths, messages, whole, is_path=True)
        raise


def _renamed(text: str, paths: Mapping[str, str], messages: Sequence[str], whole: str, *, is_path: bool = False) -> str:
    """Args: is_path: the text is a path; else one that may name it, once."""
    if is_path and text == "messages":
        return whole

    def of_message(match: re.Match[str]) -> str:
        position = int(match.group(1))
        return messages[position] if position < len(messages) else whole

    text = _MESSAGE.sub(of_message, text, count=1)
    for path, theirs in paths.items():
        renamed = re.sub(rf"(?<![\w.]){path}", theirs, text, count=1)
        if renamed != text:
            return renamed
    return text
