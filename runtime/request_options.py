"""What a request asks of the engine beside its tokens: whose cache it shares, how urgent it is, how long it has."""

import dataclasses
import math

from palladio.runtime.errors import InvalidRequestError

MAX_PRIORITY = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOptions:
    """Attributes:
        cache_salt: requests share cached prefixes only with requests of the same salt; None is a salt as well.
        priority: with --schedule-policy priority, higher ones are admitted first (unless
            --schedule-low-priority-values-first turns that round).
        timeout: seconds from its arrival after which it ends with an error; None: --request-timeout.

    Raises:
        InvalidRequestError: a value is out of range.
    """

    cache_salt: str | None = None
    priority: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        if abs(self.priority) > MAX_PRIORITY:
            raise InvalidRequestError(
                f"priority must be in -{MAX_PRIORITY} … {MAX_PRIORITY}, got {self.priority}", param="priority"
            )
        if self.timeout is not None and not (math.isfinite(self.timeout) and self.timeout > 0):
            raise InvalidRequestError(
                f"timeout must be a positive number of seconds, got {self.timeout}", param="timeout"
            )
