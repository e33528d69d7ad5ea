"""Whole answers, for requests that do not stream."""

from palladio.http.generation.generation import OutputStream, Usage
from palladio.runtime.interface.outputs import RequestOutput


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
