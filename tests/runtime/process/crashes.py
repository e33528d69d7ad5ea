"""Engines in processes of their own, with the fake core, made to die under requests."""

import asyncio
import contextlib
import json
import os
import signal
import time

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.process_transport import ProcessTransport
from tests.runtime.fake_core import FACTORY, started

QUEUED = {"step_delay": 0.02, "max_running": 1}  # all but one request wait


def make(tmp_path, knobs, **flags):
    flags = {"skip_tokenizer_init": True, "json_model_override_args": json.dumps(knobs), **flags}
    return AsyncEngine(EngineConfig.from_flags({"model_path": str(tmp_path), **flags}), ProcessTransport(FACTORY))


@contextlib.asynccontextmanager
async def running(tmp_path, knobs, **flags):
    engine = make(tmp_path, knobs, **flags)
    async with started(engine):
        yield engine


def once(tmp_path, knobs, **later):
    """Knobs of the first engine; the next ones have others."""
    return {**knobs, "once": str(tmp_path / "once"), "later": later}


async def tokens(engine, request_id, timeout=None, **params):
    params = SamplingParams(**{"seed": 3, "max_tokens": 20} | params)
    options = RequestOptions(timeout=timeout)
    outputs = engine.generate(GenerationRequest(request_id, [5], params, options=options))
    return [(output.index, token) async for output in outputs for token in output.token_ids]


async def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in {seconds} s"
        await asyncio.sleep(0.005)


async def serve_and_queue(engine, count=4, **params):
    """One request that has had output, and others that wait; as tasks."""
    served = engine.generate(GenerationRequest("served", [5], SamplingParams(max_tokens=250)))
    await anext(served)
    waiting = [asyncio.create_task(tokens(engine, f"w{i}", **params)) for i in range(count)]
    while (await engine.stats()).total.num_running < 1 + count * params.get("n", 1):
        await asyncio.sleep(0.01)
    return served, waiting


def kill(engine):
    pid = engine._transport.pid
    os.kill(pid, signal.SIGKILL)
    return pid
