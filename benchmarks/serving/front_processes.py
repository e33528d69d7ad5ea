"""The server of `benchmarks/serving/front.py --engine-process`: the usual one, before a fake engine in one of its own.

    python benchmarks/serving/front_processes.py PORT INTERVAL   # seconds between two steps

Each step has one token for every request.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from palladio.flags.default_model import default_model_path
from palladio.flags.server_args import parse_server_args
from palladio.http.server import serve
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.engine_state import EngineReady, LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest, RankStats
from palladio.runtime.interface.outputs.token_output import FinishReason, NewTokens, PlainTokens, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.telemetry.activity import Activity

CORE = "front_processes:PacedCore.create"
VOCAB_SIZE = 2048
FIRST_ID = 300
_TICKS = os.sysconf("SC_CLK_TCK")  # a second


class PacedCore:
    """A TokenEngine with a token for every running request at each step.

    Args:
        interval: seconds between steps.
    """

    spare_seconds = 0.0

    def __init__(self, interval: float) -> None:
        self.ready = EngineReady(
            *(8192, 1 << 20, 4096, 512, 16, "fake", "FakeForCausalLM", VOCAB_SIZE, [2], "cpu", "float32", 0, 0.0, 0, 1)
        )
        self.activity = Activity()
        self._interval = interval
        self._left: dict[str, int] = {}
        self._new: set[str] = set()  # of which there was no token yet
        self._due = 0.0
        self._number = 0

    @classmethod
    def create(
        cls, config: EngineConfig, on_progress: Callable[[LoadProgress], None], on_fatal: Callable[[str], None]
    ) -> Self:
        return cls(json.loads(config.source.json_model_override_args)["interval"])

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def add(self, request: GenerationRequest) -> None:
        assert request.params.max_tokens is not None
        self._left[request.request_id] = request.params.max_tokens
        self._new.add(request.request_id)

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._left.pop(request_id, None)
            self._new.discard(request_id)

    def step(self) -> list[NewTokens]:
        """Make outputs as the engine does: one for all tokens without consequences, and one for each request that
        begins or ends."""
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = time.monotonic() + self._interval
        self._number += 1
        token_ids = [FIRST_ID + self._number % 1000]
        ended = [request_id for request_id, left in self._left.items() if left == 1]
        begun, self._new = self._new - set(ended), set()
        outputs: list[NewTokens] = [TokenOutput(name, token_ids, finish=FinishReason("length")) for name in ended]
        outputs += [TokenOutput(name, token_ids) for name in begun]
        self._left = {name: left - 1 for name, left in self._left.items() if left > 1}
        plain = [name for name in self._left if name not in begun]
        return [*outputs, PlainTokens.of(plain, [token_ids] * len(plain))]

    def stats(self, *, check_integrity: bool = False, pages: bool = False) -> EngineStats:
        return EngineStats([RankStats(num_running=len(self._left))])

    def explain(self, request_ids: list[str]) -> list[LiveRequest]:
        return []

    def close(self, failure: str = "") -> None:
        self._left.clear()


@dataclasses.dataclass(frozen=True, slots=True)
class CpuSeconds:
    """Since their start: of the HTTP process; of that, in the kernel; of the engine's."""

    front: float
    kernel: float
    engine: float

    def __sub__(self, other: Self) -> "CpuSeconds":
        return CpuSeconds(self.front - other.front, self.kernel - other.kernel, self.engine - other.engine)


class FrontServer:
    """The server as a process."""

    def __init__(self, port: int, interval: float) -> None:
        words = [str(port), str(interval)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._process = subprocess.Popen([sys.executable, __file__, *words], env=environment)

    def cpu_seconds(self) -> CpuSeconds:
        pid = self._process.pid
        children = {child for thread in Path(f"/proc/{pid}/task").iterdir() for child in _children(thread)}
        front, kernel = _seconds(str(pid))
        return CpuSeconds(front, kernel, sum(_seconds(child)[0] for child in children))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def _children(thread: Path) -> list[str]:
    return (thread / "children").read_text().split()


def _seconds(pid: str) -> tuple[float, float]:
    """Return CPU seconds of its threads, and of these in the kernel, which the system counts in ticks only."""
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
    return 1e-9 * total, int(fields[12]) / _TICKS


def main(argv: list[str]) -> int:
    port, interval = argv
    knobs: dict[str, Any] = {"interval": float(interval)}
    words = ["--model-path", str(default_model_path()), "--port", port]
    words += [
        "--json-model-override-args",
        json.dumps(knobs),
        "--log-level",
        "warning",
        "--max-queued-requests",
        "9999",
    ]
    args = parse_server_args(words).args
    return serve(AsyncEngine(args.engine_config(), ProcessTransport(CORE)), args.http)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
