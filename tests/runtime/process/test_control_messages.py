"""Explanations and profiles cross the border between the front and the engine."""

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages.calls import (
    ConfigureProcess,
    ControlReply,
    Explain,
    GetStats,
    StartProfile,
    StepOutputs,
    StopProfile,
)
from palladio.runtime.interface.messages.engine_state import EngineBusy
from palladio.runtime.interface.messages.engine_stats import BucketSteps, EngineStats, LiveRequest, QueueState
from palladio.runtime.interface.messages.model_messages import SetPause, SetReleased, UpdateWeights
from palladio.runtime.interface.messages.page_map import GroupPages, PageMap
from palladio.runtime.interface.messages.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.interface.outputs.prefill_progress import PrefillProgress
from palladio.runtime.interface.outputs.request_trace import (
    DecodeSteps,
    LostPages,
    PrefillChunk,
    RequestTimes,
    RequestTrace,
    SnapshotHit,
    WaitTimes,
)
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.codec import from_engine_codec, to_engine_codec
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.process.transport import ThreadTransport
from tests.runtime.fake_core import FACTORY, started

TRACE = RequestTrace(
    1.0,
    WaitTimes(1.0, 2.0, 3.0, 4.0, 5),
    [PrefillChunk(1.0, 2, 3, 4), PrefillChunk(1.0, 2, 3, 4, 0.5)],
    2,
    [LostPages(1.0, 7), LostPages(2.0, 7, 16)],
    DecodeSteps(1, 2, 3),
    0.25,
    snapshots=[SnapshotHit(1.0, 9, 16)],
)
LIVE = LiveRequest(
    "a~0", "waiting", RequestTimes(1.0), TRACE, 1, 2, 3, 4, 5, QueueState("compile", 1, 2, 3, 4, 5, 6, 7)
)

PAGES = PageMap(9, 5, 1, 1, [(4, 1, 0), (1, 0, 1)], [GroupPages(None, 1, 4, 1), GroupPages(64, 2, 1, 0)], 0.5)


@pytest.mark.parametrize(
    "message",
    [
        Explain(1, ["a~0"]),
        StartProfile(2, ProfileOptions("/x", 1, 2, 3, 1, traces_device=False)),
        StopProfile(3),
        GetStats(3, pages=True),
        SetPause(4, "in_place"),
        SetPause(5, None),
        UpdateWeights(6, "/x"),
        SetReleased(7, ["weights", "kv_cache"]),
        ConfigureProcess(8, 20, freeze_gc=True),
    ],
)
def test_codec_to_engine(message: object) -> None:
    codec = to_engine_codec()
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        ControlReply(1, ok=True, requests=[LIVE]),
        ControlReply(1, ok=True, profile=ProfileReport("/x", "a bound")),
        ControlReply(1, ok=True, stats=EngineStats([], steps=[BucketSteps("decode", 1, 2, 3, 4, 5)], pages=[PAGES])),
        EngineBusy("compiling x"),
        StepOutputs([TokenOutput("a", [1], times=RequestTimes(1.0), trace=TRACE)]),
        StepOutputs([TokenOutput("a", [], progress=PrefillProgress(9, 4, 6, 0.5))]),
    ],
)
def test_codec_from_engine(message: object) -> None:
    codec = from_engine_codec()
    assert codec.decode(codec.encode(message)) == message


@contextlib.asynccontextmanager
async def running(folder: Path, transport: type[ThreadTransport | ProcessTransport]) -> AsyncIterator[AsyncEngine]:
    flags = {"skip_tokenizer_init": True, "json_model_override_args": json.dumps({"step_delay": 0.005})}
    engine = AsyncEngine(EngineConfig.from_flags({"model_path": str(folder), **flags}), transport(FACTORY))
    async with started(engine):
        yield engine


@pytest.mark.parametrize("transport", [ThreadTransport, ProcessTransport])
async def test_explain(tmp_path: Path, transport: type[ThreadTransport | ProcessTransport]) -> None:
    async with running(tmp_path, transport) as engine:
        params = SamplingParams(max_tokens=150, n=2, ignore_eos=True)
        outputs = engine.generate(GenerationRequest("r", [5, 6, 7, 8], params))
        async for _ in outputs:
            break
        other = engine.generate(GenerationRequest("other", [5], SamplingParams(max_tokens=150, ignore_eos=True)))
        async for _ in other:
            break
        found = await engine.explain(["r", "nobody", "other"])
        assert {name: sorted(states) for name, states in found.items()} == {"r": [0, 1], "other": [0]}
        await other.aclose()
        states = found["r"]
        assert [states[index].request_id.partition("~")[0] for index in (0, 1)] == ["r", "r"]
        assert (states[1].status, states[1].prompt_tokens) == ("running", 4)
        assert await engine.explain(["nobody"]) == {}
        await outputs.aclose()
        assert await engine.explain(["r"]) == {}


async def test_settings_of_the_process(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = root.level
    async with running(tmp_path, ThreadTransport) as engine:
        try:
            await engine.configure_process(logging.ERROR)
            assert root.level == logging.ERROR
        finally:
            root.setLevel(before)


async def test_one_sample_that_has_ended_is_left_out(tmp_path: Path) -> None:
    async with running(tmp_path, ThreadTransport) as engine:
        outputs = engine.generate(GenerationRequest("r", [5, 6], SamplingParams(max_tokens=3)))
        assert [output async for output in outputs][-1].finish is not None
        assert await engine.explain(["r"]) == {}


@pytest.mark.parametrize("transport", [ThreadTransport, ProcessTransport])
async def test_profile(tmp_path: Path, transport: type[ThreadTransport | ProcessTransport]) -> None:
    async with running(tmp_path, transport) as engine:
        await engine.start_profile(ProfileOptions("/somewhere"))
        with pytest.raises(InvalidRequestError, match="already running") as refused:
            await engine.start_profile(ProfileOptions("/elsewhere"))
        assert refused.value.param == "output_dir"
        assert await engine.stop_profile() == ProfileReport("/somewhere")
        with pytest.raises(InvalidRequestError, match="no profile is running"):
            await engine.stop_profile()
        assert engine.num_restarts == 0
