"""An engine for callers that wait: log-likelihoods and answers of many texts at once."""

import asyncio
import contextlib
import dataclasses
import itertools
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from tqdm import tqdm

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

AT_ONCE = 256  # requests that the engine has; the rest waits here


@dataclasses.dataclass(frozen=True, slots=True)
class Likelihood:
    """The likelihood of a continuation of a context.

    Attributes:
        logprob: natural logarithm of its probability.
        is_greedy: each of its tokens is the likeliest one.
    """

    logprob: float
    is_greedy: bool


class EngineScores:
    """Made by `running_scores`. Calls come from another thread than the engine's loop."""

    def __init__(self, engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._numbers = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        found = self._engine.tokenizer
        assert found is not None, "running_scores has looked"
        return found

    @property
    def context_length(self) -> int:
        return self._engine.info.context_length

    def likelihoods(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Likelihood]:
        """Score pairs of context and continuation, in token ids. Contexts that are too long lose their beginnings."""
        return self._wait([self._likelihood(*pair) for pair in pairs], "Scoring")

    def answers(self, prompts: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[str]:
        """Texts that go on with prompts; prompts that are too long lose their beginnings."""
        return self._wait([self._answer(*prompt) for prompt in prompts], "Answering")

    def _wait(self, work: Sequence[Coroutine[Any, Any, Any]], title: str) -> list[Any]:
        return asyncio.run_coroutine_threadsafe(self._gather(work, title), self._loop).result()

    async def _gather(self, work: Sequence[Coroutine[Any, Any, Any]], title: str) -> list[Any]:
        gate = asyncio.Semaphore(AT_ONCE)
        with tqdm(total=len(work), desc=title, unit=" requests", disable=not sys.stderr.isatty()) as bar:

            async def one(coroutine: Coroutine[Any, Any, Any]) -> Any:
                async with gate:
                    result = await coroutine
                bar.update(1)
                return result

            return await asyncio.gather(*(one(coroutine) for coroutine in work))

    async def _likelihood(self, context: Sequence[int], continuation: Sequence[int]) -> Likelihood:
        ids = [*context, *continuation][-self.context_length :]
        count = min(len(continuation), len(ids) - 1)  # nothing predicts the first token
        params = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=1)
        entries: list[Any] = []
        async with contextlib.aclosing(self._engine.generate(self._request(ids, params))) as outputs:
            async for output in outputs:
                entries += output.prompt_logprobs or ()
        scored = entries[len(entries) - count :]
        return Likelihood(
            sum(entry.logprob for entry in scored), all(entry.top[0][0] == entry.token_id for entry in scored)
        )

    async def _answer(self, prompt: Sequence[int], params: SamplingParams) -> str:
        room = max(1, self.context_length - (params.max_tokens or 0))
        async with contextlib.aclosing(self._engine.generate(self._request(prompt[-room:], params))) as outputs:
            return "".join([output.text async for output in outputs])

    def _request(self, ids: Sequence[int], params: SamplingParams) -> GenerationRequest:
        return GenerationRequest(f"eval-{next(self._numbers)}", list(ids), params)


@contextlib.contextmanager
def running_scores(engine: AsyncEngine) -> Iterator[EngineScores]:
    """An engine that is ready, in a loop of its own.

    Raises:
        ConfigError: a flag or the checkpoint. EngineDeadError: it could not start.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever, name="eval-engine", daemon=True)
        thread.start()

        def call(work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        try:
            call(engine.start())
            try:
                call(engine.wait_ready())
                if engine.tokenizer is None:
                    raise ConfigError("--skip-tokenizer-init: tasks need the tokenizer; leave the flag out")
                yield EngineScores(engine, loop)
            finally:
                call(engine.shutdown())
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
