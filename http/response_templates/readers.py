"""TemplateReaders: the process that reads answers by response templates, and a reader of each sample."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Literal

from palladio.http.response_templates.spec import ResponseSpec

logger = logging.getLogger(__name__)

Event = tuple[Literal["reasoning", "content"], str] | tuple[Literal["call"], str, str, str]

CPU_SECONDS = 0.5  # for one piece of a sample
_EXTRA_SECONDS = 20.0  # that an answer may take beyond its CPU time, as on a busy machine
_START_SECONDS = 60.0
_MAX_LINE = 1 << 28  # bytes of an answer
_MAX_TEXTS = 4  # whole texts read at once; each has a child of its own
_CODE = (
    "import sys; sys.path[:] = sys.argv[3:]\n"
    "from palladio.http.response_templates.reader_process import main; main(int(sys.argv[1]), float(sys.argv[2]))"
)


class ReaderDownError(Exception):
    """The process does not start, or has ended."""


class TemplateReaders:
    """The process starts when the first sample asks for it, and again when it has ended. It reads by one template: that
    of the model that is served.

    Args:
        cpu_seconds: for one piece of a sample.

    Attributes:
        texts: those who read a whole text hold it.
    """

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()
        self.texts = asyncio.Semaphore(_MAX_TEXTS)
        self._text = ""
        self._broken = ""  # a template that cannot be loaded
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None: there is no process."""
        return None if self._process is None else self._process.pid

    def reader(self, spec: ResponseSpec, prefix: str, tools: Sequence[dict[str, Any]]) -> "SampleReader":
        """Make the reader of one sample.

        Args:
            prefix: the prompt.
            tools: as the chat template gets them.
        """
        return SampleReader(self, spec, {"prefix": prefix, "tools": tools}, self._cpu_seconds)

    def connect(self, spec: ResponseSpec) -> socket.socket:
        """A connection to a new child of the process. It blocks while the process starts, which takes a second or two.

        Raises:
            ReaderDownError: it does not start.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack, theirs, self._lock:
            stack.callback(ours.close)
            for _ in range(2):  # it may have ended since
                try:
                    socket.send_fds(self._running(spec), [b"s"], [theirs.fileno()])
                except OSError:
                    self._stop()
                    continue
                stack.pop_all()
                return ours
        raise ReaderDownError("its process ends at once; see its messages above")

    def close(self) -> None:
        """Ends the process; samples that are being read go on as plain text."""
        with self._lock:
            self._stop()

    def _running(self, spec: ResponseSpec) -> socket.socket:
        if self._control is not None and self._text == spec.text:
            return self._control
        self._stop()
        if spec.text == self._broken:
            raise ReaderDownError("it cannot be loaded; see the messages above")
        control, theirs = socket.socketpair()
        with theirs:
            paths = [path or os.getcwd() for path in sys.path]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(theirs.fileno()), str(self._cpu_seconds), *paths],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in a terminal is for the server
            )
        self._control, self._text = control, spec.text
        control.settimeout(_START_SECONDS)
        control.sendall(spec.text.encode() + b"\n")
        if control.recv(1) != b"+":
            self._stop()
            self._broken = spec.text
            raise ReaderDownError("it cannot be loaded; see the messages above")
        return control

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def read_whole(reader: "SampleReader", text: str) -> list[Event]:
    """The events of a whole text; few are read at once."""
    async with reader.readers.texts:
        try:
            return [*(await reader.feed(text)), *(await reader.finish())]
        finally:
            reader.close()


class SampleReader:
    """Reads one sample. Where the template cannot go on, because a pattern takes too long or a call cannot be read, the
    text is content from there on, as the model wrote it.

    Attributes:
        has_failed: it could not go on.
        readers: what it belongs to.
    """

    def __init__(self, readers: TemplateReaders, spec: ResponseSpec, opening: dict[str, Any], cpu: float) -> None:
        self.has_failed = False
        self._cpu = cpu
        self.readers = readers
        self._spec = spec
        self._opening = opening
        self._held = ""  # has been taken, and has not come out
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def feed(self, text: str) -> list[Event]:
        """Takes new text, gives what became certain."""
        return await self._ask({"text": text, "ends": False}, text)

    async def finish(self) -> list[Event]:
        """What was held back, at the end of the text; closes it."""
        events = await self._ask({"text": "", "ends": True}, "")
        self.close()
        return events

    def close(self) -> None:
        """Ends the child."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, message: dict[str, Any], text: str) -> list[Event]:
        if self.has_failed:
            return [("content", text)] if text else []
        self._held += text
        answer = await self._answer(message)
        if answer is None:
            self.has_failed = True
            self.close()
            rest, self._held = self._held, ""
            return [("content", rest)] if rest else []
        self._held = self._held[max(0, len(self._held) - answer["held"]) :]
        return [tuple(event) for event in answer["events"]]

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """None: there is none."""
        try:
            async with asyncio.timeout(_EXTRA_SECONDS + self._cpu + (0 if self._streams else _START_SECONDS)):
                reader, writer = self._streams or await self._open()
                writer.write(json.dumps(message).encode() + b"\n")
                line = await reader.readline()
        except (OSError, ValueError, TimeoutError, ReaderDownError) as error:
            logger.warning("The response template does not read answers: %s", error or type(error).__name__)
            return None
        answer: dict[str, Any] | None = json.loads(line) if line else None
        if answer is None:
            logger.warning("The response template does not read a piece of an answer within %g s", self._cpu)
        elif "failed" in answer:
            logger.warning("The response template does not read an answer: %s", answer["failed"])
            return None
        return answer

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection, opening = await asyncio.to_thread(self._connect)
        connection.setblocking(False)
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            self._streams = await asyncio.open_connection(sock=connection, limit=_MAX_LINE)
            stack.pop_all()
        self._streams[1].write(opening)
        return self._streams

    def _connect(self) -> tuple[socket.socket, bytes]:
        """A connection, and its first line: a prompt of megabytes takes long to write."""
        opening = json.dumps(self._opening).encode() + b"\n"
        return self.readers.connect(self._spec), opening
