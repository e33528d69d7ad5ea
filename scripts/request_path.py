"""Which files and functions one streamed chat request runs through, in the front's thread and in the engine's, and how
many of Python's calls a step of the engine makes for it.

python scripts/request_path.py

It serves the embedded model in this process, sends a request so that every program is built, then follows a second one.
What runs only at the start, or only for other requests, is not on its path. Calls are those of the product's functions;
comprehensions count where Python calls them (3.11), and generators count each time that they go on.
"""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from palladio.flags.default_model import default_model_path
from palladio.http.app import create_app
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.process.transport import ThreadTransport

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("palladio", "http", "runtime", "model", "pallas_kernels")
FLAGS: dict[str, Any] = {
    "max_running_requests": 2,
    "cuda_graph_bs": (1,),
    "max_total_tokens": 2048,
    "context_length": 512,
    "chunked_prefill_size": 256,
    "compile": "lazy",
    "watchdog_timeout": 0.0,
}
BODY: dict[str, Any] = {
    "temperature": 0.7,
    "logit_bias": {"5": 1},
    "stop": ["zzz"],
    "seed": 1,
    "max_tokens": 6,
    "stream": True,
}
QUESTIONS = ("What is the capital of France?", "What is the capital of Spain?")

Calls = dict[str, dict[str, int]]  # of a thread: file → how often its functions ran, by the order of their first call
STEP = "runtime/core/engine_core.py", "EngineCore.step"


class CallRecorder:
    """Notes the product's functions that run while `is_on`, by thread."""

    def __init__(self) -> None:
        self.is_on = False
        self.threads: dict[str, Calls] = {}
        self._paths: dict[str, str | None] = {}  # by the name that the code was compiled under

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In this thread, and in those that start meanwhile."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.is_on or event != "call":
            return
        code = frame.f_code
        if code.co_filename not in self._paths:
            self._paths[code.co_filename] = product_path(code.co_filename)
        path = self._paths[code.co_filename]
        if path is not None:
            calls = self.threads.setdefault(threading.current_thread().name, {})
            functions = calls.setdefault(path, {})
            functions[code.co_qualname] = functions.get(code.co_qualname, 0) + 1


def product_path(filename: str) -> str | None:
    """From the repository's root; None: it is no file of the product, or one that only makes a folder a package."""
    path = Path(filename).resolve()
    if not path.is_relative_to(ROOT) or not path.is_file() or path.name == "__init__.py":
        return None
    relative = path.relative_to(ROOT)
    return relative.as_posix() if relative.parts[0] in ROOMS else None


async def follow_request(**flags: Any) -> dict[str, Calls]:
    """What runs for one request, by thread. Args: flags: of the engine, beside FLAGS."""
    recorder = CallRecorder()
    with recorder.installed():
        config = EngineConfig.from_flags({"model_path": str(default_model_path()), **FLAGS, **flags})
        engine = AsyncEngine(config, ThreadTransport())
        app = create_app(engine, HttpConfig())
        await engine.start()
        try:
            await engine.wait_ready()
            client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1")
            async with app.router.lifespan_context(app), client:
                for question in QUESTIONS:
                    recorder.is_on = question == QUESTIONS[-1]
                    body = BODY | {"messages": [{"role": "user", "content": question}]}
                    (await client.post("/v1/chat/completions", json=body)).raise_for_status()
                    await asyncio.sleep(0.1)  # the engine does what it does after the last token
                recorder.is_on = False
        finally:
            await engine.shutdown()
    return recorder.threads


def all_files(threads: dict[str, Calls]) -> set[str]:
    return {path for calls in threads.values() for path in calls}


def calls_per_step(threads: dict[str, Calls]) -> float:
    """Python's calls in the engine's thread, from the request's message to its last token, for each step."""
    path, name = STEP
    (engine,) = [calls for calls in threads.values() if name in calls.get(path, {})]
    return sum(sum(functions.values()) for functions in engine.values()) / engine[path][name]


def main() -> None:
    threads = asyncio.run(follow_request())
    num_functions = all_calls = 0
    for name, calls in threads.items():
        num_calls = sum(sum(functions.values()) for functions in calls.values())
        num_functions, all_calls = num_functions + sum(map(len, calls.values())), all_calls + num_calls
        print(f"{name}: {len(calls)} files, {sum(map(len, calls.values()))} functions, {num_calls} calls")
        for path, functions in sorted(calls.items()):
            print(f"  {path}: {', '.join(f'{function} {count}' for function, count in functions.items())}")
    totals = f"{len(all_files(threads))} files, {num_functions} functions, {all_calls} calls"
    print(f"total: {totals}; {calls_per_step(threads):.0f} calls for each step of the engine")


if __name__ == "__main__":
    main()
