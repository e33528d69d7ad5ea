"""The process that downloads from the hub: its client's threads cannot be stopped, and Ctrl-C would wait for them.

It reads the arguments of `snapshot_download` from its standard input, as JSON, and prints its result; it ends when that
input does, in whatever way whoever has started it has ended.
"""

import contextlib
import json
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from tqdm import tqdm

_MOST_FILES = 1 << 16  # that are looked through


class Silent(tqdm):  # type: ignore[misc]  # tqdm has no types
    """The hub's own bars, not shown."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "disable": True})


def main() -> None:
    """Prints {"folder": …} or {"error": …}."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; who waits for this process ends it
    with os.fdopen(os.dup(0), encoding="utf-8") as words:
        arguments = json.loads(words.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        found = {"folder": snapshot_download(**arguments, tqdm_class=Silent)}
    except (OSError, ValueError) as error:
        found = {"error": (str(error).strip().splitlines() or [type(error).__name__])[0]}
    print(json.dumps(found), flush=True)  # noqa: T201  # to the process that waits for it


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    _remove_unfinished()
    os._exit(1)


def _remove_unfinished() -> None:
    """What this process has begun to write, which the hub's client would never use again."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # other threads begin no more of it
    time.sleep(0.05)  # and what they are opening is there
    for descriptor in range(min(most, _MOST_FILES) if most >= 0 else _MOST_FILES):
        with contextlib.suppress(OSError):
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path.name.endswith(".incomplete"):
                path.unlink()
