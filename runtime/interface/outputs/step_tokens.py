"""What a step gives: tokens with all that is to tell of their request, and plain tokens of many requests at once."""

import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from palladio.runtime.interface.outputs.token_output import TokenOutput


@dataclasses.dataclass(frozen=True, slots=True)
class PlainTokens:
    """New tokens of requests of which there is nothing else to tell: they have begun, and none of them ends.

    Attributes:
        request_ids: the engine-side ids, each once. Nobody changes the list: the next step may give the same one.
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
        """Args: token_ids: of each request."""
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
    """The same tokens, those of each request in order, an output for each. What else is told of a request comes with
    its last one. Where a timeline is told, tokens stay together: it is of all of them."""
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
