"""New output of a request as text, which HTTP and offline callers read, and how long its phases took."""

import dataclasses
from typing import Self

from palladio.runtime.interface.outputs.prefill_progress import PrefillProgress
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.token_output import ClosedBy, FinishReason, SparseVector, TokenLogprob


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """New output of one sample of a request, as text (front → HTTP or offline caller).

    All text, ids and logprobs are new since the previous output of the same index: `extend` to get the whole. It
    belongs to its reader.

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
        embedding, sparse, token_vectors, closed: see TokenOutput.
        progress: see TokenOutput; of several outputs, the latest.
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
    closed: ClosedBy | None = None
    progress: PrefillProgress | None = None
    sparse: SparseVector | None = None
    token_vectors: bytes | None = None

    def take_text(self) -> str:
        """The text, which is then gone from here."""
        text, self.text = self.text, ""
        return text

    def count_from(self, first_index: int) -> None:
        """Number the sample among several prompts' samples.

        Args:
            first_index: the index of its prompt's first sample.
        """
        self.index += first_index

    def extend(self, later: "RequestOutput") -> None:
        """Adds the sample's next output to what was new before it."""
        text = self.take_text()  # so that Python can grow it in place: outputs come by the thousand
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
        self.closed, self.sparse, self.token_vectors = later.closed, later.sparse, later.token_vectors
        self.progress = later.progress or self.progress


class RefusedOutputError(Exception):
    """The cause of the error that ends a request before its first output: the engine's account of it.

    Attributes:
        output: the refused sample's only one.
    """

    def __init__(self, output: RequestOutput) -> None:
        super().__init__(f"of request {output.request_id}")
        self.output = output


@dataclasses.dataclass(frozen=True, slots=True)
class RequestTimings:
    """Seconds of one sample; None: it did not get that far, or the moment is unknown.

    Attributes:
        queue: from its arrival at the server until it was first admitted, or until it ended, if the engine never
            admitted it; tokenizing it is part of that.
        compile_wait: the part of the other times that passed while programs were compiled first.
        prefill: from its admission to its first token.
        decode: from its first token to its last.
        detokenize: the part of prefill and decode in which the front made text of its tokens.
        total: from its arrival to its end.
    """

    queue: float | None
    compile_wait: float | None
    prefill: float | None
    decode: float | None
    detokenize: float
    total: float | None

    @classmethod
    def of(cls, times: RequestTimes, trace: RequestTrace | None, detokenize: float = 0.0) -> Self:
        leaves = times.scheduled
        if leaves is None and trace is not None:  # without a trace it is unknown whether it was admitted
            leaves = times.finished
        return cls(
            queue=_between(times.received, leaves),
            compile_wait=None if trace is None else trace.compile_seconds + trace.waits.compile,
            prefill=_between(times.scheduled, times.first_token),
            decode=_between(times.first_token, times.finished),
            detokenize=detokenize,
            total=_between(times.received, times.finished),
        )

    @classmethod
    def of_output(cls, output: RequestOutput) -> Self:
        """The timings of a sample's last output."""
        assert output.times is not None
        return cls.of(output.times, output.trace, output.detokenize_seconds)


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)
