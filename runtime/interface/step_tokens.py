"""What a step gives: tokens with all that is to tell of their request, and plain tokens of many requests at once."""

import dataclasses
from collections.abc import Iterable

from palladio.runtime.interface.outputs import TokenOutput


@dataclasses.dataclass(frozen=True, slots=True)
class PlainTokens:
    """New tokens of requests of which there is nothing else to tell: they have begun, and none of them ends.

    Attributes:
        request_ids: the engine-side ids, each once.
        token_ids: of each request, at least one.
        place: in a message, how many of its other outputs come before.
    """

    request_ids: list[str]
    token_ids: list[list[int]]
    place: int = 0


NewTokens = TokenOutput | PlainTokens


def by_request(outputs: Iterable[NewTokens]) -> list[TokenOutput]:
    """One output a request and step, in order, for who looks at few; those of plain tokens tell nothing else."""
    found: list[TokenOutput] = []
    for output in outputs:
        if isinstance(output, TokenOutput):
            found.append(output)
        else:
            found += map(TokenOutput, output.request_ids, output.token_ids)
    return found
