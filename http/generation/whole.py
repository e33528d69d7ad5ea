"""Whole answers, for requests that do not stream."""

from collections.abc import Sequence

from palladio.http.generation.generation import OutputStream, Usage
from palladio.runtime.interface.outputs.request_output import RequestOutput

TOKEN_SIZE = 8  # characters that a token counts for, and a little more
LOGPROB_SIZE = 64  # of each log-probability that is written


async def collect(stream: OutputStream) -> tuple[list[RequestOutput], Usage]:
    """Waits for the end of every sample; returns each as one output, by index."""
    usage = Usage(stream.n)
    wholes: dict[int, RequestOutput] = {}

    def add(output: RequestOutput) -> None:
        if (whole := wholes.setdefault(output.index, output)) is not output:
            whole.extend(output)

    await stream.feed(add)
    outputs = [wholes[index] for index in sorted(wholes)]
    for output in outputs:
        usage.add(output)
    return outputs, usage


def answer_size(outputs: Sequence[RequestOutput], prompts: Sequence[Sequence[int]] = ()) -> int:
    """What writing an answer counts for in `run_encoding`.

    Args:
        prompts: token ids that stand in it.
    """
    size = TOKEN_SIZE * sum(map(len, prompts))
    for output in outputs:
        size += len(output.text) + TOKEN_SIZE * len(output.token_ids)
        for logprobs in (output.logprobs, output.prompt_logprobs):
            size += LOGPROB_SIZE * sum(1 + len(one.top) + len(one.asked) for one in logprobs or ())
    return size
