"""What comes back for a request: first as tokens from the engine core, then as text for the user."""

import dataclasses
from typing import Literal, Self

from palladio.runtime.interface.errors import InvalidRequestError, PalladioError, request_error
from palladio.runtime.interface.request_trace import RequestTrace


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token under the model's own distribution (before temperature, penalties and bias).

    Attributes:
        token_id: the token.
        logprob: natural logarithm; None for a prompt's first token, which nothing predicts.
        top: the likeliest (token id, logprob) pairs, best first; as many as were asked for.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


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
        """What an abort comes to. Args: otherwise: the message, where it has none."""
        return request_error(self.status, self.message or otherwise, self.param, self.parts)


@dataclasses.dataclass(frozen=True, slots=True)
class RequestTimes:
    """Wall-clock times (seconds since the epoch) of one request; None: not reached."""

    received: float
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclasses.dataclass(slots=True)
class TokenOutput:
    """New tokens of one request from one engine step (engine → front; crosses the process border).

    Attributes:
        request_id: the engine-side id, unique over the engine's life (`RID~SERIAL`, or `RID-i~SERIAL` of n samples).
        token_ids: new tokens.
        logprobs: one per new token, if asked for.
        prompt_logprobs: one per prompt token, once, with the first output, if asked for.
        finish: set on the last output.
        cached_tokens: prompt tokens that came from the prefix cache.
        num_retractions: how often the request lost its pages and was computed again.
        times, trace: set on the first output (for requests that the front ends, at a stop string) and on the last.
        embedding: of the prompt, from an engine that makes embeddings: float32, little-endian.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    cached_tokens: int = 0
    num_retractions: int = 0
    times: RequestTimes | None = None
    trace: RequestTrace | None = None
    embedding: bytes | None = None


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """New output of one sample of a request, as text (front → HTTP or offline caller).

    All text, ids and logprobs are new since the previous output of the same index: `extend` to get the whole. It
    belongs to whoever reads it from the engine.

    Attributes:
        request_id: the user's request id.
        index: which of the n samples.
        text: new text. Incomplete characters, and text that may become a stop string, are held back.
        token_ids: new token ids (on a stop string: up to and including the token that completed it).
        logprobs: one per new token id, if requested.
        prompt_logprobs: one per prompt token, once, if requested.
        finish: set on the last output of this index.
        prompt_tokens: length of the prompt.
        completion_tokens: tokens generated so far for this index.
        cached_tokens: prompt tokens that came from the prefix cache.
        num_retractions: how often the request was retracted (preempted) and recomputed.
        times: set on the last output of this index; on the first, the times known so far.
        trace: the same, if the engine sent it; only up to the first token if the front ended the request (stop string,
            abort).
        detokenize_seconds: time the front has spent on detokenizing this sample so far.
        embedding: see TokenOutput.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob] | None
    finish: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    num_retractions: int = 0
    times: RequestTimes | None = None
    trace: RequestTrace | None = None
    detokenize_seconds: float = 0.0
    embedding: bytes | None = None

    def extend(self, later: "RequestOutput") -> None:
        """Adds the sample's next output to what was new before it."""
        text, self.text = self.text, ""  # so that Python can grow it in place: outputs come by the thousand
        text += later.text
        self.text = text
        self.token_ids += later.token_ids
        if self.logprobs is None:
            self.logprobs = later.logprobs
        else:
            self.logprobs += later.logprobs or ()
        if self.prompt_logprobs is None:
            self.prompt_logprobs = later.prompt_logprobs
        if later.times is not None:
            self.times, self.trace = later.times, later.trace
        self.finish, self.completion_tokens = later.finish, later.completion_tokens
        self.cached_tokens, self.num_retractions = later.cached_tokens, later.num_retractions
        self.detokenize_seconds, self.embedding = later.detokenize_seconds, later.embedding


class RefusedOutputError(Exception):
    """The cause of the error that ends a request before its first output: what the engine told of it.

    Attributes:
        output: the refused sample's only one.
    """

    def __init__(self, output: RequestOutput) -> None:
        super().__init__(f"of request {output.request_id}")
        self.output = output
