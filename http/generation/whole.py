"""Streams that are read to their end before there is an answer."""

from collections.abc import Callable, Sequence

from palladio.http.generation.output_stream import OutputStream
from palladio.http.generation.usage import Usage
from palladio.runtime.interface.outputs.request_output import RequestOutput

TOKEN_SIZE = 8  # characters that a token counts for, and a little more
LOGPROB_SIZE = 64  # of each log-probability that is written


async def feed(stream: OutputStream, write: Callable[[RequestOutput], object]) -> None:
    """Waits for the end of every sample, and hands each output on as it comes.

    Raises:
        PalladioError: the engine gave a request up, or `write` does; in the client's names.
    """
    with stream.names.renaming():
        async with stream:
            async for output in stream:
                write(output)


async def collect(stream: OutputStream) -> tuple[list[RequestOutput], Usage]:
    """Waits for the end of every sample; returns each as one output, by index."""
    usage = Usage(stream.n)
    wholes: dict[int, RequestOutput] = {}

    def add(output: RequestOutput) -> None:
        if (whole := wholes.setdefault(output.index, output)) is not output:
            whole.extend(output)

    await feed(stream, add)
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
