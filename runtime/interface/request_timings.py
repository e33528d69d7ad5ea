"""Where a request's time went, from what the engine and the front noted about it."""

import dataclasses
from typing import Self

from palladio.runtime.interface.outputs import RequestOutput, RequestTimes
from palladio.runtime.interface.request_trace import RequestTrace


@dataclasses.dataclass(frozen=True, slots=True)
class RequestTimings:
    """Seconds of one sample; None: it did not get that far, or ended where nobody could tell.

    Attributes:
        queue: from its arrival at the server until it was first admitted, or until it ended, if the engine never
            admitted it; tokenizing it is part of that.
        compile_wait: of the others, what programs took that had to be compiled first.
        prefill: from its admission to its first token.
        decode: from its first token to its last.
        detokenize: of decode and prefill, what the front took to make text of its tokens.
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
        if leaves is None and trace is not None:  # without the engine's word nobody knows whether it was admitted
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
        """Of a sample's last output."""
        assert output.times is not None
        return cls.of(output.times, output.trace, output.detokenize_seconds)


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)
