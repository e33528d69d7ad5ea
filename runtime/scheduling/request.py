"""Request: one sample, as the scheduler sees it; what a token means for it, and how long it waits. Host Python only."""

import dataclasses
import enum
import time
from collections.abc import Callable

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.generation_request import GenerationRequest
from palladio.runtime.interface.outputs import (
    DecodeSteps,
    FinishReason,
    RequestTimes,
    RequestTrace,
    TokenLogprob,
    TokenOutput,
    WaitReason,
    WaitTimes,
)
from palladio.runtime.interface.prompt_parts import Rows
from palladio.runtime.scheduling.radix_node import PageKey, RadixNode
from palladio.runtime.scheduling.window_pages import HeldWindow


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """One sample: its tokens and how far they are computed.

    How many tokens a dispatched step gives may be known to the device alone. So there are two bounds of how far the
    keys and values reach once all dispatched steps have run, and reading a step corrects them (`correct`):

        num_computed ≤ tokens in the cache ≤ most_computed ≤ max_computed
        num_prompt_tokens ≤ len(token_ids)

    Pages are reserved by the upper bound, and given back by the lower one. They are equal where all that is dispatched
    gives as many tokens as the host has planned.

    Attributes:
        given: what was asked for.
        max_tokens: of `given.params`, which the front has set.
        max_computed: tokens whose keys and values it may ever need: all but its last one.
        token_ids: the prompt, then every output token that the host has read.
        num_computed: tokens whose keys and values are in the cache, or will be when the dispatched steps have run: so
            many at least.
        num_unsure: tokens that there may be beyond those.
        num_unread: dispatched rows that sample for it and have not been read yet.
        revision: that of rows whose tokens are to be read, see `void`.
        constraint: which tokens its output may have next; None: all.
        prefill_end: tokens to compute before the first (or, after a retraction, the next) one is sampled.
        pages: the KV pages of its tokens, in order, in layers that keep all tokens (0 if there are none such); empty
            unless RUNNING. See cache_manager for who owns which.
        node: where the prefix cache's part of them ends, held while RUNNING; None: it has nothing to do with the cache.
        num_tree_pages: how many of the first pages the prefix cache knows.
        page_keys: of its first pages, as far as they have been looked up.
        duplicates: those of them that it has other pages for, so that they are the request's own.
        windows: its pages in each group of layers with a window.
        slot: its row in the per-request device state; 0 (the scratch row) unless RUNNING.
        shares_prefix: False: it neither uses the prefix cache nor adds to it.
        num_cached_tokens: prompt tokens that were in the prefix cache when it was first admitted.
        prompt_logprobs: what has been read of them, if asked for and not sent yet.
        trace: what happened to it; see trace_so_far.
        wait_mark: the engine's waits when it was last queued.
        decode_mark: the engine's decode steps when it last began to decode; None: it does not. A request that was
            retracted keeps it until its pending tokens have been read.
        compile_mark: seconds that the engine's steps had compiled when it came.
        rows: of the prompt's media; none once it has ended.
    """

    given: GenerationRequest
    max_tokens: int
    max_computed: int
    token_ids: list[int]
    status: RequestStatus = RequestStatus.WAITING
    num_computed: int = 0
    num_unsure: int = 0
    num_unread: int = 0
    revision: int = 0
    constraint: Constraint | None = None
    prefill_end: int = 0
    pages: list[int] = dataclasses.field(default_factory=list)
    node: RadixNode | None = None
    num_tree_pages: int = 0
    page_keys: list[PageKey] = dataclasses.field(default_factory=list)
    duplicates: list[int] = dataclasses.field(default_factory=list)
    windows: list[HeldWindow] = dataclasses.field(default_factory=list)
    slot: int = 0
    shares_prefix: bool = True
    num_cached_tokens: int = 0
    num_retractions: int = 0
    prompt_logprobs: list[TokenLogprob] | None = None
    scheduled: float | None = None
    first_token: float | None = None
    trace: RequestTrace = dataclasses.field(default_factory=RequestTrace)
    wait_mark: WaitTimes = dataclasses.field(default_factory=WaitTimes)
    decode_mark: DecodeSteps | None = None
    compile_mark: float = 0.0
    rows: tuple[Rows, ...] = ()

    @classmethod
    def of(cls, given: GenerationRequest, *, shares_prefix: bool = True, rows: tuple[Rows, ...] = ()) -> "Request":
        """Args: rows: of the media; by default their files are read.

        Raises:
            InvalidRequestError: one cannot be read.
        """
        assert given.params.max_tokens is not None, "the front sets max_tokens"
        return cls(
            given=given,
            max_tokens=given.params.max_tokens,
            max_computed=len(given.prompt_ids) + given.params.max_tokens - 1,
            token_ids=list(given.prompt_ids),
            prefill_end=len(given.prompt_ids),
            shares_prefix=shares_prefix,
            prompt_logprobs=None if given.params.prompt_logprobs is None else [],
            rows=(rows or tuple(part.read() for part in given.media)) if given.media else (),
        )

    @property
    def deadline(self) -> float | None:
        """When it ends with an error, in seconds since the epoch."""
        return None if self.given.options.timeout is None else self.given.received + self.given.options.timeout

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.given.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens that the host has read."""
        return len(self.token_ids) - len(self.given.prompt_ids)

    @property
    def most_computed(self) -> int:
        """The upper bound to `num_computed`."""
        return min(self.num_computed + self.num_unsure, self.max_computed) if self.num_unsure else self.num_computed

    @property
    def is_prefilling(self) -> bool:
        return self.num_computed < self.prefill_end

    @property
    def wants_token(self) -> bool:
        """Of one that decodes: whether one more token may be sampled once all dispatched steps have run."""
        return self.num_computed < self.max_computed

    @property
    def max_remaining_tokens(self) -> int:
        """Tokens that steps to come may sample for it."""
        return max(0, self.max_computed - max(self.num_computed, len(self.token_ids) - 1))

    @property
    def may_jump(self) -> bool:
        """Whether tokens may be added that no step has sampled: no step could count them or give their logprobs."""
        return self.given.params.logprobs is None and not self.given.params.uses_penalties

    def uncut(self, stop: int) -> int:
        """Where computing may end, at `stop` or before: not within a part that one step has to compute."""
        return next((part.start for part in self.given.media if part.is_whole and part.start < stop < part.stop), stop)

    @property
    def longest_whole(self) -> int:
        """Tokens of the longest part that one step has to compute."""
        return max((part.length for part in self.given.media if part.is_whole), default=0)

    def plan(self, num_tokens: int, num_drafts: int) -> int:
        """A row is planned that samples after each of its tokens. Args: num_drafts: those that may be wrong.

        Returns:
            Where it begins at most. At `max_computed` the request is complete, and the row is nobody's.
        """
        start = self.num_computed
        if self.num_unsure:
            start = min(start + self.num_unsure, self.max_computed - 1)
        self.num_computed += num_tokens - num_drafts
        self.num_unsure += num_drafts
        self.num_unread += 1
        return start

    def correct(self, num_tokens: int, num_drafts: int, count: int) -> None:
        """Corrects the bounds: a row that was planned so has `count` tokens. One that is retracted has none."""
        if self.status is RequestStatus.RUNNING:
            computed = self.num_computed + count - (num_tokens - num_drafts)
            self.num_computed = min(computed, self.max_computed)  # a row after it may have nothing left to compute
            self.num_unsure -= num_drafts

    def take_token(self, output: TokenOutput) -> bool:
        """Takes the token of a row that decodes one, if that is all: so it is for most rows of most steps. Else returns
        False, and nothing is changed; see `take_tokens`."""
        new, known = output.token_ids, self.token_ids
        if not self.slot or self.decode_mark is None or self.constraint is not None or output.finish is not None:
            return False
        if len(new) != 1 or len(known) >= self.max_computed or new[0] in self.given.stop_token_ids:
            return False
        known.append(new[0])
        self.num_unread -= 1
        return True

    def note_read(self) -> None:
        """One of its rows has been read, or is none after all."""
        self.num_unread -= 1

    def void(self) -> None:
        """It goes on without what dispatched steps sample for it: that is not to be read."""
        self.revision += 1
        self.num_unread = self.num_unsure = 0

    def end(self) -> None:
        """It has no pages and is in no queue. A slot may remember it for long, so what is large goes."""
        self.status = RequestStatus.FINISHED
        self.void()
        self.constraint, self.rows = None, ()

    def forget_computed(self) -> None:
        """It has lost its pages."""
        self.num_computed = self.num_unsure = 0

    def output(
        self,
        token_ids: list[int],
        finish: FinishReason | None = None,
        logprobs: list[TokenLogprob] | None = None,
        prompt_logprobs: list[TokenLogprob] | None = None,
        embedding: bytes | None = None,
    ) -> TokenOutput:
        """One for it, of new tokens."""
        request_id, cached_tokens = self.given.request_id, self.num_cached_tokens
        return TokenOutput(  # by position: this runs for each token
            request_id, token_ids, logprobs, prompt_logprobs, finish, cached_tokens, self.num_retractions, embedding
        )

    def take_prompt_logprobs(self, start: int, new: list[TokenLogprob] | None) -> None:
        """Keeps what a step that began at token `start` made of them, if they are asked for."""
        if new is None or self.prompt_logprobs is None:
            return
        if start == 0:
            self.prompt_logprobs = [TokenLogprob(self.given.prompt_ids[0], None)]
        self.prompt_logprobs.extend(new)

    def finish_reason(self) -> FinishReason | None:
        """Whether the last read token ends it."""
        num_output = len(self.token_ids) - len(self.given.prompt_ids)
        last = self.token_ids[-1]
        if last in self.given.stop_token_ids and num_output >= max(self.given.params.min_tokens, 1):
            return FinishReason("stop", matched=last)
        if num_output >= self.max_tokens:
            return FinishReason("length")
        return None

    def note_decoding(self, now: DecodeSteps) -> None:
        """It stops decoding, for good or until it is admitted again. Args: now: the engine's steps."""
        if self.decode_mark is not None:
            self.trace.add_decoding(now.since(self.decode_mark))
            self.decode_mark = None

    def trace_so_far(self, compile_seconds: float) -> RequestTrace:
        """A copy of the trace. Args: compile_seconds: that the engine's steps have compiled."""
        self.trace.note_compiling(compile_seconds - self.compile_mark)
        return self.trace.copy()

    def times(self, now: float | None) -> RequestTimes:
        return RequestTimes(self.given.received, self.scheduled, self.first_token, now)


NOT_FINITE = FinishReason(
    "abort",
    message="The model's logits for this request are not finite (NaN or infinity); try --dtype float32",
    status=500,
)


MakeRoom = Callable[[Request, int], bool]


def take_tokens(request: Request, output: TokenOutput, make_room: MakeRoom) -> FinishReason | None:
    """Adds a step's tokens to their request, and those that its grammar forces after them where that saves steps.

    Args:
        output: what was read of the step; loses what comes after the request's end, and gets what is forced.
        make_room: whether it pays to add so many known tokens to a request at once; if so, it gets the pages.

    Returns:
        How the request ends, if it does; it has not been told of that.
    """
    token_ids, finish = output.token_ids, output.finish
    if request.max_tokens == 0:  # only its prompt was to be computed
        token_ids.clear()
        return finish or request.finish_reason()
    for count, token_id in enumerate(token_ids, 1):
        request.token_ids.append(token_id)
        ended = request.finish_reason()
        if ended is not None and (finish is None or count < len(token_ids)):
            output.cut(count)
            return ended
    if request.constraint is not None and finish is None:
        return _constrain(request, token_ids, make_room)
    return finish


def constraint_failure(request: Request, reason: str) -> FinishReason:
    """How a request ends whose grammar cannot go on."""
    return FinishReason(
        "abort",
        message=f"the grammar cannot continue after {request.num_output_tokens} tokens: {reason}",
        status=400,
        param="grammar",
    )


def _constrain(request: Request, token_ids: list[int], make_room: MakeRoom) -> FinishReason | None:
    """Tells the constraint of the last token; appends to token_ids what is jumped over."""
    constraint = request.constraint
    assert constraint is not None
    constraint.accept(request.token_ids[-1])
    if constraint.is_over:
        request.constraint = None
        return None
    finish = _verdict(request, constraint)
    if finish is not None:
        return finish
    forced = constraint.forced[: request.max_tokens - request.num_output_tokens]
    if len(forced) > 1 and request.may_jump and make_room(request, len(forced)):
        request.void()
        for token_id in forced:
            request.token_ids.append(token_id)
            token_ids.append(token_id)
            finish = request.finish_reason()
            if finish is not None:
                break
            constraint.accept(token_id)
        request.prefill_end = len(request.token_ids)
    return finish or _verdict(request, constraint)


def _verdict(request: Request, constraint: Constraint) -> FinishReason | None:
    """Whether the constraint ends the request."""
    if constraint.error is not None:
        return constraint_failure(request, constraint.error)
    return FinishReason("stop") if constraint.has_ended else None


class QueueTime:
    """Runs while somebody waits, and puts the time down to one reason: the one that the last planned step met.

    A request that joins or leaves the queue stops the time, so that it gets its own part of an interval. A moment
    costs the same however many wait.
    """

    def __init__(self) -> None:
        self.reason: WaitReason = "step"
        self.num_retracted = 0
        self._totals = WaitTimes()
        self._since = time.perf_counter()

    def advance(self) -> None:
        """Puts down the time since the last call; somebody waited."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        self._totals.add(self.reason, seconds)

    def join(self, reason: WaitReason | None) -> WaitTimes:
        """Somebody joins the queue; returns the totals at this moment.

        Args:
            reason: the queue was empty, and until the next step is planned this is what it waits for; None: it was not.
        """
        if reason is None:
            self.advance()
        else:
            self.reason = reason
            self._since = time.perf_counter()
        return self._now()

    def join_retracted(self, *, is_first: bool) -> WaitTimes:
        """A request that has lost its pages joins the queue: what holds it up is memory. Returns as `join` does.

        Args:
            is_first: the queue was empty.
        """
        self.num_retracted += 1
        mark = self.join("memory" if is_first else None)
        self.reason = "memory"
        return mark

    def put_down_to(self, reason: WaitReason) -> None:
        """What the step met that has just been planned."""
        self.reason = reason

    def leave(self) -> WaitTimes:
        """Somebody leaves the queue; returns the totals at this moment."""
        self.advance()
        return self._now()

    def _now(self) -> WaitTimes:
        return self._totals.copy(self.num_retracted)
