"""Faults of the commands, the terminal chat, the load and the hub."""

from tests.faults.fault import Fault

_COMMANDS, _TESTS = "palladio/commands/", "tests/palladio/commands/"
LOAD = ("tests/palladio/load/test_load.py",)
CHAT = ("tests/palladio/terminal/test_chat_loop.py",)
HUB = ("tests/runtime/text/hub/test_hub_download.py", "tests/runtime/text/hub/test_hub.py")
BATCH = (_TESTS + "test_batch.py",)
DOCTOR = (_TESTS + "doctor/test_doctor.py",)
TABLE = ("tests/palladio/cli/test_table.py",)

COMMAND_FAULTS = (
    Fault(
        "an interrupted answer is lost from the conversation",
        "palladio/terminal/chat_loop.py",
        'conversation.answered("".join(said))',
        'conversation.answered("".join(said) if not status else "")',
        CHAT,
    ),
    Fault(
        "escape sequences of a model reach the terminal",
        "palladio/terminal/screen.py",
        "shown = printable(text)",
        "shown = text",
        CHAT,
    ),
    Fault(
        "thoughts go into a pipe with the answer",
        "palladio/terminal/screen.py",
        "if dim and not self._styled:",
        "if dim and self._styled and not self._out:",
        CHAT,
    ),
    Fault(
        "an answer that is left keeps its connection",
        "palladio/load/http_client.py",
        "            if connection is not None:\n                connection[1].close()",
        "            if connection is not None:\n                self._idle.append(connection)",
        LOAD,
    ),
    Fault(
        "a stale connection fails a request",
        "palladio/load/http_client.py",
        "connection[1].close()  # the server had closed it meanwhile",
        "raise",
        LOAD,
    ),
    Fault(
        "inter-token latency counts from the request's start",
        "palladio/load/client.py",
        "self.gaps.append(now - self._last)",
        "self.gaps.append(now - self.started)",
        LOAD,
    ),
    Fault(
        "concurrency is not bounded",
        "palladio/load/runner.py",
        "len(asks) if pace.concurrency is None else pace.concurrency",
        "len(asks)",
        LOAD,
    ),
    Fault(
        "a sweep looks above the load that broke",
        "palladio/load/sweep.py",
        "            failed = middle\n",
        "            held = middle\n",
        LOAD,
    ),
    Fault(
        "a broken promise does not become the exit code",
        _COMMANDS + "bench.py",
        'return 1 if any(level["broken"] for level in levels) else 0',
        "return 0",
        (_TESTS + "test_bench.py",),
    ),
    Fault(
        "a wrong name is not answered with the nearest ones",
        "runtime/text/hub/local_path.py",
        "if by_lower[one] != name",
        "if by_lower[one] == name",
        HUB,
    ),
    Fault(
        "what is in the cache counts as to be downloaded",
        "runtime/text/hub/hub_download.py",
        "sum(file.size for file in self.files if not file.is_here)",
        "sum(file.size for file in self.files)",
        HUB,
    ),
    Fault(
        "a download goes on when nobody waits for it",
        "runtime/text/hub/hub_download.py",
        "if stop.wait(_INTERVAL):",
        "if stop.wait(_INTERVAL) and not blobs:",
        HUB,
    ),
    Fault(
        "offline, the hub is said to have failed",
        "runtime/text/hub/hub.py",
        "    if is_offline():\n        return (\n",
        "    if not is_offline() and False:\n        return (\n",
        HUB,
    ),
    Fault(
        "a download is started without room on the disk",
        _COMMANDS + "models/pull.py",
        "if free is not None and listing.missing > free:",
        "if free is not None and listing.missing < 0:",
        (_TESTS + "models/test_pull.py",),
    ),
    Fault(
        "a model that cannot be served is listed as ready",
        _COMMANDS + "models/list_models.py",
        "    if problem is not None:\n",
        "    if problem is None:\n",
        (_TESTS + "models/test_pull.py",),
    ),
    Fault(
        "a batch goes on with another file's answers",
        "http/batches/offline_file.py",
        "if metadata.get(_DIGEST) != self._requests.digest:",
        "if metadata.get(_DIGEST) is None:",
        BATCH,
    ),
    Fault(
        "a batch begins again after a kill",
        "http/batches/offline_file.py",
        "        if begun:\n",
        "        if len(begun) > 1:\n",
        BATCH,
    ),
    Fault(
        "the doctor waits for jax for ever",
        _COMMANDS + "doctor/doctor_checks.py",
        "child.wait(limit)",
        "child.wait(limit * 1000)",
        DOCTOR,
    ),
    Fault(
        "the doctor tells a token",
        _COMMANDS + "doctor/doctor_checks.py",
        "return _SECRET.sub",
        "return str if not text else (lambda mark, words: words)",
        DOCTOR,
    ),
    Fault(
        "completion leaves out the flags of serve",
        "palladio/cli/completion.py",
        "if COMMANDS[command].takes_serve_flags else {}",
        "if not COMMANDS[command].takes_serve_flags else {}",
        TABLE,
    ),
    Fault(
        "a reader that goes away is a traceback",
        "palladio/__main__.py",
        "except BrokenPipeError:",
        "except ChildProcessError:",
        TABLE,
    ),
    Fault(
        "a likelihood counts the context's tokens",
        _COMMANDS + "eval/engine_scores.py",
        "scored = entries[len(entries) - count :]",
        "scored = entries[len(entries) - count - 1 :]",
        (_TESTS + "eval/test_evaluate.py",),
    ),
    Fault(
        "the embedded model's name is taken for a hub id",
        "palladio/flags/server_args.py",
        "    if name not in DEFAULT_MODEL_ALIASES:\n",
        "    if name in DEFAULT_MODEL_ALIASES:\n",
        ("tests/palladio/flags/test_server_args.py",),
    ),
    Fault(
        "nobody hears that one process speaks HTTP, however many are asked for",
        "runtime/interface/flags/foreign_flags.py",
        "None if number == least else",
        "None if number >= least else",
        ("tests/palladio/flags/test_foreign_flags.py",),
    ),
    Fault(
        "flags of models with states are not known by their family",
        "runtime/interface/flags/foreign_flags.json",
        '"name": "mamba_*"',
        '"name": "mamba_x"',
        ("tests/palladio/flags/test_foreign_flags.py",),
    ),
)
