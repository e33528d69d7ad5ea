"""A server started as a user starts it: a command, in a process of its own, with its log in a file."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import openai

from palladio.utils import terminate_process
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

ROOT = Path(__file__).parents[2]
MODEL = "tiny"
VOCAB_SIZE = 384
EOS_IDS = (2, 1)
CONTEXT_LENGTH = 512
LIMITS = (
    *("--page-size", "8"),
    *("--max-running-requests", "8"),
    *("--chunked-prefill-size", "64"),
    *("--max-total-tokens", "2048"),
)
START_SECONDS = 200.0


def build_checkpoint(directory: Path, family: str = "qwen3", **overrides: Any) -> Path:
    """A whole Hugging Face directory: weights, configuration, tokenizer with a ChatML template."""
    return build_tiny_tokenizer(make_checkpoint(directory, family, **overrides), vocab_size=VOCAB_SIZE)


def command(model_dir: Path, *flags: str) -> list[str]:
    module = ["-m", "palladio.launch_server"]
    return [sys.executable, *module, "--model-path", str(model_dir), "--host", "127.0.0.1", "--port", "0", *flags]


def environment(cache_dir: Path) -> dict[str, str]:
    """Of a server: compiled programs are kept in `cache_dir`, nothing is asked of the hub, no accelerator is taken."""
    ours = {"PALLADIO_CACHE_DIR": str(cache_dir), "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    return os.environ | ours | {"PYTHONUNBUFFERED": "1"}


class Server:
    """A running `python -m palladio.launch_server`.

    Attributes:
        process: the front; the engine is its child.
        url: base address, known once it is printed.
    """

    def __init__(self, model_dir: Path, log: Path, cache_dir: Path, flags: Sequence[str] = LIMITS) -> None:
        self._log = log
        with log.open("w") as file:
            self.process: subprocess.Popen[str] = subprocess.Popen(
                command(model_dir, *flags), cwd=ROOT, env=environment(cache_dir), stdout=file, stderr=file, text=True
            )
        try:
            port = self.wait_for_log(r"running on http://127\.0\.0\.1:(\d+)")
            self.url = f"http://127.0.0.1:{port}"
            self.wait_for_log(r"(fired up and ready to roll)")
        except BaseException:
            self.stop()
            raise
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def log(self) -> str:
        return self._log.read_text()

    def wait_for_log(self, pattern: str, seconds: float = START_SECONDS) -> str:
        """Waits for a line, and returns the pattern's group."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.log())) is None:
            assert self.process.poll() is None, f"the server ended:\n{self.log()}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.log()}"
            time.sleep(0.05)
        return found.group(1)

    def stop(self) -> None:
        terminate_process(self.process)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="None", max_retries=0, timeout=60)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(path, json=body)

    def info(self) -> dict[str, Any]:
        return self.http.get("/get_server_info").raise_for_status().json()

    def stats(self) -> dict[str, Any]:
        """The engine's own view of itself."""
        return self.info()["internal_states"][0]

    def check_clean(self, seconds: float = 20.0) -> None:
        """Nothing runs, no page is held, no page is lost, and no step compiled anything."""
        wanted = {"num_running": 0, "num_waiting": 0, "num_used_tokens": 0, "integrity_error": None}
        wanted["num_compiles_after_ready"] = 0
        deadline = time.monotonic() + seconds
        while True:
            stats = self.stats()
            seen = {name: stats[name] for name in wanted}
            if seen == wanted:
                return
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)

    def ended(self, seconds: float) -> int:
        """The exit code, after at most so many seconds."""
        return self.process.wait(seconds)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
