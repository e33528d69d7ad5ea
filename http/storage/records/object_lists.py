"""Lists of stored objects: OpenAI's cursor pages, and ids that sort by the time of their making, so that a list can go
on after an object that is deleted."""

import re
import secrets
import time
import uuid
from collections.abc import Sequence
from typing import Any

from palladio.runtime.interface.errors import InvalidRequestError

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id(prefix: str) -> str:
    """`prefix` and a UUID of version 7: milliseconds, then fractions of one, then 62 random bits."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    value = milliseconds << 80 | 7 << 76 | fraction << 64 | 0b10 << 62 | secrets.randbits(62)
    return f"{prefix}{uuid.UUID(int=value)}"


def position_of(object_id: str) -> str:
    """What such ids sort by."""
    return object_id[-36:]


def position_after(after: str | None, prefixes: tuple[str, ...]) -> str | None:
    """Return the position after which a page begins.

    Args:
        after: an id; its object may be deleted by now.

    Raises:
        InvalidRequestError: it is no such id.
    """
    if after is None:
        return None
    position = position_of(after)
    if after[: -len(position)] not in prefixes or not _UUID.fullmatch(position):
        raise InvalidRequestError(f"after: {after[:100]!r} is not the id of an object in this list", param="after")
    return position


def page(objects: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Make a page of a list.

    Args:
        objects: as clients see them; one more than `limit`, if there are more.
    """
    shown = objects[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(objects) > limit,
    }
