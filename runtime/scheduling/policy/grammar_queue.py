"""GrammarQueue: requests whose grammar is being compiled, before they are queued."""

import concurrent.futures
import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence

from palladio.runtime.grammar.backend import GrammarBackend
from palladio.runtime.grammar.cache import Compilation
from palladio.runtime.grammar.compiler import GrammarCompiler
from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.errors import InvalidRequestError, OverloadedError
from palladio.runtime.interface.messages.engine_stats import LiveRequest
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.scheduling.policy.deadlines import timeout_reason
from palladio.runtime.scheduling.state.request import Request

MAX_SECONDS = 30.0  # that a grammar may take; known slow ones take seconds
_PAUSE = 0.005  # seconds: the engine looks for messages as often while it waits for nothing but a grammar

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class _Waiting:
    """A request whose grammar is being compiled.

    Attributes:
        since: when it came, by time.monotonic.
    """

    request: Request
    grammar: Grammar
    compilation: Compilation
    since: float


class GrammarQueue:
    """
    Args:
        compiler: closed with this queue.
        eos_ids: the model's.

    Attributes:
        waiting: whose grammar is being compiled, by request id. Others look only whether there are any.
    """

    def __init__(self, compiler: GrammarCompiler, eos_ids: tuple[int, ...]) -> None:
        self._compiler = compiler
        self._eos_ids = eos_ids
        self.waiting: dict[str, _Waiting] = {}

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all waiting requests."""
        return sum(len(waiting.request.token_ids) for waiting in self.waiting.values())

    @property
    def num_grammars(self) -> int:
        """Kept ones."""
        return self._compiler.num_kept

    @property
    def num_grammar_bytes(self) -> int:
        """Bytes of compiled grammars."""
        return self._compiler.num_bytes

    @property
    def backend(self) -> GrammarBackend | None:
        """None: no grammar can have been compiled yet."""
        return self._compiler.loaded_backend

    def is_ready(self, request: Request) -> bool:
        """Gives the request its constraint, if that takes no time; then it can be queued."""
        params = request.given.params
        if params.grammar is not None:
            return False
        thinking = params.thinking if params.thinking is not None and params.thinking.budget is not None else None
        if thinking is not None or params.allowed_token_ids is not None:
            request.constraint = Constraint(None, thinking, self._eos_ids, allowed=params.allowed_token_ids)
        return True

    def add(self, request: Request) -> None:
        """Keeps the request until its grammar is compiled."""
        assert request.given.params.grammar is not None
        grammar = request.given.params.grammar
        compilation = self._compiler.compile(grammar, request.given.options.owner)
        compilation.join()
        self.waiting[request.given.request_id] = _Waiting(request, grammar, compilation, time.monotonic())

    def abort(self, request_id: str) -> None:
        """Drops the request, if it is here."""
        if request_id in self.waiting:
            self._remove(request_id)

    def take(self, *, wait: bool) -> Iterator[tuple[Request, FinishReason | None]]:
        """The requests that wait no longer, and how they end if their grammar is refused.

        Args:
            wait: a few milliseconds, for there is nothing else to do.
        """
        if wait:
            futures = [waiting.compilation.result for waiting in self.waiting.values()]
            concurrent.futures.wait(futures, _PAUSE, concurrent.futures.FIRST_COMPLETED)
        for name, waiting in list(self.waiting.items()):
            is_done, failure = self._look(waiting)
            if is_done:
                self._remove(name)
                yield waiting.request, failure

    def explain(self, request_ids: Sequence[str]) -> list[LiveRequest]:
        """The requests with these ids that are here."""
        requests = [self.waiting[name].request for name in request_ids if name in self.waiting]
        return [
            LiveRequest(
                *(request.given.request_id, "waiting", request.times(None), request.trace_so_far(request.compile_mark)),
                prompt_tokens=request.num_prompt_tokens,
                computed_tokens=0,
                completion_tokens=0,
                cached_tokens=0,
                num_retractions=0,
            )
            for request in requests
        ]

    def flush(self) -> None:
        """Drops what is compiled, but for what outputs follow."""
        self._compiler.flush()

    def close(self) -> None:
        self.waiting.clear()
        self._compiler.close()

    def _remove(self, request_id: str) -> None:
        waiting = self.waiting.pop(request_id)
        waiting.compilation.leave()
        if not waiting.compilation.num_waiting:
            self._compiler.give_up(waiting.grammar, waiting.compilation)

    def _look(self, waiting: _Waiting) -> tuple[bool, FinishReason | None]:
        """Whether the request waits no longer, and how it ends if it does not go on."""
        request, compilation = waiting.request, waiting.compilation
        if compilation.result.done():
            return True, self._constrain(waiting)
        if request.deadline is not None and time.time() >= request.deadline:
            return True, timeout_reason(request)
        if compilation.started is not None and time.monotonic() - compilation.started > MAX_SECONDS:
            message = "the {param} did not compile within {seconds:g} s: simplify it"
            return True, FinishReason.refusal(InvalidRequestError.of(message, param="grammar", seconds=MAX_SECONDS))
        if compilation.started is None and time.monotonic() - waiting.since > MAX_SECONDS:
            return True, _overload("Too many grammars are being compiled; try again later")
        return False, None

    def _constrain(self, waiting: _Waiting) -> FinishReason | None:
        """Gives the request its constraint."""
        error = waiting.compilation.result.exception()
        if isinstance(error, InvalidRequestError):
            return FinishReason.refusal(error)
        if isinstance(error, OverloadedError):
            return _overload(str(error))
        if error is not None:  # of the library, or of what it is made of: no fault of the request's
            logger.error("A grammar could not be compiled", exc_info=error)
            return FinishReason("abort", message=f"the grammar could not be compiled: {error!r}", status=500)
        if not self._compiler.has_room(waiting.compilation):
            return _overload(
                "The compiled grammars of running requests use all of the grammar memory "
                "(--grammar-cache-bytes); try again later, or simplify the grammar"
            )
        matcher = waiting.compilation.result.result().new_matcher()
        params = waiting.request.given.params
        waiting.request.constraint = Constraint(
            *(matcher, params.thinking, self._eos_ids),
            ignores_eos=params.ignore_eos,
            allowed=params.allowed_token_ids,
        )
        return None


def _overload(message: str) -> FinishReason:
    return FinishReason("abort", message=message, status=503)
