"""A tiny random model with a tiny tokenizer, and EngineCores on it: real programs, quickly compiled."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.core.start import startup
from palladio.runtime.core.start.build_scheduler import build_scheduler
from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.outputs.request_trace import RequestTrace
from palladio.runtime.interface.outputs.timeline import Timeline
from palladio.runtime.interface.outputs.token_output import FinishReason, NewTokens, TokenLogprob, by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledStep
from palladio.runtime.telemetry.profiler import ProfileLimits, Profiler
from tests import compile_cache
from tests.tiny_tokenizer import build_tiny_tokenizer

VOCAB_SIZE = 400  # the tokenizer knows 384: the last 16 ids are padding
NUM_TOKENS = 384
TINY_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,  # models and goldens have more; here a second one would be as much to compile again
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "eos_token_id": 2,
}
FLAGS: dict[str, Any] = {
    "load_format": "dummy",
    "page_size": 4,
    "max_total_tokens": 1024,
    "max_running_requests": 8,
    "chunked_prefill_size": 32,
    "random_seed": 0,
    "compile": "full",
    "fail_on_recompile": True,
    "compilation_cache_dir": str(compile_cache.folder() / "xla"),
}


def build_tiny_model_dir(folder: Path) -> Path:
    """A Hugging Face directory without weights, for --load-format dummy."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    return build_tiny_tokenizer(folder, vocab_size=NUM_TOKENS)


def create_core(folder: Path, **flags: Any) -> EngineCore:
    config = EngineConfig.from_flags({"model_path": str(folder), **FLAGS, **flags})
    return EngineCore.create(config, lambda progress: None)


class TinyEngine:
    """A model with its compiled programs, and any number of cores on them that schedule and cache differently.

    Only the newest core may run: all have the same pages, and those that an older one knows of are overwritten.
    """

    def __init__(self, folder: Path, **flags: Any) -> None:
        self._flags = {"model_path": str(folder), **FLAGS, **flags}
        config = EngineConfig.from_flags(self._flags)
        self._parts = startup.build_engine_parts(config, lambda progress: None)
        overrides = json.loads(config.source.json_model_override_args)
        self._model_config = ModelConfig.from_hf(*read_model_dir(folder, overrides))

    def core(
        self,
        profile_limits: ProfileLimits | None = None,
        observers: Sequence[StepObserver] | None = None,
        **flags: Any,
    ) -> EngineCore:
        """A fresh core. Flags may change what the scheduler and the cache do, and lower limits; not the programs.

        Args:
            observers: of its steps; None: the usual ones.
        """
        parts = self._parts
        config = EngineConfig.from_flags({**self._flags, "cache_self_check": 0.0, **flags})
        limits = EngineLimits.of(config, self._model_config, PlatformDefaults.of("cpu"))
        if config.scheduler.num_continuous_decode_steps is None:
            limits = dataclasses.replace(limits, joined_passes=parts.runner.shape.joined_passes)
        assert config.cache.max_total_tokens is not None
        assert config.cache.max_total_tokens <= parts.ready.max_total_tokens
        groups = parts.runner.shape.page_groups
        num_pages = groups.num_tables * -(-config.cache.max_total_tokens // groups.page_size) + 1
        scheduler = build_scheduler(
            config, limits, parts.scheduler.buckets, num_pages, groups, 0, parts.ready.embedding
        )
        parts = dataclasses.replace(parts, scheduler=scheduler)
        if observers is not None:
            return EngineCore(config, parts, Profiler(parts.activity), observers)
        return EngineCore.with_observers(config, parts, profile_limits=profile_limits)

    @property
    def programs(self) -> list[ProgramKey]:
        built = self._parts.runner.programs.built
        return [key for key in built.declared if key in built]


def random_prompt(length: int, salt: int = 0) -> list[int]:
    return np.random.default_rng((salt, length)).integers(3, NUM_TOKENS, length).tolist()


def record_batches(core: EngineCore) -> list[ScheduledBatch]:
    """A list that every step of an engine with one group of devices adds its batch to."""
    batches: list[ScheduledBatch] = []
    schedule = core._scheduler.schedule

    def recording() -> ScheduledStep | None:
        step = schedule()
        if step is not None:
            batches.extend(batch for _, batch in step.parts)
        return step

    core._scheduler.schedule = recording  # type: ignore[method-assign]
    return batches


class Outcome(NamedTuple):
    """All that a request's user sees of it."""

    tokens: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob]


class Collector:
    """Runs requests on a core to the end and keeps what comes out."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprob]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        self.finish: dict[str, FinishReason] = {}
        self.num_retractions: dict[str, int] = {}
        self.cached_tokens: dict[str, int] = {}
        self.traces: dict[str, RequestTrace] = {}
        self.timelines: dict[str, Timeline] = {}

    def add(
        self,
        request_id: str,
        prompt: list[int],
        *,
        stop_ids: tuple[int, ...] = (),
        options: RequestOptions = RequestOptions(),
        received: float = 0.0,
        **params: Any,
    ) -> None:
        params = {"max_tokens": 16, "temperature": 0.0, "seed": 0, **params}
        self.send(GenerationRequest(request_id, prompt, SamplingParams(**params), stop_ids, received, options))

    def send(self, message: GenerationRequest) -> None:
        self.core.add(message)
        self.tokens[message.request_id] = []
        self.logprobs[message.request_id] = []

    def step(self) -> None:
        self.take(self.core.step())

    def take(self, outputs: Sequence[NewTokens]) -> None:
        for output in by_request(outputs):
            if output.request_id.startswith("cache self-check"):
                continue  # every front ignores ids that it does not know
            self.tokens[output.request_id] += output.token_ids
            self.logprobs[output.request_id] += output.logprobs or []
            self.cached_tokens[output.request_id] = output.cached_tokens
            if output.trace is not None and output.trace.timeline is not None:
                self.timelines.setdefault(output.request_id, Timeline()).extend(output.trace.timeline)
            if output.prompt_logprobs is not None:
                self.prompt_logprobs[output.request_id] = output.prompt_logprobs
            if output.finish is not None:
                self.finish[output.request_id] = output.finish
                self.num_retractions[output.request_id] = output.num_retractions
                if output.trace is not None:  # it was queued
                    self.traces[output.request_id] = output.trace

    def run(self) -> "Collector":
        for _ in range(5000):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, "stalled"
        stats = self.core.stats(check_integrity=True)
        assert stats.integrity_error is None
        assert stats.total.num_used_tokens == 0
        assert stats.num_compiles_after_ready == 0, "a step compiled something after warm-up"
        return self

    def outcome(self, request_id: str) -> Outcome:
        prompt_logprobs = self.prompt_logprobs.get(request_id, [])
        return Outcome(self.tokens[request_id], self.logprobs[request_id], prompt_logprobs)


def generate(core: EngineCore, prompts: Mapping[str, list[int]], **params: Any) -> dict[str, list[int]]:
    """Tokens of each prompt, all run together."""
    collector = Collector(core)
    for name, prompt in prompts.items():
        collector.add(name, prompt, **params)
    return collector.run().tokens
