"""An arithmetic engine core: next token = (7 · last + 3) mod vocabulary, one token a step, no jax, no weights.

Knobs come as words in `ModelSource.json_model_override_args` (a JSON object): `step_delay`, `fail_at_step`,
`start_error` ("config" or "crash"), `start_delay`, `die_at_step` (os._exit), `hang_at_step` (with `hang_keeps_lock`:
and no other thread runs), `compile_at_step` (for `compile_seconds`, marked as such), `script` (tokens to say instead of
arithmetic), `tokens_per_step`, `max_running` (the others wait), `broken` (what a check of integrity finds). With `once`
(a path) they are the knobs of the engine that finds no file there, and makes one; the next one has those in `later`.
"""

import contextlib
import ctypes
import json
import os
import random
import time
from pathlib import Path

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError, OverloadedError
from palladio.runtime.interface.messages.calls import ControlReply
from palladio.runtime.interface.messages.engine_state import EngineReady, LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest, RankStats
from palladio.runtime.interface.messages.model_messages import SetPause, SetReleased, UpdateWeights
from palladio.runtime.interface.messages.profile_options import ProfileReport
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob, TokenOutput
from palladio.runtime.telemetry.activity import Activity

FACTORY = "tests.runtime.fake_core:FakeEngineCore.create"
VOCAB_SIZE = 384
EOS = 2


def next_token(token):
    return 3 + (7 * (token - 3) + 5) % (VOCAB_SIZE - 3)  # never a special token (0 … 2)


def make_ready(**changes):
    fields = {
        "context_length": 256,
        "max_total_tokens": 4096,
        "max_running_requests": 64,
        "chunked_prefill_size": 128,
        "page_size": 16,
        "model_type": "fake",
        "architecture": "FakeForCausalLM",
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": [EOS],
        "device": "cpu",
        "dtype": "float32",
        "num_programs": 0,
        "compile_seconds": 0.0,
        "cache_hits": 0,
        "random_seed": 42,
    }
    return EngineReady(**(fields | changes))


class FakeEngineCore:
    @classmethod
    def create(cls, config: EngineConfig, on_progress, on_fatal):
        knobs = json.loads(config.source.json_model_override_args)
        while "once" in knobs and Path(knobs["once"]).exists():
            knobs = knobs["later"]
        if "once" in knobs:
            Path(knobs["once"]).touch()
        on_progress(LoadProgress("load", 1, 2))
        time.sleep(knobs.get("start_delay", 0))
        if knobs.get("start_error") == "config":
            raise ConfigError("--page-size 7 makes no sense to a fake")
        if knobs.get("start_error") == "crash":
            raise RuntimeError("no device")
        on_progress(LoadProgress("load", 2, 2))
        return cls(config, knobs)

    def __init__(self, config: EngineConfig, knobs=None):
        self.ready = make_ready(
            context_length=config.source.context_length or 256, max_total_tokens=config.cache.max_total_tokens or 4096
        )
        self._max_queued = config.scheduler.max_queued_requests
        self._knobs = knobs or {}
        self._running = {}  # id → [request, tokens so far, scheduled]
        self._num_steps = 0
        self.activity = Activity()
        self.requests = []  # all that ever came
        self.aborted = []
        self._profile = None
        self._num_asked = 0  # whether the profile is written
        self._is_paused = False
        self.released = []

    spare_seconds = 0.0

    @property
    def has_work(self):
        return bool(self._running) and not self._is_paused

    def add(self, request):
        if request.params.logit_bias.get(13) == 13.0:
            raise InvalidRequestError("the fake is superstitious", param="logit_bias")
        if self._max_queued is not None and len(self._running) >= self._max_queued and not request.resent:
            raise OverloadedError("the queue is full (--max-queued-requests)")
        if request.request_id in self._running:
            raise InvalidRequestError(f"a request with id {request.request_id!r} is already running", param="rid")
        assert request.params.n == 1
        assert request.params.seed is not None
        self.requests.append(request)
        self._running[request.request_id] = (request, [], time.time())

    def abort(self, request_ids):
        for request_id in request_ids:
            if self._running.pop(request_id, None) is not None:
                self.aborted.append(request_id)

    def close(self, failure=""):
        self.failure = failure

    def flush_cache(self):
        if self._running:
            raise OverloadedError("requests are running")

    def explain(self, request_ids):
        return [self._explain(request_id) for request_id in request_ids if request_id in self._running]

    def _explain(self, request_id):
        request, tokens, scheduled = self._running[request_id]
        return LiveRequest(
            request_id,
            "running",
            RequestTimes(request.received, scheduled),
            RequestTrace(queued=request.received),
            prompt_tokens=len(request.prompt_ids),
            computed_tokens=len(request.prompt_ids) + len(tokens),
            completion_tokens=len(tokens),
            cached_tokens=len(request.prompt_ids) // 2,
            num_retractions=0,
        )

    def start_profile(self, options):
        if self._profile is not None:
            raise InvalidRequestError("a profile is already running", param="output_dir")
        self._profile = options.output_dir

    def stop_profile(self):
        if self._profile is None:
            raise InvalidRequestError("no profile is running")
        self._num_asked += 1
        if self._num_asked < 3:
            return None  # it is being written
        folder, self._profile, self._num_asked = self._profile, None, 0
        return ProfileReport(folder)

    def steer(self, message):
        match message:
            case SetPause():
                self._is_paused = message.mode is not None
            case SetReleased():
                self.released = message.tags
            case UpdateWeights():
                file = Path(message.path) / "model.safetensors"
                if not file.is_file():
                    return [], ControlReply(message.call_id, ok=False, message=f"{file} is missing")
                self._knobs["script"] = list(file.read_bytes())  # what it says from now on
        return [], ControlReply(message.call_id, ok=True, count=len(self._running))

    def stats(self, *, check_integrity=False, pages=False):
        integrity_error = self._knobs.get("broken") if check_integrity else None
        return EngineStats(
            [RankStats(num_running=len(self._running), num_total_tokens=4096)], integrity_error=integrity_error
        )

    def step(self):
        self._num_steps += 1
        if self._num_steps == self._knobs.get("fail_at_step"):
            raise ZeroDivisionError("by the fake")
        if self._num_steps == self._knobs.get("die_at_step"):
            os._exit(7)
        if self._num_steps == self._knobs.get("hang_at_step"):
            (ctypes.PyDLL(None) if self._knobs.get("hang_keeps_lock") else ctypes.CDLL(None)).sleep(3600)
        if self._num_steps == self._knobs.get("compile_at_step"):
            with self.activity.compiling("decode[bs=8]"):
                time.sleep(self._knobs["compile_seconds"])
        time.sleep(self._knobs.get("step_delay", 0))
        entries = list(self._running.values())[: self._knobs.get("max_running")]
        outputs = [self._advance(*entry) for entry in entries]
        for output in outputs:
            if output.finish is not None:
                del self._running[output.request_id]
        return outputs

    def _advance(self, request, tokens, scheduled):
        timeout = request.options.timeout
        if timeout is not None and time.time() > request.received + timeout:
            finish = FinishReason("abort", message=f"not done within {timeout:g} s", status=504)
            return TokenOutput(request.request_id, [], finish=finish)
        first = not tokens
        new, finish = [], None
        for _ in range(self._knobs.get("tokens_per_step", 1)):
            new.append(self._choose(request, tokens))
            tokens.append(new[-1])
            if new[-1] in request.stop_token_ids and len(tokens) >= request.params.min_tokens:
                finish = FinishReason("stop", matched=new[-1])
            elif len(tokens) >= request.params.max_tokens:
                finish = FinishReason("length")
            if finish:
                break
        params = request.params
        now = time.time()
        return TokenOutput(
            request.request_id,
            new,
            logprobs=None if params.logprobs is None else [_logprob(t, params.logprobs, params) for t in new],
            prompt_logprobs=_prompt_logprobs(request) if first and params.prompt_logprobs is not None else None,
            finish=finish,
            cached_tokens=len(request.prompt_ids) // 2,
            times=RequestTimes(request.received, scheduled, scheduled, now) if finish else None,
        )

    def _choose(self, request, tokens):
        script = self._knobs.get("script")
        if script is not None:
            return script[len(tokens)] if len(tokens) < len(script) else EOS
        last = tokens[-1] if tokens else request.prompt_ids[-1]
        if request.params.temperature == 0.0:
            return next_token(last)
        position = len(request.prompt_ids) + len(tokens)
        return random.Random(request.params.seed * 1000 + position).randrange(3, VOCAB_SIZE)


def _logprob(token, width, params):
    top = tuple((token + i, -(token + i) / 100) for i in range(width))
    asked = tuple((asked_id, -asked_id / 100) for asked_id in params.logprob_token_ids or ())
    return TokenLogprob(token, -token / 100, top, asked)


def _prompt_logprobs(request):
    width = request.params.prompt_logprobs
    first, *rest = request.prompt_ids
    return [TokenLogprob(first, None), *(_logprob(token, width, request.params) for token in rest)]


@contextlib.asynccontextmanager
async def started(engine):
    """The engine, from ready to shut down."""
    await engine.start()
    await engine.wait_ready()
    try:
        yield engine
    finally:
        await engine.shutdown()
