"""Engine: offline generation from Python, with SGLang's interface. The same core as the server, in this process."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import operator
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from tqdm import tqdm

from palladio.runtime.async_engine import AsyncEngine
from palladio.runtime.config import EngineConfig
from palladio.runtime.errors import EngineDeadError, InvalidRequestError
from palladio.runtime.outputs import RequestOutput
from palladio.runtime.request_front import output_room
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.sglang_format import DEFAULT_MAX_TOKENS, LogprobOptions, SampleResult
from palladio.runtime.tokenizer import Tokenizer

T = TypeVar("T")
Sampling = SamplingParams | Mapping[str, Any]
Result = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    """One prompt of a call.

    Attributes:
        uses_default_length: max_tokens was not given.
        first_index: of its samples among the call's results.
    """

    request_id: str
    prompt: str | list[int]
    params: SamplingParams
    uses_default_length: bool
    options: LogprobOptions
    first_index: int


class Engine:
    """Generates text from Python, without a server.

        with Engine(model_path="Qwen/Qwen3-0.6B") as engine:
            print(engine.generate("The capital of France is", {"temperature": 0})["text"])

    Methods may be called from any thread; calls run side by side in one batch.

    Args:
        model_path: a model directory or hub id.
        flags: the server's engine flags by name, with underscores (see EngineConfig).

    Raises:
        ConfigError: a flag or the checkpoint is wrong.
    """

    def __init__(self, model_path: str, **flags: Any) -> None:
        config = EngineConfig.from_flags({"model_path": model_path, **flags})
        self._start(AsyncEngine.from_config(config, in_process=True))

    @classmethod
    def from_async_engine(cls, engine: AsyncEngine) -> Self:
        """Wraps an engine that was not started yet (another transport, a fake core)."""
        self = cls.__new__(cls)
        self._start(engine)
        return self

    def _start(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="palladio-front", daemon=True)
        self._thread.start()
        try:
            self._run(engine.start())
            self._run(engine.wait_ready())
        except BaseException:
            self.shutdown()
            raise

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._engine.tokenizer

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        return_text_in_logprobs: bool = False,
        rid: str | Sequence[str] | None = None,
        stream: bool = False,
        show_progress: bool | None = None,
    ) -> Result | list[Result] | Iterator[Result]:
        """Generates, and returns SGLang's results.

        Args:
            prompt: a text, or a list of them; or give `input_ids`.
            sampling_params: for all prompts, or one for each. Not given: the checkpoint's defaults and 128 tokens.
            input_ids: token ids of one prompt, or a list of those.
            return_logprob: report log-probabilities; this and the next two may be lists, one entry a prompt.
            logprob_start_len: first prompt position to report; -1: only the output.
            top_logprobs_num: likeliest tokens to report at each position.
            return_text_in_logprobs: tokens' text beside their ids.
            rid: the request's id, or one a prompt.
            stream: return an iterator instead; each item holds all of its sample's text so far, and `index` says
                which sample it is, if there are several.
            show_progress: a progress bar over prompts; default: if there are several and stderr is a terminal.

        Returns:
            A dict with "text", "output_ids", "meta_info"; a list of them, in order, for a list of prompts or n > 1.

        Raises:
            InvalidRequestError: a parameter or a prompt is wrong; nothing is generated then.
            EngineDeadError: the engine failed or was shut down.
        """
        logprob_fields = (return_logprob, logprob_start_len, top_logprobs_num, return_text_in_logprobs)
        jobs, is_list = self._jobs(_prompts(prompt, input_ids), sampling_params, rid, logprob_fields)
        if stream:
            return self._iterate(self._stream(jobs, is_list))
        if show_progress is None:
            show_progress = len(jobs) > 1 and sys.stderr.isatty()
        return self._run(self._collect(jobs, is_list, show_progress))

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Sampling | Sequence[Sampling] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        return_text_in_logprobs: bool = False,
        rid: str | Sequence[str] | None = None,
        stream: bool = False,
    ) -> Result | list[Result] | AsyncIterator[Result]:
        """As `generate`, from an event loop: `await` it; with `stream`, `async for` over what it returns."""
        logprob_fields = (return_logprob, logprob_start_len, top_logprobs_num, return_text_in_logprobs)
        jobs, is_list = self._jobs(_prompts(prompt, input_ids), sampling_params, rid, logprob_fields)
        if stream:
            return self._iterate_async(self._stream(jobs, is_list))
        return await asyncio.wrap_future(self._submit(self._collect(jobs, is_list, show_progress=False)))

    def encode(self, prompt: str | Sequence[str]) -> Result | list[Result]:
        """SGLang's name for embeddings, which a generative model does not give.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError("Engine.encode makes embeddings, and this model generates text: use generate")

    def flush_cache(self) -> None:
        """Drops the prefix cache.

        Raises:
            OverloadedError: requests are running.
        """
        self._run(self._engine.flush_cache())

    def abort_request(self, rid: str | None = None) -> int:
        """Aborts a request (None: all); returns how many were running."""
        return self._run(self._engine.abort(rid))

    def get_server_info(self) -> dict[str, Any]:
        """Flags, the limits that the engine settled on, and a snapshot of its state."""
        stats = self._run(self._engine.stats())
        config = self._engine.config
        flags: dict[str, Any] = {}
        for group in (config.source, config.cache, config.scheduler, config.execution):
            flags |= dataclasses.asdict(group)
        return flags | dataclasses.asdict(self._engine.info) | {"internal_states": [dataclasses.asdict(stats)]}

    def shutdown(self) -> None:
        """Ends the engine; what still runs is aborted. Idempotent."""
        if self._closed:
            return
        self._run(self._engine.shutdown())
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def _jobs(
        self,
        prompts: tuple[list[str | list[int]], bool],
        sampling_params: Sampling | Sequence[Sampling] | None,
        rid: str | Sequence[str] | None,
        logprob_fields: tuple[Any, Any, Any, bool],
    ) -> tuple[list[_Job], bool]:
        inputs, is_list = prompts
        count = len(inputs)
        samplings = _spread("sampling_params", {} if sampling_params is None else sampling_params, count)
        rids = _spread("rid", rid, count) if rid is not None else [uuid.uuid4().hex for _ in inputs]
        if len(set(rids)) != count:
            raise InvalidRequestError("rid must be different for each prompt", param="rid")
        *fields, return_text = logprob_fields
        names = ("return_logprob", "logprob_start_len", "top_logprobs_num")
        columns = [_spread(name, value, count) for name, value in zip(names, fields, strict=True)]
        jobs: list[_Job] = []
        first_index = 0
        for i, prompt in enumerate(inputs):
            params, uses_default_length = self._params(samplings[i])
            options = LogprobOptions(
                **{name: column[i] for name, column in zip(names, columns, strict=True)},
                return_text_in_logprobs=return_text,
            )
            params = options.apply(params)
            jobs.append(_Job(rids[i], prompt, params, uses_default_length, options, first_index))
            first_index += params.n
        return jobs, is_list or first_index > count

    def _params(self, sampling: Sampling) -> tuple[SamplingParams, bool]:
        if isinstance(sampling, SamplingParams):
            return sampling, False
        given = any(sampling.get(name) is not None for name in ("max_tokens", "max_new_tokens"))
        defaults = {"max_tokens": DEFAULT_MAX_TOKENS, **self._engine.sampling_defaults}
        return SamplingParams.from_dict(sampling, defaults=defaults), not given

    async def _outputs(self, job: _Job) -> AsyncGenerator[RequestOutput, None]:
        prompt, params = job.prompt, job.params
        if job.uses_default_length:  # the default makes way for a long prompt
            if isinstance(prompt, str) and self._engine.tokenizer is not None:
                prompt = await asyncio.to_thread(self._engine.tokenizer.encode, prompt)
            room = output_room(self._engine.info, len(prompt))
            params = dataclasses.replace(params, max_tokens=max(params.min_tokens, 1, min(DEFAULT_MAX_TOKENS, room)))
        source = self._engine.generate(prompt, params, request_id=job.request_id)
        async with contextlib.aclosing(source):
            async for output in source:
                yield output

    async def _collect_job(self, job: _Job) -> list[Result]:
        results = [SampleResult(job.options, self.tokenizer) for _ in range(job.params.n)]
        async for output in self._outputs(job):
            results[output.index].add(output)
        return [result.to_dict() for result in results]

    async def _collect(self, jobs: list[_Job], is_list: bool, show_progress: bool) -> Result | list[Result]:
        with tqdm(total=len(jobs), disable=not show_progress, unit="prompt") as progress:
            tasks = [asyncio.create_task(self._collect_job(job)) for job in jobs]
            for task in tasks:
                task.add_done_callback(lambda _: progress.update())
            await _all_or_none(tasks)
        results = [result for task in tasks for result in task.result()]
        return results if is_list else results[0]

    async def _stream(self, jobs: list[_Job], is_list: bool) -> AsyncGenerator[Result, None]:
        queue: asyncio.Queue[Result | None] = asyncio.Queue()

        async def pump(job: _Job) -> None:
            results = [SampleResult(job.options, self.tokenizer) for _ in range(job.params.n)]
            async for output in self._outputs(job):
                result = results[output.index]
                result.add(output)
                queue.put_nowait(result.to_dict() | ({"index": job.first_index + output.index} if is_list else {}))

        async def pump_all() -> None:
            try:
                await _all_or_none([asyncio.create_task(pump(job)) for job in jobs])
            finally:
                queue.put_nowait(None)

        pumping = asyncio.create_task(pump_all())
        try:
            while (result := await queue.get()) is not None:
                yield result
            await pumping
        finally:
            pumping.cancel()
            await asyncio.wait([pumping])

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._closed:
            work.close()
            raise EngineDeadError("the engine was shut down")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: what it began must not go on
            future.cancel()
            raise

    def _iterate(self, source: AsyncGenerator[Result, None]) -> Iterator[Result]:
        try:
            while (result := self._run(_next(source))) is not None:
                yield result
        finally:
            if not self._closed:
                self._run(_close(source))

    async def _iterate_async(self, source: AsyncGenerator[Result, None]) -> AsyncIterator[Result]:
        try:
            while (result := await asyncio.wrap_future(self._submit(_next(source)))) is not None:
                yield result
        finally:
            if not self._closed:
                await asyncio.wrap_future(self._submit(_close(source)))


async def _next(source: AsyncGenerator[Result, None]) -> Result | None:
    return await anext(source, None)


async def _close(source: AsyncGenerator[Result, None]) -> None:
    await source.aclose()


async def _all_or_none(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits for all tasks; when one fails, or the caller is cancelled, cancels the others and waits for their end."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _prompts(prompt: str | Sequence[str] | None, input_ids: Any) -> tuple[list[str | list[int]], bool]:
    """The prompts of a call, and whether they came as a list."""
    if (prompt is None) == (input_ids is None):
        raise InvalidRequestError("give either prompt or input_ids", param="prompt")
    if isinstance(prompt, str):
        return [prompt], False
    if prompt is not None:
        if not all(isinstance(text, str) for text in prompt):
            raise InvalidRequestError("prompt must be a text or a list of texts; ids go to input_ids", param="prompt")
        return list(prompt), True
    try:
        if len(input_ids) > 0 and all(hasattr(row, "__len__") for row in input_ids):
            return [[operator.index(token_id) for token_id in row] for row in input_ids], True
        return [[operator.index(token_id) for token_id in input_ids]], False
    except TypeError:
        raise InvalidRequestError(
            "input_ids must be a list of token ids, or a list of those", param="input_ids"
        ) from None


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """One value for each prompt: a list is one already."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise InvalidRequestError(f"{name} has {len(value)} entries for {count} prompts", param=name)
    return list(value)
