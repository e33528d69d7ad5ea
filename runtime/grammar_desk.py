"""GrammarDesk: requests whose grammar is being compiled, before they are queued."""

import concurrent.futures
import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence

from palladio.runtime.constraint import Constraint
from palladio.runtime.deadlines import timeout_reason
from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.grammar_backend import CompiledGrammar, GrammarBackend
from palladio.runtime.grammar_compiler import GrammarCompiler
from palladio.runtime.messages import LiveRequest
from palladio.runtime.outputs import FinishReason
from palladio.runtime.request import Request

MAX_SECONDS = 30.0  # that a grammar may take; those that are known to take long take seconds
logger = logging.getLogger("palladio.engine")

_PAUSE = 0.005  # seconds: the engine looks for messages as often while it waits for nothing but a grammar


@dataclasses.dataclass(frozen=True, slots=True)
class _Waiting:
    request: Request
    is_accepted: bool
    compiled: concurrent.futures.Future[CompiledGrammar]
    since: float


class GrammarDesk:
    """
    Args:
        compiler: shared; this desk does not close it.
        eos_ids: the model's.
    """

    def __init__(self, compiler: GrammarCompiler, eos_ids: tuple[int, ...]) -> None:
        self._compiler = compiler
        self._eos_ids = eos_ids
        self._waiting: dict[str, _Waiting] = {}

    @property
    def has_requests(self) -> bool:
        return bool(self._waiting)

    @property
    def num_requests(self) -> int:
        return len(self._waiting)

    @property
    def backend(self) -> GrammarBackend | None:
        """None: no grammar can have been compiled yet."""
        return self._compiler.loaded_backend

    def is_ready(self, request: Request) -> bool:
        """Gives the request its constraint, if that takes no time; then it can be queued."""
        params = request.params
        if params.grammar is not None:
            return False
        if params.thinking is not None and params.thinking.budget is not None:
            request.constraint = Constraint(None, params.thinking, self._eos_ids)
        return True

    def add(self, request: Request, *, is_accepted: bool) -> None:
        """Keeps the request until its grammar is compiled. Args: is_accepted: see Scheduler.add."""
        assert request.params.grammar is not None
        compiled = self._compiler.compile(request.params.grammar)
        self._waiting[request.request_id] = _Waiting(request, is_accepted, compiled, time.monotonic())

    def abort(self, request_id: str) -> None:
        """Drops the request, if it is here."""
        self._waiting.pop(request_id, None)

    def take(self, *, wait: bool) -> Iterator[tuple[Request, bool, FinishReason | None]]:
        """The requests that wait no longer, whether they are accepted, and how they end if their grammar is refused.

        Args:
            wait: a few milliseconds, for there is nothing else to do.
        """
        if wait:
            futures = [waiting.compiled for waiting in self._waiting.values()]
            concurrent.futures.wait(futures, _PAUSE, concurrent.futures.FIRST_COMPLETED)
        for name, waiting in list(self._waiting.items()):
            request = waiting.request
            if waiting.compiled.done():
                failure = self._constrain(waiting)
            elif request.deadline is not None and time.time() >= request.deadline:
                failure = timeout_reason(request)
            elif time.monotonic() - waiting.since > MAX_SECONDS:
                failure = _refusal(f"the grammar did not compile within {MAX_SECONDS:g} s: make it simpler")
            else:
                continue
            del self._waiting[name]
            yield request, waiting.is_accepted, failure

    def explain(self, request_ids: Sequence[str]) -> list[LiveRequest]:
        """The requests with these ids that are here."""
        requests = [self._waiting[name].request for name in request_ids if name in self._waiting]
        return [
            LiveRequest(
                *(request.request_id, "waiting", request.times(None), request.trace_so_far(request.compile_mark)),
                prompt_tokens=request.num_prompt_tokens,
                computed_tokens=0,
                completion_tokens=0,
                cached_tokens=0,
                num_retractions=0,
            )
            for request in requests
        ]

    def close(self) -> None:
        self._waiting.clear()
        self._compiler.close()

    def _constrain(self, waiting: _Waiting) -> FinishReason | None:
        error = waiting.compiled.exception()
        if isinstance(error, InvalidRequestError):
            return _refusal(str(error))
        if error is not None:  # of the library, or of what it is made of: no fault of the request's
            logger.error("a grammar could not be compiled", exc_info=error)
            return FinishReason("abort", message=f"the grammar could not be compiled: {error!r}", status=500)
        matcher = waiting.compiled.result().new_matcher()
        params = waiting.request.params
        waiting.request.constraint = Constraint(matcher, params.thinking, self._eos_ids)
        return None


def _refusal(message: str) -> FinishReason:
    return FinishReason("abort", message=message, status=400, param="grammar")
