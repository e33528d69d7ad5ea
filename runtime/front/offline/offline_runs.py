"""Runs an offline engine's requests, and puts their outputs together."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.offline.loop_thread import LoopThread, all_or_none
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.front.requests.sglang_requests import LogprobOptions, expand_requests
from palladio.runtime.front.requests.sglang_results import Results
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.input_embeds import read_embeds

T = TypeVar("T")
Result = dict[str, Any]


class OfflineRuns(LoopThread):
    """The part of `Engine` that runs requests, in its loop."""

    _engine: AsyncEngine

    def _expand(self, **arguments: Any) -> tuple[list[GenerationRequest], list[LogprobOptions], bool]:
        """Make the requests of a call. May take long, for long texts.

        Args:
            arguments: the arguments of expand_requests.
        """
        if (embeds := arguments.get("input_embeds")) is not None:
            info = self._engine.info
            arguments["input_embeds"] = read_embeds(embeds, info.embeds, LengthLimit.of(info).limit)
        defaults = self._engine.sampling_defaults
        return expand_requests(**arguments, defaults=defaults, tokenizer=self._engine.tokenizer, received=time.time())

    async def _collect(
        self, requests: list[GenerationRequest], shown: list[LogprobOptions], is_list: bool, show_progress: bool
    ) -> Result | list[Result]:
        results = Results(requests, shown, self._engine.tokenizer, self._engine.model)

        async def collect(request: GenerationRequest) -> None:
            async with contextlib.aclosing(self._engine.generate(request)) as outputs:
                async for output in outputs:
                    results.add(request.first_index + output.index, output)

        await self._gather([collect(request) for request in requests], show_progress)
        return results.to_dicts() if is_list else results.to_dict(0)

    async def _gather(self, works: Sequence[Coroutine[Any, Any, T]], show_progress: bool) -> list[T]:
        """The results of all of them; if one fails, the others end with it."""
        with tqdm(total=len(works), disable=not show_progress, unit="prompt") as progress:
            tasks = [asyncio.create_task(work) for work in works]
            for task in tasks:
                task.add_done_callback(lambda _: progress.update())
            await all_or_none(tasks)
        return [task.result() for task in tasks]

    async def _stream(
        self, requests: list[GenerationRequest], shown: list[LogprobOptions], is_list: bool
    ) -> AsyncGenerator[Result, None]:
        queue: asyncio.Queue[Result | None] = asyncio.Queue()
        results = Results(requests, shown, self._engine.tokenizer, self._engine.model)

        async def pump(request: GenerationRequest) -> None:
            async with contextlib.aclosing(self._engine.generate(request)) as outputs:
                async for output in outputs:
                    index = request.first_index + output.index
                    results.add(index, output)
                    queue.put_nowait(results.to_dict(index) | ({"index": index} if is_list else {}))

        async def pump_all() -> None:
            try:
                await all_or_none([asyncio.create_task(pump(request)) for request in requests])
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
