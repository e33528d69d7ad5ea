"""PrefillReporter: reports to the front how far prompts have been computed, for requests that ask."""

import dataclasses
import time
from collections.abc import Sequence

from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.execution.batch.reading import InFlightStep
from palladio.runtime.interface.outputs.prefill_progress import PrefillProgress
from palladio.runtime.interface.outputs.token_output import NewTokens, TokenOutput
from palladio.runtime.scheduling.state.request import Request


class PrefillReporter(StepObserver):
    """Adds outputs without tokens to those of a step: one when a request's prefill begins, and one after each of its
    chunks. `EngineCore` includes it when the first request asks (`RequestOptions.progress`)."""

    def __init__(self) -> None:
        self._began: dict[str, float | None] = {}  # by request: when its prefill began; None: not yet
        self._news: list[TokenOutput] = []

    def after_add(self, request: Request) -> None:
        if request.given.options.progress:
            self._began[request.given.request_id] = None

    def after_dispatch(self, step: InFlightStep) -> None:
        if not self._began:
            return
        for _, batch in step.planned.parts:
            for row in batch.chunks:
                if self._began.get(row.request.given.request_id, 0.0) is None:
                    self._began[row.request.given.request_id] = step.dispatched
                    self._report(row.request, row.start)

    def before_process(self, step: InFlightStep, waited: bool) -> None:
        if not self._began:
            return
        for _, batch in step.planned.parts:
            for row in batch.chunks:
                if row.request.given.request_id in self._began and not row.is_void:
                    self._report(row.request, row.end)

    def after_outputs(self, outputs: list[NewTokens]) -> None:
        for output in outputs if self._began else ():
            if isinstance(output, TokenOutput) and (output.token_ids or output.finish is not None):
                self._began.pop(output.request_id, None)
        if self._news:
            outputs[:0] = self._news
            self._news = []

    def after_abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._began.pop(request_id, None)

    def _report(self, request: Request, num_computed: int) -> None:
        began = self._began[request.given.request_id]
        seconds = 0.0 if began is None else time.perf_counter() - began
        total = request.num_prompt_tokens
        progress = PrefillProgress(total, request.num_cached_tokens, min(num_computed, total), max(0.0, seconds))
        self._news.append(dataclasses.replace(request.output([]), progress=progress))
