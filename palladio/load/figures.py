"""What a number of answers say of a server: rates, and percentiles of times."""

import statistics
from collections.abc import Sequence
from typing import Any, Final

from palladio.load.client import Answer

PERCENTS: Final = (50, 90, 95, 99)
TIMES: Final = ("ttft", "itl", "tpot", "e2e")


def percentile(values: Sequence[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def summarize(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """Times in seconds: ttft, time to the first text; itl, between two pieces of text; tpot, the mean of that in each
    answer, by tokens; e2e, the whole request. Failed answers are only counted.

    Args:
        seconds: the time that all of them took together.
    """
    good = [answer for answer in answers if answer.error is None]
    values = {
        "ttft": [answer.first for answer in good if answer.first is not None],
        "itl": [gap for answer in good for gap in answer.gaps],
        "tpot": [
            (answer.total - answer.first) / (answer.completion_tokens - 1)
            for answer in good
            if answer.first is not None and answer.completion_tokens > 1
        ],
        "e2e": [answer.total for answer in good],
    }
    tokens = sum(answer.completion_tokens for answer in good)
    prompt_tokens = sum(answer.prompt_tokens for answer in good)
    return {
        "seconds": seconds,
        "requests": len(answers),
        "failures": len(answers) - len(good),
        "errors": sorted({answer.error for answer in answers if answer.error})[:5],
        "prompt_tokens": prompt_tokens,
        "cached_tokens": sum(answer.cached_tokens for answer in good),
        "completion_tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "prompt_tokens_per_second": prompt_tokens / seconds,
        "requests_per_second": len(good) / seconds,
        **{f"{name}_p{percent}": percentile(values[name], percent) for name in TIMES for percent in PERCENTS},
    }
