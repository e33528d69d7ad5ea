"""The server that `palladio run` starts. It ends when its standard input does, so with the chat, however that ends.

python -m palladio.commands.chat.run_worker FLAGS
"""

from palladio.processes.early_signals import end_at_once

if __name__ == "__main__":
    end_at_once(0, 0)  # before what takes a second to import

import os
import signal
import sys
import threading

from palladio.server.launch import launch


def main() -> int:
    """Serves; returns the exit code, as `launch`."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    return launch(sys.argv[1:], os.environ)


def _end_with_input() -> None:
    while os.read(0, 1):  # not sys.stdin: its lock would not let the process end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
