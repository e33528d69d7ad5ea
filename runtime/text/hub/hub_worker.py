"""The process that downloads from the hub. A signal ends it at once; threads of the hub's client cannot be stopped.

It reads a line, a JSON object of the arguments of `snapshot_download`, and prints the result. It ends when its standard
input does, so it does not outlive the process that started it.
"""

import json
import os
import sys
import threading
from typing import Any

from huggingface_hub import snapshot_download
from tqdm import tqdm


class Silent(tqdm):  # type: ignore[misc]  # tqdm has no types
    """The hub's own bars, not shown."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "disable": True})


def main() -> None:
    """Prints {"folder": …} or {"error": …}."""
    arguments = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        found = {"folder": snapshot_download(**arguments, tqdm_class=Silent)}
    except (OSError, ValueError) as error:
        found = {"error": (str(error).strip().splitlines() or [type(error).__name__])[0]}
    print(json.dumps(found), flush=True)  # noqa: T201  # to the process that waits for it


def _end_with_input() -> None:
    os.read(0, 1)  # nothing is ever written there
    os._exit(1)
