"""A tiny checkpoint, and a server for it, started and ended with the helpers that users have."""

import base64
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
from safetensors.numpy import load_file

from palladio.flags.default_model import default_model_path
from palladio.utils import _descendants, launch_server_cmd, terminate_process, wait_for_server
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

MODEL = "tiny"
OTHER_NAME = "tiny-by-another-name"
VOCAB_SIZE = 384
EOS_ID = 2
CONTEXT_LENGTH = 512
MAX_RUNNING = 8
DECODE_SIZES = "--cuda-graph-bs 1 "  # and the largest: quicker to start
LIMITS = (
    f"--page-size 8 --max-running-requests {MAX_RUNNING} --chunked-prefill-size 64 --max-total-tokens 2048 "
    f"{DECODE_SIZES}--compile full --fail-on-recompile"
)
EMBEDDED_LIMITS = (
    "--page-size 8 --max-running-requests 2 --chunked-prefill-size 64 --context-length 1024 --max-total-tokens 4096 "
    f"--fail-on-recompile --compile lazy --weight-update-folders {shlex.quote(str(default_model_path()))}"
)
START_SECONDS = 200.0
CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 4},
    GENERATE: {"text": "Hello", "sampling_params": {"max_new_tokens": 4}},
}
ROUTES = list(BODIES)


def build_checkpoint(directory: Path, family: str = "qwen3", **overrides: Any) -> Path:
    """A whole Hugging Face directory: weights, configuration, tokenizer with a ChatML template."""
    return build_tiny_tokenizer(make_checkpoint(directory, family, **overrides), vocab_size=VOCAB_SIZE)


def launch_command(model_dir: Path, flags: str = LIMITS) -> str:
    return f"python3 -m palladio.launch_server --model-path {shlex.quote(str(model_dir))} --host 127.0.0.1 {flags}"


class Server:
    """A running server.

    Attributes:
        process: the front; the engine is its child.
        url: base address.
        http: a client of it.
    """

    def __init__(self, command: str, log: Path) -> None:
        self._log = log
        with log.open("w") as file, _stdout_to(file.fileno()):
            self.process, port = launch_server_cmd(command, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        try:
            wait_for_server(self.url, timeout=START_SECONDS, process=self.process)
        except BaseException:
            self.stop()
            print(self.log())
            raise

    def log(self) -> str:
        return self._log.read_text()

    def engine_pid(self) -> int:
        (pid,) = [
            pid
            for pid in _descendants(self.process.pid)
            if b"palladio.runtime.process.engine_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return pid

    def stop(self) -> None:
        self.http.close()
        terminate_process(self.process)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="None", max_retries=0, timeout=60)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.http.post(path, json=body)

    def stats(self) -> dict[str, Any]:
        """The engine's own view of itself."""
        stats: dict[str, Any] = self.http.get("/get_server_info").raise_for_status().json()["internal_states"][0]
        return stats

    def wait_for_stats(self, seconds: float = 20.0, **wanted: object) -> None:
        deadline = time.monotonic() + seconds
        while any(self.stats()[name] != value for name, value in wanted.items()):
            assert time.monotonic() < deadline, f"{self.stats()}, not {wanted}"
            time.sleep(0.02)

    def check_clean(self) -> None:
        """Nothing runs, no page is held, none is lost, and no step compiled anything."""
        self.wait_for_stats(num_running=0, num_waiting=0, num_used_tokens=0)
        stats = self.stats()
        assert stats["integrity_error"] is None
        assert stats["num_compiles_after_ready"] == 0


def encoded_rows(checkpoint: Path, ids: list[int]) -> dict[str, Any]:
    """The embeddings of tokens, for `input_embeds`."""
    rows = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"][ids].astype("<f4")
    return {"data": base64.b64encode(rows.tobytes()).decode(), "shape": list(rows.shape), "dtype": "float32"}


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, str | None]:
    """The error, which must look like OpenAI's."""
    assert answer.status_code == status, answer.text[:500]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    return error


@contextlib.contextmanager
def _stdout_to(descriptor: int) -> Iterator[None]:
    """A process started meanwhile inherits this as its standard output."""
    sys.stdout.flush()
    with open(os.dup(1), "wb") as saved:
        os.dup2(descriptor, 1)
        try:
            yield
        finally:
            os.dup2(saved.fileno(), 1)
