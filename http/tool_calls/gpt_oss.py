"""gpt-oss (Harmony): a message on a channel that is addressed to `functions.NAME`."""

import re

from palladio.http.tool_calls.json_call import JsonCallParser
from palladio.http.tool_calls.reader import MalformedCallError, Step

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
CALL, END = "<|call|>", "<|end|>"

_MAX_HEADER = 512
_RECIPIENT = re.compile(r"\bto=functions\.([A-Za-z0-9_.\-]+)")


class GptOssParser(JsonCallParser):
    """The recipient may stand before the channel or after it. A message to nobody, or to a tool of another kind, is
    content, marks and all: the reasoning parser takes those apart before."""

    def _read(self) -> Step[None]:
        while (yield from self._find((START, CHANNEL))):
            if (yield from self._attempt(self._message())):
                yield from self._reader.space()
                if not (yield from self._reader.accept(CALL)):
                    yield from self._reader.accept(END)

    def _message(self) -> Step[None]:
        header, _ = yield from self._reader.text_until((MESSAGE,), limit=_MAX_HEADER)
        recipient = _RECIPIENT.search(header)
        if recipient is None:
            raise MalformedCallError
        yield from self._arguments(recipient[1])
