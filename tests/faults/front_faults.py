"""Faults of the front: of streams on their way to a client, connections and uploads."""

from tests.faults.fault import Fault

_KEEP_ALIVE = ("tests/http/generation/test_keep_alive.py",)
_TABLE, _SLOW = ("tests/runtime/front/requests/test_request_table.py",), ("tests/http/security/test_slow_readers.py",)

FRONT_FAULTS = (
    Fault(
        "the end of a stream does not reach its reader",
        "runtime/front/requests/request_table.py",
        "if self._fast_path is not None and output.finish is None:",
        "if self._fast_path is not None:",
        _TABLE,
    ),
    Fault(
        "tokens overtake those that a slow client has not taken",
        "runtime/front/requests/request_table.py",
        "if waiting is not None and not waiting.done() and self._fast_path(output):",
        "if self._fast_path(output):",
        _TABLE,
    ),
    Fault(
        "a request whose prefill was reported does not survive a crash",
        "runtime/front/requests/request_table.py",
        "        if output.progress is None:\n",
        "        if output.request_id:\n",
        _TABLE,
    ),
    Fault(
        "comments come among events that go past ASGI",
        "http/generation/event_stream.py",
        "last = self._last if pipe is None else max(self._last, pipe.last_write)",
        "last = self._last",
        _KEEP_ALIVE,
    ),
    Fault(
        "the first comment comes an interval late",
        "http/generation/event_stream.py",
        "is_due=not self._stream.has_begun",
        "is_due=False",
        _KEEP_ALIVE,
    ),
    Fault(
        "lines of JSON have comments",
        "http/ollama/routes_ollama.py",
        "run.start(keeps_alive=False)",
        "run.start()",
        _KEEP_ALIVE,
    ),
    Fault(
        "an early error has no HTTP status where comments may come",
        "http/generation/output_stream.py",
        "await asyncio.wait((opening,), timeout=self.keep_alive)",
        "await asyncio.wait((opening,), timeout=0)",
        _KEEP_ALIVE,
    ),
    Fault(
        "every request reports its prefill",
        "runtime/core/watch/prefill_reporter.py",
        "if request.given.options.progress:",
        "if self._began is not None:",
        ("tests/runtime/core/watch/test_prefill_reporter.py",),
    ),
    Fault(
        "a client is told what went wrong inside",
        "runtime/front/requests/request_table.py",
        'details = f"the',
        'details = f"{logging.sys.exc_info()[1]!r}; the',
        _TABLE,
    ),
    Fault(
        "a stream is written for a client that does not read",
        "http/security/body_pipe.py",
        "not self._flow.write_paused",
        "not self._flow.read_paused",
        _SLOW,
    ),
    Fault(
        "a stream has chunks for a client that knows none",
        "http/security/body_pipe.py",
        "cycle.chunked_encoding is True",
        "cycle.chunked_encoding is not None",
        ("tests/http/security/test_half_closed.py",),
    ),
    Fault(
        "text is taken at a glance with what may belong to a tag",
        "http/reasoning/reasoning_parser.py",
        'self._after_tag or "\\n" in text or marks',
        "self._after_tag or marks",
        ("tests/http/reasoning/test_reasoning.py",),
    ),
    Fault(
        "a duplicate id ends the engine",
        "runtime/core/engine_core.py",
        "if self._scheduler.find(name) is not None or name in self._grammars.waiting:",
        "if name in self._grammars.waiting:",
        ("tests/runtime/core/test_engine_core.py",),
    ),
    Fault(
        "connections that have ended still count",
        "http/security/connection_limits.py",
        "        self._counts[place.is_spare] -= 1",
        "        self._counts[place.is_spare] -= place.is_spare",
        ("tests/http/security/test_connection_limits.py",),
    ),
    Fault(
        "uploads that are under way are removed",
        "http/storage/storage.py",
        "begun = os.fstat(lock).st_mtime",
        'begun = float("inf")',
        ("tests/http/files/test_leftovers.py",),
    ),
)
