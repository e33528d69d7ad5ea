"""What a step gives, in the form that crosses the process border: new tokens of a request with their details,
and plain tokens of many requests at once."""

import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Self

from palladio.runtime.interface.errors import InvalidRequestError, PalladioError, request_error
from palladio.runtime.interface.outputs.prefill_progress import PrefillProgress
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.timeline import Timeline

ClosedBy = Literal["eos", "budget"]
"""What closed a thought in the model's place: an end of sequence inside it, or the end of its budget."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token under the model's own distribution (before temperature, penalties and bias).

    Attributes:
        token_id: the token.
        logprob: natural logarithm; None for a prompt's first token, which nothing predicts.
        top: the likeliest (token id, logprob) pairs, best first; as many as were asked for.
        asked: such pairs of the request's logprob_token_ids, in its order.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    asked: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a request ended.

    Attributes:
        type: stop (end of sequence, stop token id or stop string), length (max_tokens or context), or abort.
        matched: the token id or the stop string that ended it; None otherwise.
        message: for abort: why.
        status: for abort: the HTTP status that the message deserves (0: the client asked for the abort).
        param: for abort: the request's field that is wrong, if it is one.
        parts: for abort: of the message, if it mentions fields (see errors.Message).
    """

    type: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    message: str | None = None
    status: int = 0
    param: str | None = None
    parts: tuple[str, ...] = ()

    @classmethod
    def refusal(cls, error: InvalidRequestError) -> Self:
        """The end of a request that can never be served."""
        return cls("abort", message=str(error), status=400, param=error.param, parts=error.message.parts)

    def error(self, otherwise: str) -> PalladioError:
        """The error of an abort.

        Args:
            otherwise: the message if the abort has none.
        """
        return request_error(self.status, self.message or otherwise, self.param, self.parts)


@dataclasses.dataclass(frozen=True, slots=True)
class SparseVector:
    """Weights of tokens of the vocabulary; those of all others are 0.

    Attributes:
        token_ids: each once.
        weights: one for each of them.
    """

    token_ids: list[int]
    weights: list[float]


@dataclasses.dataclass(slots=True)
class TokenOutput:
    """New tokens of one request from one engine step: the form of outputs from the model runner, which reads them from
    the device, to the front, across the process border. The scheduler drops what comes after a request's end.

    Attributes:
        request_id: the engine-side id, unique over the engine's life (see RequestIntake.resolve).
        token_ids: new tokens.
        logprobs: one per new token, if asked for.
        prompt_logprobs: one per prompt token, once, with the first output, if asked for; from the model runner: those
            that the step made.
        finish: set on the last output; by the model runner only if the last token means nothing.
        cached_tokens: prompt tokens that came from the prefix cache.
        num_retractions: how often the request lost its pages and was computed again.
        embedding: of the prompt, from an engine that makes embeddings: float32, little-endian; no bytes if other
            kinds of vectors were asked for.
        sparse: the prompt's sparse vector, if asked for.
        token_vectors: of all tokens of the prompt, if asked for: float32, little-endian.
        closed: what closed the request's thought, see ThoughtClosing; None: nothing, or the model itself.
        times, trace: set on the first output (for requests that the front ends, at a stop string) and on the last;
            others have a trace if there is something new in its `timeline`.
        progress: of the prompt, on outputs without tokens, if asked for (`RequestOptions.progress`).
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    cached_tokens: int = 0
    num_retractions: int = 0
    embedding: bytes | None = None
    closed: ClosedBy | None = None
    times: RequestTimes | None = None
    trace: RequestTrace | None = None
    progress: PrefillProgress | None = None
    sparse: SparseVector | None = None
    token_vectors: bytes | None = None

    def begin(self, times: RequestTimes, trace: RequestTrace, prompt_logprobs: list[TokenLogprob] | None) -> None:
        """It is the request's first output."""
        self.times, self.trace, self.prompt_logprobs = times, trace, prompt_logprobs

    def end(self, finish: FinishReason, times: RequestTimes, trace: RequestTrace) -> None:
        """It is the request's last output."""
        self.finish, self.times, self.trace = finish, times, trace

    def tell(self, timeline: Timeline) -> None:
        """Add the timeline of what happened since the last output.

        Args:
            timeline: its entries.
        """
        self.trace = self.trace or RequestTrace()
        self.trace.tell(timeline)

    def cut(self, num_tokens: int) -> None:
        """Drop all but the first tokens, and what the model runner says of the last one."""
        del self.token_ids[num_tokens:]
        self.finish = None
        if self.logprobs is not None:
            del self.logprobs[num_tokens:]


@dataclasses.dataclass(frozen=True, slots=True)
class PlainTokens:
    """New tokens of requests of which there is nothing else to tell: they have begun, and none of them ends.

    Attributes:
        request_ids: the engine-side ids, each once. The list must not be changed: the next step may give the same one.
        token_ids: all of them as the bytes of i32 numbers, one request after the other.
        counts: how many each request has, at least one; None: one each.
        place: in a message, how many of its other outputs come before.
    """

    request_ids: list[str]
    token_ids: bytes
    counts: list[int] | None = None
    place: int = 0

    @classmethod
    def of(cls, request_ids: list[str], token_ids: Sequence[list[int]], place: int = 0) -> Self:
        """The tokens of several requests.

        Args:
            token_ids: new token ids of each request.
        """
        counts = list(map(len, token_ids))
        packed = array("i", itertools.chain.from_iterable(token_ids)).tobytes()
        return cls(request_ids, packed, None if len(packed) == 4 * len(counts) else counts, place)

    def by_request(self) -> Iterator[tuple[str, list[int]]]:
        """Each request's id and tokens."""
        token_ids = memoryview(self.token_ids).cast("i").tolist()
        if self.counts is None:
            return zip(self.request_ids, [[one] for one in token_ids], strict=True)
        parts = iter(token_ids)
        return zip(self.request_ids, [list(itertools.islice(parts, count)) for count in self.counts], strict=True)


NewTokens = TokenOutput | PlainTokens


def one_by_one(outputs: Iterable[NewTokens]) -> list[NewTokens]:
    """The same tokens, those of each request in order, an output for each. Other facts about a request come with
    its last one. Tokens with a timeline stay together, since it is about all of them."""
    found: list[NewTokens] = []
    for output in outputs:
        if isinstance(output, PlainTokens) and output.counts is None:
            found.append(output)
        elif isinstance(output, PlainTokens):
            tokens = list(output.by_request())
            for step in range(max(len(token_ids) for _, token_ids in tokens)):
                now = {request_id: [token_ids[step]] for request_id, token_ids in tokens if len(token_ids) > step}
                found.append(PlainTokens.of(list(now), list(now.values())))
        elif len(output.token_ids) <= 1 or (output.trace is not None and output.trace.timeline is not None):
            found.append(output)
        else:
            found += (PlainTokens.of([output.request_id], [[token]]) for token in output.token_ids[:-1])
            found.append(dataclasses.replace(output, token_ids=output.token_ids[-1:]))
    return found


def by_request(outputs: Iterable[NewTokens]) -> list[TokenOutput]:
    """One output a request and step, in order, for who looks at few; those of plain tokens tell nothing else."""
    found: list[TokenOutput] = []
    for output in outputs:
        if isinstance(output, TokenOutput):
            found.append(output)
        else:
            found += itertools.starmap(TokenOutput, output.by_request())
    return found
