"""Usage: what an answer says of its tokens and of their times, and why it ended."""

from collections.abc import Iterable
from typing import Any

from palladio.runtime.interface.outputs.request_output import RequestOutput, RequestTimings
from palladio.runtime.interface.outputs.token_output import FinishReason


class Usage:
    """OpenAI's `usage` of the outputs seen so far. Each prompt counts once, whatever n."""

    def __init__(self, n: int) -> None:
        self._reasoning: dict[int, int] = {}  # by index
        self._n = n
        self._latest: dict[int, RequestOutput] = {}

    def note_reasoning(self, index: int, count: int) -> None:
        """Sets how many tokens of a choice are reasoning so far."""
        self._reasoning[index] = count

    def add(self, output: RequestOutput) -> None:
        self._latest[output.index] = output

    def closed_fields(self, index: int) -> dict[str, Any]:
        """The field of a choice, so far, that says what closed its reasoning."""
        return closed_fields(self._latest[index])

    def as_dict(self) -> dict[str, Any]:
        prompts: dict[int, RequestOutput] = {}
        for index in sorted(self._latest):
            prompts.setdefault(index // self._n, self._latest[index])
        prompt_tokens = sum(output.prompt_tokens for output in prompts.values())
        completion_tokens = sum(output.completion_tokens for output in self._latest.values())
        reasoning_tokens = sum(self._reasoning.values())
        details = {"reasoning_tokens": reasoning_tokens}
        if closed := sum(output.closed is not None for output in self._latest.values()):
            details["closed_thoughts"] = closed
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(output.cached_tokens for output in prompts.values())},
            "completion_tokens_details": details,
            "reasoning_tokens": reasoning_tokens,
        }

    def timings(self) -> dict[str, Any]:
        """`timings` of the samples that have ended: of several, the longest; detokenize and the counts are sums."""
        ends = [output for output in self._latest.values() if output.finish is not None and output.times is not None]
        each = [RequestTimings.of_output(end) for end in ends]

        def longest(values: Iterable[float | None]) -> float | None:
            return max((value for value in values if value is not None), default=None)

        return {
            "queue": longest(timings.queue for timings in each),
            "compile_wait": longest(timings.compile_wait for timings in each),
            "prefill": longest(timings.prefill for timings in each),
            "decode": longest(timings.decode for timings in each),
            "detokenize": sum(timings.detokenize for timings in each),
            "total": longest(timings.total for timings in each),
            "cached_tokens": self.as_dict()["prompt_tokens_details"]["cached_tokens"],
            "retractions": sum(end.num_retractions for end in ends),
        }


def closed_fields(output: RequestOutput) -> dict[str, Any]:
    """The field of a choice that says what closed its reasoning; none if nothing did but the model."""
    return {} if output.closed is None else {"meta_info": {"thought_closed_by": output.closed}}


def finish_fields(finish: FinishReason | None, *, has_calls: bool = False) -> dict[str, Any]:
    """How a choice says why it ended: OpenAI's field, SGLang's `matched_stop` and vLLM's `stop_reason`.

    Args:
        has_calls: it calls tools: that is why, unless it was cut off.
    """
    if finish is None:
        return {"finish_reason": None, "matched_stop": None, "stop_reason": None}
    reason = "tool_calls" if has_calls and finish.type == "stop" else finish.type
    return {"finish_reason": reason, "matched_stop": finish.matched, "stop_reason": finish.matched}
