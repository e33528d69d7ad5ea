"""FakeEngine: an EngineClient without a model. It answers a given text, with the tiny tokenizer."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palladio.runtime.front.control.model_switch import ModelSwitch
from palladio.runtime.front.requests.engine_protocol import EngineState, FastPath
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.errors import (
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    EngineNotReadyError,
    InvalidRequestError,
    OverloadedError,
)
from palladio.runtime.interface.messages.calls import ControlReply, ToEngine
from palladio.runtime.interface.messages.engine_state import EngineReady, LoadProgress, WeightsSize
from palladio.runtime.interface.messages.engine_stats import (
    BucketSteps,
    EngineStats,
    HistogramData,
    LiveRequest,
    QueueState,
    RankStats,
)
from palladio.runtime.interface.messages.page_map import PageMap
from palladio.runtime.interface.messages.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.interface.outputs.counts import DraftCounts
from palladio.runtime.interface.outputs.request_output import RefusedOutputError, RequestOutput
from palladio.runtime.interface.outputs.request_trace import (
    DecodeSteps,
    PrefillChunk,
    RequestTimes,
    RequestTrace,
    WaitTimes,
)
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.input_embeds import EmbedsSpec
from palladio.runtime.interface.request.pooling_params import PoolingParams
from palladio.runtime.interface.request.prompt_parts import Media
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.liveness import Liveness
from palladio.runtime.text.tokenizers.stop_strings import StopStringMatcher
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_embedding import add_vectors
from tests.fake_outputs import fake_logprob, fake_prefill
from tests.fake_timeline import fake_timeline

MODEL = "qwen/qwen2.5-0.5b-instruct"
EOS_ID = 2
CACHED_TOKENS = 3
CACHED = {"num_cached_tokens": 64, "num_prompt_tokens": 80, "num_hit_tokens": 20}
ALONE = RankStats(num_total_tokens=20480, new_token_ratio=0.5, num_retractions=2, **CACHED)
STEPS = (BucketSteps("decode", 8, 8, 40, 240, 80), BucketSteps("prefill", 4, 64, 5, 300, 20))
DEVICE_IDLE = HistogramData([0.001, 0.01, 0.1], [10, 89, 1, 0], 0.5)


@dataclasses.dataclass
class Call:
    """One request as the engine got it."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    options: RequestOptions
    received: float = 0.0
    media: tuple[Media, ...] = ()
    pooling: PoolingParams = PoolingParams()
    finished: bool = False
    aborted: bool = False


class FakeEngine:
    """Says `reply` (a text, or a function of prompt ids and sample index), then ends with EOS.

    Attributes to script it:
        delay: seconds before each token; first_delay: before the first one, which waits while it `holds`, too.
        fail: raised after `fail_after` tokens.
        refuse: raised before any token.
        refuse_in_queue: seconds that each request is in the queue for memory; its timeout passes there.
        abort_status: sample 0 ends in an abort with this HTTP status after `fail_after` tokens.
        cached_tokens: of a sample, by prompt ids and sample index. prefill_delay: seconds after each report of a
            request's prefill: when it begins, and when it has ended.
        embedding: it makes embeddings (see fake_embedding), and says nothing. embeds: of prompts, if it takes them.
        degraded: what the check of its start found.
        ranks: data-parallel ones, if there are several. pages: the maps that it has.
        config, state, progress, failure, liveness, sampling_defaults: as EngineClient has them.

    And to see what it was asked:
        asked_stats: for each question, whether the integrity was to be checked.
        asked_explain: for each question, the request ids.
        num_tokens: that it has said.
        steered: what `model` has asked for; with `steer_error` the answer is this refusal.
        configured: settings of its process that were asked for.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, reply: str | Callable[[list[int], int], str] = "Hello") -> None:
        self.reset(tokenizer, reply)

    def reset(self, tokenizer: Tokenizer | None, reply: str | Callable[[list[int], int], str]) -> None:
        """Reset everything, for the next test of a shared server."""
        self.config = EngineConfig(source=ModelSource(model_path=MODEL))
        self.tokenizer = tokenizer
        self.sampling_defaults: Mapping[str, Any] = {}
        self.state: EngineState = "ready"
        self.progress: LoadProgress | None = None
        self.failure: str | None = None
        self.liveness = Liveness(lambda: None, 4.0)
        self.reply = reply
        self.delay = self.first_delay = self.load_seconds = self.prefill_delay = 0.0
        self.holds = False
        self.fail: Exception | None = None
        self.refuse: Exception | None = None
        self.refuse_in_queue: float | None = None
        self.num_restarts = self.abort_status = self.fail_after = 0
        self.cached_tokens: Callable[[list[int], int], int] = lambda prompt_ids, index: CACHED_TOKENS
        self.embedding: EmbeddingSpec | None = None
        self.embeds: EmbedsSpec | None = None
        self.degraded = ""
        self.ranks: list[RankStats] = []
        self.pages: list[PageMap] = []
        self.calls: list[Call] = []
        self.start_error: Exception | None = None
        self.load_until: Path | None = None  # it loads until there is such a file
        self.num_flushes = self.num_tokens = 0
        self.profile: ProfileOptions | None = None
        self.profile_ended_by = ""
        self.asked_stats: list[bool] = []
        self.asked_explain: list[list[str]] = []
        self._running: dict[str, Call] = {}
        self._fast_paths: dict[str, FastPath] = {}
        self.steered: list[tuple[object, ...]] = []
        self.steer_error = ""
        self.configured: list[tuple[int | None, bool]] = []
        self.model = ModelSwitch(self._steer, self.abort, "default")

    @classmethod
    def create(cls, directory: Path, **kwargs: Any) -> "FakeEngine":
        return cls(Tokenizer.load(directory), **kwargs)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def info(self) -> EngineReady:
        if self.state == "starting":
            raise EngineNotReadyError("still starting")
        return EngineReady(
            *(2048, 20480, 64, 8192, 16),  # of context, of the cache, running at once, of a chunk, of a page
            *("qwen2", "Qwen2ForCausalLM", 384, [EOS_ID], "cpu: fake", "float32"),
            **dict.fromkeys(("num_programs", "compile_seconds", "cache_hits", "random_seed"), 0),
            embedding=self.embedding,
            embeds=self.embeds,
            weights=WeightsSize(134_515_008, 269_030_016),
            degraded=self.degraded,
        )

    async def start(self) -> None:
        self.state = "starting"

    async def wait_ready(self) -> None:
        await asyncio.sleep(self.load_seconds)
        while self.load_until is not None and not self.load_until.exists():
            await asyncio.sleep(0.02)
        if self.start_error is not None:
            self.state = "dead"
            self.failure = str(self.start_error)
            raise self.start_error
        self.state = "ready"

    async def shutdown(self, drain_seconds: float) -> None:
        if self.state != "dead":
            self.state = "draining"
        deadline = time.monotonic() + drain_seconds
        while self._running and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await self.abort(None)
        self.state = "dead"
        self.failure = self.failure or "shut down"

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        if self.state == "dead":
            raise EngineDeadError(self.failure or "dead")
        if self.state != "ready":
            raise EngineNotReadyError(f"the engine is {self.state}")
        if self.refuse is not None:
            raise self.refuse
        request_id, received, prompt_ids = request.scoped_id, request.received, request.prompt_ids
        if request_id in self._running:
            raise InvalidRequestError(f"a request with id {request_id!r} is already running", param="request_id")
        params, options = LengthLimit.of(self.info).fit(request), request.options.resolve(self.config.scheduler)
        self._check(prompt_ids, params)
        if self.refuse_in_queue is not None:
            raise self._refusal(request_id, prompt_ids, received, self.refuse_in_queue)
        vectors = request.media, request.pooling
        self.calls.append(call := Call(request_id, prompt_ids, params, options, received, *vectors))
        self._running[request_id] = call
        try:
            await asyncio.sleep(self.first_delay)
            while self.holds:
                await asyncio.sleep(0.01)
            for index in range(params.n) if options.progress else ():
                for output in fake_prefill(request_id, index, prompt_ids, self.cached_tokens(prompt_ids, index)):
                    yield output
                    await asyncio.sleep(self.prefill_delay)
            samples = [_Sample(self, call, index, call.received) for index in range(params.n)]
            while samples:
                for sample in list(samples):
                    if self.delay:
                        await asyncio.sleep(self.delay)
                    output = sample.step()
                    if output.finish is not None:
                        samples.remove(sample)
                        call.finished = not samples
                    elif request_id in self._fast_paths and self._fast_paths[request_id](output):
                        await asyncio.sleep(0)
                        continue
                    yield output
        finally:
            self._fast_paths.pop(request_id, None)
            call.aborted = call.aborted or not call.finished
            del self._running[request_id]

    def attach(self, request_id: str, fast_path: FastPath) -> None:
        self._fast_paths[request_id] = fast_path

    def _refusal(self, request_id: str, prompt_ids: list[int], received: float, seconds: float) -> DeadlineError:
        error = DeadlineError("The request did not finish within its timeout")
        finish = FinishReason("abort", message=str(error), status=504)
        error.__cause__ = RefusedOutputError(
            RequestOutput(
                *(request_id, 0, "", [], None, None, finish, len(prompt_ids), 0),
                times=RequestTimes(received, finished=received + seconds),
                trace=RequestTrace(received, WaitTimes(memory=seconds)),
            )
        )
        return error

    def _check(self, prompt_ids: list[int], params: SamplingParams) -> None:
        if not {*prompt_ids, *params.logit_bias, *params.stop_token_ids} <= set(range(self.info.vocab_size)):
            raise InvalidRequestError("token id out of the vocabulary", param="prompt")
        room = self.info.context_length - len(prompt_ids)
        if room < 0 or (room == 0 and params.max_tokens != 0):
            size, limit = len(prompt_ids), self.info.context_length - (room == 0)
            raise ContextLengthError.of_prompt(f"The input ({size} tokens) is too long (2048)", size, limit)
        if (wanted := params.max_tokens or 0) > room:
            raise ContextLengthError.of("{param} ({n}) over {room}", param="max_tokens", n=wanted, room=room)

    async def abort(self, request_id: str | None) -> int:
        calls = [c for c in self._running.values() if request_id is None or c.request_id == request_id]
        for call in calls:
            call.aborted = True
        return len(calls)

    async def flush_cache(self) -> None:
        if self._running:
            raise OverloadedError("requests are running")
        self.num_flushes += 1

    async def _steer(self, message: Callable[[int], ToEngine], timeout: float) -> ControlReply:
        if self.state not in ("ready", "released"):
            raise EngineNotReadyError(f"the engine is {self.state}")
        asked = message(0)
        self.steered.append((type(asked).__name__, *list(dataclasses.asdict(asked).values())[1:]))
        return ControlReply(0, ok=not self.steer_error, message=self.steer_error, count=len(self._running))

    async def stats(self, timeout: float = 20.0, *, check_integrity: bool = False, pages: bool = False) -> EngineStats:
        self.asked_stats.append(check_integrity)
        alone = dataclasses.replace(ALONE, num_running=len(self._running))
        found = EngineStats(self.ranks or [alone], cache_enabled=True, device_idle=DEVICE_IDLE, steps=list(STEPS))
        return dataclasses.replace(found, pages=self.pages) if pages else found

    async def explain(self, request_ids: Sequence[str]) -> dict[str, dict[int, LiveRequest]]:
        self.asked_explain.append(list(request_ids))
        return {name: self._explain(name) for name in request_ids if name in self._running}

    def _explain(self, request_id: str) -> dict[int, LiveRequest]:
        call = self._running[request_id]
        received = call.received
        told = fake_timeline(2) if call.options.timeline else None
        return {
            index: LiveRequest(
                f"{request_id}-{index}~0",
                "waiting",
                RequestTimes(received),
                RequestTrace(received, WaitTimes(memory=1.5, num_retracted=3), timeline=told),
                prompt_tokens=len(call.prompt_ids),
                computed_tokens=0,
                completion_tokens=0,
                cached_tokens=0,
                num_retractions=0,
                queue=QueueState("memory", 2, 5, 7, 8, 8, 12, 9),
            )
            for index in range(call.params.n)
        }

    async def configure_process(self, log_level: int | None = None, *, freeze_gc: bool = False) -> None:
        self.configured.append((log_level, freeze_gc))

    async def start_profile(self, options: ProfileOptions) -> None:
        if self.profile is not None:
            raise InvalidRequestError("a profile is already running")
        self.profile = options

    async def stop_profile(self) -> ProfileReport:
        if self.profile is None:
            raise InvalidRequestError("no profile is running")
        folder, self.profile = self.profile.output_dir, None
        return ProfileReport(folder, self.profile_ended_by)


class _Sample:
    """One sample of a call, token by token."""

    def __init__(self, engine: FakeEngine, call: Call, index: int, received: float) -> None:
        self._engine, self._call, self._index, self._received = engine, call, index, received
        reply = engine.reply if isinstance(engine.reply, str) else engine.reply(call.prompt_ids, index)
        tokenizer, params = engine.tokenizer, call.params
        self._ids = tokenizer.encode(reply, False) if tokenizer else [ord(c) % 384 for c in reply]
        limit = engine.info.context_length - len(call.prompt_ids)
        self._max_tokens = limit if params.max_tokens is None else params.max_tokens
        shown = {"skip_special_tokens": params.skip_special_tokens, "visible_special_ids": params.visible_special_ids}
        self._stream = tokenizer.new_stream(**shown) if tokenizer else None
        self._stop = StopStringMatcher(params.stop, keep_match=params.no_stop_trim)
        self._count = 0

    def step(self) -> RequestOutput:
        engine, params = self._engine, self._call.params
        if engine.fail is not None and self._count >= engine.fail_after:
            raise engine.fail
        first = self._count == 0
        if self._call.aborted:
            return self._output("", [], FinishReason("abort"), first)
        if engine.abort_status and self._count >= engine.fail_after:
            finish = FinishReason("abort", message="the engine gave up", status=engine.abort_status)
            return self._output("", [], finish, first)
        if self._max_tokens == 0:
            output = self._output("", [], FinishReason("length"), first)
            add_vectors(output, self._call.prompt_ids, self._call.pooling.kinds, engine.embedding)
            return output
        token_id = self._ids[self._count] if self._count < len(self._ids) else EOS_ID
        self._count += 1
        engine.num_tokens += 1
        ends = () if params.ignore_eos else (EOS_ID,)
        finish = None
        if token_id in (*ends, *params.stop_token_ids):
            finish, text = FinishReason("stop", token_id), ""
        else:
            text = self._stop.feed(self._stream.push(token_id) if self._stream else "")
            if self._stop.matched is not None:
                finish = FinishReason("stop", self._stop.matched)
            elif self._count >= self._max_tokens:
                finish = FinishReason("length")
        if finish is not None and self._stop.matched is None:
            text += self._stop.feed(self._stream.flush() if self._stream else "") + self._stop.flush()
        return self._output(text, [token_id], finish, first)

    def _output(self, text: str, ids: list[int], finish: FinishReason | None, first: bool) -> RequestOutput:
        params, prompt_ids = self._call.params, self._call.prompt_ids
        prompt_logprobs = None
        if first and params.prompt_logprobs is not None and self._index == 0:
            prompt_logprobs = [fake_logprob(i, params.prompt_logprobs, params) for i in prompt_ids]
            prompt_logprobs[0] = TokenLogprob(prompt_ids[0], None)
        return RequestOutput(
            request_id=self._call.request_id,
            index=self._index,
            text=text,
            token_ids=ids,
            logprobs=None if params.logprobs is None else [fake_logprob(i, params.logprobs, params) for i in ids],
            prompt_logprobs=prompt_logprobs,
            finish=finish,
            prompt_tokens=len(prompt_ids),
            completion_tokens=self._count,
            cached_tokens=self._engine.cached_tokens(prompt_ids, self._index),
            times=self._times(ended=finish is not None) if finish or self._count == 1 else None,
            trace=self._trace() if finish or self._count == 1 else None,
            detokenize_seconds=0.125,
        )

    def _times(self, *, ended: bool) -> RequestTimes:
        """Half a second in the queue and a quarter in prefill, however long it took."""
        begin = self._received
        return RequestTimes(begin, begin + 0.5, begin + 0.75, max(time.time(), begin + 1.0) if ended else None)

    def _trace(self) -> RequestTrace:
        prompt = len(self._call.prompt_ids)
        chunk = PrefillChunk(self._received + 0.5, prompt, prompt + 4, 64, 0.25)
        waits, decode, drafts = WaitTimes(memory=0.5, num_retracted=3), DecodeSteps(10, 25, 40), DraftCounts(2, 6, 3)
        told = fake_timeline(6, self._count) if self._call.options.timeline else None
        return RequestTrace(self._received, waits, [chunk], 1, [], decode, 0.0625, drafts, told)
