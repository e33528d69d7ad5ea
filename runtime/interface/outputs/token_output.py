"""New tokens of a request from one engine step: the form that crosses the process border."""

import dataclasses
from typing import Literal, Self

from palladio.runtime.interface.errors import InvalidRequestError, PalladioError, request_error
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.timeline import Timeline


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
        """What an abort comes to. Args: otherwise: the message, where it has none."""
        return request_error(self.status, self.message or otherwise, self.param, self.parts)


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
        embedding: of the prompt, from an engine that makes embeddings: float32, little-endian.
        times, trace: set on the first output (for requests that the front ends, at a stop string) and on the last;
            others have a trace if there is something new in its `timeline`.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    cached_tokens: int = 0
    num_retractions: int = 0
    embedding: bytes | None = None
    times: RequestTimes | None = None
    trace: RequestTrace | None = None

    def begin(self, times: RequestTimes, trace: RequestTrace, prompt_logprobs: list[TokenLogprob] | None) -> None:
        """It is the request's first output."""
        self.times, self.trace, self.prompt_logprobs = times, trace, prompt_logprobs

    def end(self, finish: FinishReason, times: RequestTimes, trace: RequestTrace) -> None:
        """It is the request's last output."""
        self.finish, self.times, self.trace = finish, times, trace

    def tell(self, timeline: Timeline) -> None:
        """Args: timeline: of what came since the last output."""
        self.trace = self.trace or RequestTrace()
        self.trace.tell(timeline)

    def cut(self, num_tokens: int) -> None:
        """Drops all but the first tokens."""
        del self.token_ids[num_tokens:]
        if self.logprobs is not None:
            del self.logprobs[num_tokens:]
