"""Prompts that are too long: which tokens stay, where the request or --allow-auto-truncate has them cut."""

import dataclasses
from typing import Self

from palladio.runtime.front.request_intake import LengthLimit
from palladio.runtime.interface.errors import InvalidRequestError

FIELD = "truncate_prompt_tokens"


@dataclasses.dataclass(frozen=True, slots=True)
class Truncation:
    """
    Attributes:
        limit: most tokens that stay.
        keeps_end: the last ones; else the first ones.
    """

    limit: int
    keeps_end: bool

    @classmethod
    def of(cls, room: LengthLimit, asked: int | None, reserved: int | None, *, is_automatic: bool) -> Self | None:
        """
        Args:
            asked: truncate_prompt_tokens: the last so many tokens stay; -1: as many as fit; None: it is not given.
            reserved: tokens that are to be generated; None: as many as there is room for.
            is_automatic: --allow-auto-truncate: else as many of the first ones stay as leave room for a token.

        Returns:
            None: what is too long is refused.

        Raises:
            InvalidRequestError: what is asked for is out of range.
        """
        reserved = 1 if reserved is None else reserved
        if asked is None:
            return cls(room.limit - min(reserved, 1), keeps_end=False) if is_automatic else None
        if asked != -1 and not 1 <= asked <= room.limit:
            message = "{param} must be -1 (as many as fit) or in 1 … {limit} ({what}), got {asked}"
            raise InvalidRequestError.of(message, param=FIELD, limit=room.limit, what=room.name, asked=asked)
        return cls(max(1, room.limit - reserved) if asked == -1 else asked, keeps_end=True)

    def cut(self, token_ids: list[int], num_before: int = 0, num_behind: int = 0) -> list[int]:
        """What stays of a prompt.

        Args:
            num_before, num_behind: special tokens around the text, which stay: what reads the last token of a text may
                count on the one that ends it.
        """
        if not self.cuts(token_ids):
            return token_ids
        kept = self.limit - num_before - num_behind
        if kept < 1:
            return token_ids[-self.limit :] if self.keeps_end else token_ids[: self.limit]
        end = len(token_ids) - num_behind
        text = token_ids[end - kept : end] if self.keeps_end else token_ids[num_before : num_before + kept]
        return token_ids[:num_before] + text + token_ids[end:]

    def cuts(self, token_ids: list[int]) -> bool:
        return len(token_ids) > self.limit
