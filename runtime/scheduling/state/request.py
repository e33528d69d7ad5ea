"""Request: one sample, as the scheduler sees it. Host Python only."""

import dataclasses
import enum

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.outputs.request_trace import DecodeSteps, RequestTimes, RequestTrace, WaitTimes
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenLogprob, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.prompt_parts import Rows
from palladio.runtime.scheduling.state.radix_node import PageKey, RadixNode
from palladio.runtime.scheduling.state.slot_columns import MAX_STOP_IDS, RECENT, SlotColumns
from palladio.runtime.scheduling.state.window_pages import HeldWindow


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class StepNeeds(enum.Flag):
    """What makes a whole step more expensive as soon as one of its rows asks for it."""

    NONE = 0
    RANDOM = enum.auto()
    FULL = enum.auto()
    MASK = enum.auto()


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """One sample: its tokens and how far they are computed.

    What changes at each step is in columns while it is RUNNING, in the row of its slot; see SlotColumns for the bounds:

        num_computed ≤ tokens in the cache ≤ most_computed ≤ max_computed
        num_prompt_tokens ≤ num_known_tokens

    Pages are reserved by the upper bound, and given back by the lower one. They are equal where all that is dispatched
    gives as many tokens as the host has planned.

    Attributes:
        given: what was asked for.
        max_tokens: of `given.params`, which the front has set.
        max_computed: tokens whose keys and values it may ever need: all but its last one.
        listed_ids: the first of `token_ids`; the others are in columns.
        columns: None unless RUNNING.
        left_unread, left_revision: what the columns had when it left its slot: rows may still be read then.
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
    listed_ids: list[int]
    status: RequestStatus = RequestStatus.WAITING
    columns: SlotColumns | None = None
    left_unread: int = 0
    left_revision: int = 0
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
        """Make the request of a sample.

        Args:
            rows: embedding rows of the media; by default their files are read.

        Raises:
            InvalidRequestError: one cannot be read.
        """
        assert given.params.max_tokens is not None, "the front sets max_tokens"
        return cls(
            given=given,
            max_tokens=given.params.max_tokens,
            max_computed=len(given.prompt_ids) + given.params.max_tokens - 1,
            listed_ids=list(given.prompt_ids),
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
    def num_known_tokens(self) -> int:
        """The prompt's, and output tokens that the host has read."""
        return len(self.listed_ids) if self.columns is None else int(self.columns.known[self.slot])

    @property
    def num_output_tokens(self) -> int:
        """Output tokens that the host has read."""
        return self.num_known_tokens - len(self.given.prompt_ids)

    @property
    def token_ids(self) -> list[int]:
        """The prompt, then every output token that the host has read. Callers do not change the list."""
        num_listed = len(self.listed_ids)
        if self.columns is not None and self.columns.known[self.slot] > num_listed:
            self.listed_ids += self.columns.tokens_from(self.slot, num_listed)
        return self.listed_ids

    @property
    def num_computed(self) -> int:
        """Tokens whose keys and values are in the cache for certain when the dispatched steps have run."""
        return 0 if self.columns is None else int(self.columns.computed[self.slot])

    @property
    def num_uncertain(self) -> int:
        """Tokens that may be in the cache beyond `num_computed`."""
        return 0 if self.columns is None else int(self.columns.uncertain[self.slot])

    @property
    def num_unread(self) -> int:
        """Dispatched rows that sample for it and have not been read yet."""
        return self.left_unread if self.columns is None else int(self.columns.unread[self.slot])

    @property
    def revision(self) -> int:
        """The revision of rows whose tokens are to be read, see `void`."""
        return self.left_revision if self.columns is None else int(self.columns.revision[self.slot])

    @property
    def most_computed(self) -> int:
        """The upper bound to `num_computed`."""
        computed = self.num_computed
        return min(computed + more, self.max_computed) if (more := self.num_uncertain) else computed

    @property
    def is_prefilling(self) -> bool:
        return self.num_computed < self.prefill_end

    @property
    def wants_token(self) -> bool:
        """Whether a decoding request may sample one more token once all dispatched steps have run."""
        return self.num_computed < self.max_computed

    @property
    def max_remaining_tokens(self) -> int:
        """Tokens that steps to come may sample for it."""
        return max(0, self.max_computed - max(self.num_computed, self.num_known_tokens - 1))

    @property
    def needs(self) -> StepNeeds:
        """What it asks of the next step that samples for it."""
        params, needs = self.given.params, StepNeeds.NONE
        if not params.is_greedy:
            needs |= StepNeeds.RANDOM
        if params.logprobs is not None or params.has_history:
            needs |= StepNeeds.FULL
        if self.constraint is not None:
            needs |= StepNeeds.MASK  # the host has to know each token before the next one is sampled
        return needs

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

    def run_in(self, columns: SlotColumns, slot: int) -> None:
        """Take a slot; the caller sets the status RUNNING."""
        known, given = len(self.listed_ids), self.given
        ids = given.request_id, given.stop_token_ids
        columns.take_slot(slot, self, *ids, known=known, max_computed=self.max_computed)
        columns.set_unread(slot, self.left_unread, self.left_revision)
        self.columns, self.slot = columns, slot

    def leave_slot(self) -> None:
        """Leave the slot; nothing of the request is computed any more."""
        assert self.columns is not None
        self.left_unread, self.left_revision = self.num_unread, self.revision
        known = self.token_ids
        self.columns.leave_slot(self.slot)
        self.columns, self.slot, self.listed_ids = None, 0, known

    def note_computed(self, count: int) -> None:
        """Sets how far its prefill has come. The caller gives it the pages before, or calls `note_pages`."""
        assert self.columns is not None
        self.columns.set_computed(self.slot, count)
        self.note_pages()

    def note_pages(self) -> None:
        """Update the columns after a change of the pages or of the prefill's end."""
        if self.columns is not None:
            self.columns.set_free_until(self.slot, self.free_until)

    @property
    def free_until(self) -> int:
        """The bound of tokens that may be planned without a look at the request; see SlotColumns."""
        assert self.columns is not None
        return 0 if self.is_prefilling else min(len(self.pages) * self.columns.page_size, self.max_computed)

    @property
    def plain_until(self) -> int:
        """The bound of tokens that are taken without a look at the request; see SlotColumns."""
        params, options = self.given.params, self.given.options
        is_watched = self.constraint is not None or params.logprobs is not None or options.timeline
        if self.decode_mark is None or is_watched or len(self.given.stop_token_ids) > MAX_STOP_IDS:
            return 0
        return min(self.max_computed, len(self.listed_ids) + RECENT)

    def note_taken(self) -> None:
        """Its newest tokens have been looked at."""
        if self.columns is not None:
            self.columns.set_plain_until(self.slot, self.plain_until)

    def begin_prefill(self) -> None:
        """All tokens that are known are to be computed before the next one is sampled."""
        self.prefill_end = self.num_known_tokens
        self.note_pages()

    def drop_constraint(self) -> None:
        """Its grammar is over: any token may come next."""
        self.constraint = None
        if self.columns is not None:
            self.columns.note_change()

    def append_token(self, token_id: int) -> None:
        """One more is known."""
        self.token_ids.append(token_id)
        if self.columns is not None:
            self.columns.add_known(self.slot)

    def note_unread(self, change: int) -> None:
        """Adds to the dispatched rows that sample for it; less than 0: rows have been read, or are dropped."""
        if self.columns is None:
            self.left_unread += change
        else:
            self.columns.add_unread(self.slot, change)

    def void(self) -> None:
        """Drop what dispatched steps sample for the request: it is not read."""
        if self.columns is None:
            self.left_revision, self.left_unread = self.left_revision + 1, 0
        else:
            self.columns.void(self.slot)

    def end(self) -> None:
        """End the request, which has no pages and is in no queue. A slot may keep it for long, so large fields go."""
        self.status = RequestStatus.FINISHED
        self.void()
        self.constraint, self.rows = None, ()

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
        num_output, last = self.num_output_tokens, self.token_ids[-1]
        if last in self.given.stop_token_ids and num_output >= max(self.given.params.min_tokens, 1):
            return FinishReason("stop", matched=last)
        if num_output >= self.max_tokens:
            return FinishReason("length")
        return None

    def note_decoding(self, now: DecodeSteps) -> None:
        """End the current run of decoding, for good or until the request is admitted again.

        Args:
            now: the engine's steps.
        """
        if self.decode_mark is not None:
            self.trace.add_decoding(now.since(self.decode_mark))
            self.decode_mark = None

    def trace_so_far(self, compile_seconds: float) -> RequestTrace:
        """A copy of the trace.

        Args:
            compile_seconds: seconds that the engine's steps have compiled.
        """
        self.trace.note_compiling(compile_seconds - self.compile_mark)
        return self.trace.copy()

    def times(self, now: float | None) -> RequestTimes:
        return RequestTimes(self.given.received, self.scheduled, self.first_token, now)
