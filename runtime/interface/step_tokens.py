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


def one_by_one(outputs: Iterable[NewTokens]) -> list[NewTokens]:
    """The same tokens, those of each request in order, an output for each. What else is told of a request comes with
    its last one."""
    found: list[NewTokens] = []
    for output in outputs:
        if isinstance(output, PlainTokens):
            for step in range(max(map(len, output.token_ids))):
                pairs = zip(output.request_ids, output.token_ids, strict=True)
                now = [(request_id, token_ids[step]) for request_id, token_ids in pairs if len(token_ids) > step]
                found.append(PlainTokens([request_id for request_id, _ in now], [[token] for _, token in now]))
        else:
            found += (PlainTokens([output.request_id], [[token]]) for token in output.token_ids[:-1])
            found.append(dataclasses.replace(output, token_ids=output.token_ids[-1:]))
    return found


def by_request(outputs: Iterable[NewTokens]) -> list[TokenOutput]:
    """One output a request and step, in order, for who looks at few; those of plain tokens tell nothing else."""
    found: list[TokenOutput] = []
    for output in outputs:
        if isinstance(output, TokenOutput):
            found.append(output)
        else:
            found += map(TokenOutput, output.request_ids, output.token_ids)
    return found
