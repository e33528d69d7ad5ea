"""A page of a list of stored objects, as OpenAI's cursor pages."""

from collections.abc import Sequence
from typing import Any, Protocol


class Listed(Protocol):
    @property
    def id(self) -> str: ...

    def as_dict(self) -> dict[str, Any]: ...


def page(objects: Sequence[Listed], limit: int) -> dict[str, Any]:
    """Args: objects: one more than `limit`, if there are more."""
    shown = objects[:limit]
    return {
        "object": "list",
        "data": [one.as_dict() for one in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": len(objects) > limit,
    }
