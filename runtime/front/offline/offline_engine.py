"""Engine: offline generation from Python, with SGLang's interface. The same core as the server, in this process."""

import asyncio
import atexit
import dataclasses
import functools
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.offline.offline_embeddings import OfflineEmbeddings
from palladio.runtime.front.offline.offline_weights import WeightUpdates
from palladio.runtime.front.offline.scoring import Scoring
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.front.requests.sglang_requests import Sampling
from palladio.runtime.interface.flags.offline_flags import OfflineFlags
from palladio.runtime.interface.messages.profile_options import ProfileOptions
from palladio.runtime.interface.messages.stats_report import describe_stats
from palladio.runtime.interface.request.foreign_fields import refuse_keywords
from palladio.runtime.process.transport import ThreadTransport
from palladio.runtime.telemetry.logs import configure_logging
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

Result = dict[str, Any]

logger = logging.getLogger(__name__)


class Engine(Scoring, WeightUpdates, OfflineEmbeddings):
    """Generates text from Python, without a server.

        with Engine(model_path="Qwen/Qwen3-0.6B") as engine:
            print(engine.generate("The capital of France is", {"temperature": 0})["text"])

    Methods can be called from any thread; concurrent calls share batches.

    Args:
        model_path: a model directory, a hub id or a short name; "default" is the embedded model.
        flags: the server's engine flags by name, with underscores (docs/flags.md). SGLang's other flags, and those of
            other servers, are accepted, accepted with a warning, or refused as on the command line. `log_level` sets
            up the process's log, which is left alone otherwise.

    Engine reads no environment variables. It keeps compiled programs in ~/.cache/palladio/xla unless
    `compilation_cache_dir` is set. On a GPU, set XLA_CLIENT_MEM_FRACTION=1.0 before the first use of jax, as the server
    does; otherwise XLA takes 0.75 of the GPU, and `mem_fraction_static` is a fraction of that.

    Raises:
        ConfigError: a flag or the checkpoint is wrong.
        EngineDeadError: this process was made by fork, of one that has had an Engine.
    """

    def __init__(self, model_path: str | os.PathLike[str] | None = None, **flags: Any) -> None:
        given = OfflineFlags.read({"model_path": None if model_path is None else os.fspath(model_path), **flags})
        if given.log_level is not None:
            configure_logging(given.log_level)
        for warning in given.warnings:
            logger.warning(warning)
        self._start(AsyncEngine(given.config, ThreadTransport()))

    @classmethod
    def from_async_engine(cls, engine: AsyncEngine) -> Self:
        """Wraps an engine that was not started yet (another transport, a fake core)."""
        self = cls.__new__(cls)
        self._start(engine)
        return self

    def _start(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._open_loop()
        try:
            self._run(engine.start())
            self._run(engine.wait_ready())
        except BaseException:
            self.shutdown()
            raise
        atexit.register(self.shutdown)  # after jax was loaded, so that it runs before jax's own

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._engine.tokenizer

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        input_embeds: Any = None,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        token_ids_logprob: Sequence[int] | Sequence[Sequence[int]] | None = None,
        return_text_in_logprobs: bool = False,
        rid: str | Sequence[str] | None = None,
        extra_key: str | Sequence[str | None] | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        priority: int | Sequence[int | None] | None = None,
        timeout: float | Sequence[float | None] | None = None,
        stream: bool = False,
        show_progress: bool | None = None,
        **others: Any,
    ) -> Result | list[Result] | Iterator[Result]:
        """Generates, and returns SGLang's results.

        Args:
            prompt: a text, or a list of them; or give `input_ids`.
            sampling_params: for all prompts, or a list with one per prompt. Default: the checkpoint's, and 128 tokens.
            input_ids: token ids of one prompt, or a list of those.
            input_embeds: embeddings of one prompt, [tokens, D], or a list of those; with enable_input_embeds=True.
            return_logprob: report log-probabilities. This and the next two can be lists with one entry per prompt.
            logprob_start_len: first prompt position to report; -1: only the output.
            top_logprobs_num: likeliest tokens to report at each position.
            token_ids_logprob: tokens to report at each position, for all prompts, or a list with one list per prompt.
            return_text_in_logprobs: add the text of tokens to their ids.
            rid: the request's id, or a list with one per prompt.
            extra_key: share cached prefixes only with prompts of the same key. This and the next three can be lists,
                with one entry per prompt.
            cache_salt: vLLM's name for extra_key; if both are given, both must match.
            priority: with schedule_policy="priority": prompts of higher priority go first.
            timeout: maximum seconds per prompt; then it ends with the finish reason "abort" and its output so far.
            stream: return an iterator. Each item has all of its sample's text so far; if there are several samples,
                `index` is its number.
            show_progress: a progress bar over prompts; default: if there are several and stderr is a terminal.
            others: other arguments of SGLang's, such as `lora_path`: refused as POST /generate refuses them.

        Returns:
            A dict with "text", "output_ids", "meta_info"; a list of them, in order, for a list of prompts or n > 1.

        Raises:
            InvalidRequestError: a parameter or a prompt is wrong; nothing is generated then.
            DeadlineError: a prompt's timeout passed before its first token; the other prompts end too.
            EngineDeadError: the engine failed or was shut down.
        """
        refuse_keywords("generate", others)
        requests, shown, is_list = self._expand(
            prompt=prompt,
            input_ids=input_ids,
            input_embeds=input_embeds,
            sampling_params=sampling_params,
            rid=rid,
            logprobs={
                "return_logprob": return_logprob,
                "logprob_start_len": logprob_start_len,
                "top_logprobs_num": top_logprobs_num,
                "token_ids_logprob": token_ids_logprob,
                "return_text_in_logprobs": return_text_in_logprobs,
            },
            options={"cache_salt": cache_salt, "extra_key": extra_key, "priority": priority, "timeout": timeout},
        )
        if stream:
            return self._iterate(self._stream(requests, shown, is_list))
        if show_progress is None:
            show_progress = len(requests) > 1 and sys.stderr.isatty()
        return self._run(self._collect(requests, shown, is_list, show_progress))

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        input_embeds: Any = None,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        token_ids_logprob: Sequence[int] | Sequence[Sequence[int]] | None = None,
        return_text_in_logprobs: bool = False,
        rid: str | Sequence[str] | None = None,
        extra_key: str | Sequence[str | None] | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        priority: int | Sequence[int | None] | None = None,
        timeout: float | Sequence[float | None] | None = None,
        stream: bool = False,
        **others: Any,
    ) -> Result | list[Result] | AsyncIterator[Result]:
        """Do what `generate` does, from an event loop: `await` it; with `stream`, `async for` over what it returns."""
        refuse_keywords("async_generate", others)
        expand = functools.partial(
            self._expand,
            prompt=prompt,
            input_ids=input_ids,
            input_embeds=input_embeds,
            sampling_params=sampling_params,
            rid=rid,
            logprobs={
                "return_logprob": return_logprob,
                "logprob_start_len": logprob_start_len,
                "top_logprobs_num": top_logprobs_num,
                "token_ids_logprob": token_ids_logprob,
                "return_text_in_logprobs": return_text_in_logprobs,
            },
            options={"cache_salt": cache_salt, "extra_key": extra_key, "priority": priority, "timeout": timeout},
        )
        requests, shown, is_list = await asyncio.to_thread(expand)  # texts may be long
        if stream:
            return self._iterate_async(self._stream(requests, shown, is_list))
        return await asyncio.wrap_future(self._submit(self._collect(requests, shown, is_list, show_progress=False)))

    def start_profile(self, output_dir: str | os.PathLike[str] | None = None, **fields: Any) -> None:
        """Begins a trace of the device and the host, in the xplane format.

        Args:
            output_dir: the folder that it is written to; default: a new one in the temporary directory.
            fields: SGLang's, as for `POST /start_profile`: start_step, num_steps, activities, with_stack, ….

        Raises:
            InvalidRequestError: a trace is under way, or a field asks for what XLA's profiler has not.
        """
        options = ProfileOptions.of(
            fields, lambda: os.path.abspath(output_dir or tempfile.mkdtemp(prefix="palladio-profile-"))
        )
        self._run(self._engine.start_profile(options))

    def stop_profile(self) -> str:
        """Ends the trace; returns the folder that has it.

        Raises:
            InvalidRequestError: no trace is under way, or it could not be written.
        """
        return self._run(self._engine.stop_profile()).output_dir

    def flush_cache(self) -> None:
        """Empties the prefix cache.

        Raises:
            OverloadedError: requests are running.
        """
        self._run(self._engine.flush_cache())

    def abort_request(self, rid: str | None = None) -> int:
        """Aborts a request (None: all of them). Returns how many were running."""
        return self._run(self._engine.abort(rid))

    def get_server_info(self) -> dict[str, Any]:
        """Returns all flags, the limits in effect, and a snapshot of the engine's state."""
        stats = self._run(self._engine.stats(check_integrity=True))
        info, config = self._engine.info, self._engine.config
        as_sglang_has_it = {
            "tokenizer_path": config.source.tokenizer_path or config.source.model_path,
            "max_total_num_tokens": info.max_total_tokens,
            "max_req_input_len": LengthLimit.of(info).limit - 1,
            "weight_version": self._engine.model.version,
            "internal_states": [describe_stats(stats)],
        }
        return config.flags() | dataclasses.asdict(info) | as_sglang_has_it

    def shutdown(self) -> None:
        """Stops the engine and aborts running requests; can be called again. A program being compiled is waited for.

        In a process made by fork it does nothing: the engine runs in the other one.
        """
        if self._is_gone:
            return
        self._run(self._engine.shutdown())
        self._close_loop()
        atexit.unregister(self.shutdown)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()
