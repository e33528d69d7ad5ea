"""The process that reads answers by a response template, whose patterns come from the checkpoint.

The server starts it. It loads transformers' parser once, and forks for each sample: the child takes the sample's text
piece by piece and says what became certain. For each piece it has a span of CPU time, after which the kernel ends it,
whatever a pattern does. It has no other thread, so that it can fork.
"""

import contextlib
import json
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.content_parsers import STREAMABLE_PARSERS
from transformers.utils.chat_parsing.response_templates import ResponseTemplate, load_response_template

from palladio.http.response_templates.spec import CALLS_FIELD, CONTENT_FIELD, REASONING_FIELDS
from palladio.runtime.telemetry.process_memory import reserved_bytes

Event = list[str]  # "reasoning" or "content" and a text; "call", name, arguments and the text that was read

_NICE = 5  # the server and the engine go first
_LOAD_SECONDS = 10.0
_MAX_REASON = 200  # characters of an error for the log
_MAX_MEMORY = 1 << 30  # bytes of address space over what is there


def main(control_fd: int, cpu_seconds: float) -> None:
    """Serves the server on the other end of the socket until it closes it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    os.nice(_NICE)
    control = socket.socket(fileno=control_fd)
    with control.makefile("rb") as lines:
        raw = json.loads(lines.readline())
    for field in raw["fields"].values():
        field["optional"] = True  # what is missing in an answer is no reason to lose it
    signal.setitimer(signal.ITIMER_PROF, _LOAD_SECONDS)  # of compiling the patterns
    template = load_response_template(raw)
    signal.setitimer(signal.ITIMER_PROF, 0)
    control.sendall(b"+")
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            control.close()
            _read_in_child(template, descriptors[0], cpu_seconds)
        os.close(descriptors[0])


def _read_in_child(template: ResponseTemplate, descriptor: int, cpu_seconds: float) -> None:
    """Never returns: what goes wrong ends the child, and the server sees its socket close."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # no /proc: the time is limited all the same
            space = reserved_bytes() + _MAX_MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (space, space))
        with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as lines:
            for answer in _answers(template, lines, lambda: signal.setitimer(signal.ITIMER_PROF, cpu_seconds)):
                connection.sendall(json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def _answers(
    template: ResponseTemplate, lines: Iterator[bytes], begin: Callable[[], object]
) -> Iterator[dict[str, Any]]:
    """An answer for each line but the first one, which says what comes before the sample and which tools there are."""
    first = json.loads(next(lines))
    begin()
    parser = ResponseParser(template, prefix=first["prefix"], tools=first["tools"])
    translation = EventTranslation(template)
    translation.skip(parser.initial_events)
    for line in lines:
        begin()
        message = json.loads(line)
        try:
            found = parser.finalize()[1] if message["ends"] else parser.feed(message["text"])
            events = translation.events(found)
        except Exception as error:  # noqa: BLE001 - such as a call that cannot be read: what follows has no certain field
            yield {"failed": f"{type(error).__name__}: {error}"[:_MAX_REASON]}
            return
        yield {"events": events, "held": translation.num_unread + len(parser._buffer) - parser._pos}


class EventTranslation:
    """Turns transformers' events into those of a message.

    Attributes:
        num_unread: characters of the open region that come out when it closes.
    """

    def __init__(self, template: ResponseTemplate) -> None:
        self._fields = template.fields
        self._space = ""  # white space that may be the end of a region
        self._has_text = False
        self._raw: list[str] = []
        self.num_unread = 0
        self._seen: set[str] = set()

    def skip(self, events: list[dict[str, Any]]) -> None:
        """Take the events of the prompt: a region that it leaves open goes on in the sample."""
        self.events(events)
        self._clear_raw()

    def events(self, found: list[dict[str, Any]]) -> list[Event]:
        written: list[Event] = []
        for event in found:
            kind, name = event["type"], event["field"]
            if kind == "region_open":
                self._space, self._has_text = "", False
                self._clear_raw()
            elif kind == "region_chunk" and not self._is_streamed(name):
                self._raw.append(event["text"])
                self.num_unread += len(event["text"])
            elif kind == "region_chunk":
                written += self._text(name, event["text"])
            else:
                written += self._closed(name, event["value"])
                self._clear_raw()
        return written

    def _clear_raw(self) -> None:
        self._raw.clear()
        self.num_unread = 0

    def _is_streamed(self, name: str) -> bool:
        field = self._fields[name]
        return _kind(name) is not None and field.content in STREAMABLE_PARSERS and field.transform is None

    def _text(self, name: str, text: str) -> list[Event]:
        """What is certain to be text: white space around it is none, unless the template keeps it."""
        if self._fields[name].content_args.get("strip", True):
            text = self._space + (text if self._has_text else text.lstrip())
            body = text.rstrip()
            self._space, text = text[len(body) :], body
        return self._written(name, text)

    def _written(self, name: str, text: str) -> list[Event]:
        kind = _kind(name)
        if not text or kind is None:
            return []
        join = self._fields[name].join
        before = join if join and not self._has_text and name in self._seen else ""
        self._has_text = True
        self._seen.add(name)
        return [[kind, before + text]]

    def _closed(self, name: str, value: Any) -> list[Event]:
        if name == CALLS_FIELD:
            raw = "".join(self._raw)
            calls = _calls(value)
            if len(calls) < 2:
                return [["call", *call, raw] for call in calls] or [["content", raw]]
            texts = (json.dumps(one, ensure_ascii=False) for one in value)  # the region's own would come once a call
            return [["call", *call, text] for call, text in zip(calls, texts, strict=True)]
        if self._is_streamed(name):
            return []
        return self._written(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _kind(field: str) -> str | None:
    """What a field becomes; None: answers have no place for it."""
    if field in REASONING_FIELDS:
        return "reasoning"
    return "content" if field == CONTENT_FIELD else None


def _calls(value: Any) -> list[tuple[str, str]]:
    """Name and arguments of each call in a field's value; none, if one of them is no call."""
    found: list[tuple[str, str]] = []
    for one in value if isinstance(value, list) else [value]:
        function = one.get("function", one) if isinstance(one, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = _arguments(function.get("arguments")) if isinstance(function, dict) else None
        if not isinstance(name, str) or arguments is None:
            return []
        found.append((name, arguments))
    return found


def _arguments(value: Any) -> str | None:
    """The JSON text of an object; None: it is something else."""
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else {}
    if value is None:
        return "{}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else None
