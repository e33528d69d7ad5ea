"""What a request asks of the engine beside its tokens: whose cache it shares, how urgent it is, how long it has."""

import dataclasses
import json
from typing import Self

from palladio.runtime.interface.config import SchedulerConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.sampling_params import check_float, check_int

MAX_PRIORITY = 2**31 - 1
MAX_SALT_LENGTH = 1024  # characters; the cache keeps a salt as long as what it stands for


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOptions:
    """Attributes:
        cache_salt: requests share cached prefixes only with requests of the same salt; None is a salt as well.
        priority: with --schedule-policy priority, higher ones are admitted first (unless
            --schedule-low-priority-values-first turns that round).
        timeout: seconds from its arrival after which it ends with an error; None: --request-timeout, which is not for
            background requests.
        background: it only takes what other requests leave: it is admitted when none of them waits, gives its slot and
            its pages up to them, and takes part in their steps as far as that hardly makes them longer.
        dp_rank: the group of devices (--dp-size) that is to run it; None: --load-balance-method chooses.
        owner: the API key's owner who asked, by name; empty on servers without keys, and offline.

    Raises:
        InvalidRequestError: a value is of the wrong type or out of range; `param` names it.
    """

    cache_salt: str | None = None
    priority: int = 0
    timeout: float | None = None
    background: bool = False
    dp_rank: int | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        check_int("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.timeout is not None:
            check_float("timeout", self.timeout, 0.0, None, open_low=True)
        if self.dp_rank is not None:
            check_int("routed_dp_rank", self.dp_rank, 0, None)

    @classmethod
    def of(
        cls,
        *,
        cache_salt: str | None = None,
        extra_key: str | None = None,
        priority: int | None = None,
        timeout: float | None = None,
        routed_dp_rank: int | None = None,
        owner: str = "",
    ) -> Self:
        """From a caller's fields; None: not given.

        Args:
            cache_salt, extra_key: two names of one thing, vLLM's and SGLang's; of two salts both must match.
            owner: no field of a caller's; whoever serves it says who it is.

        Raises:
            InvalidRequestError: a value is of the wrong type or out of range; `param` names it.
        """
        for name, value in (("cache_salt", cache_salt), ("extra_key", extra_key)):
            _check_salt(name, value)
        salt = _join_salts(cache_salt, extra_key)
        return cls(salt, 0 if priority is None else priority, timeout, dp_rank=routed_dp_rank, owner=owner)

    def settle(self, scheduler: SchedulerConfig, num_ranks: int = 1) -> Self:
        """The options as this server's flags complete them.

        Raises:
            InvalidRequestError: a priority, where the scheduling policy does not look at it, or a group of devices that
                is not there.
        """
        if self.dp_rank is not None and self.dp_rank >= num_ranks:
            groups = "one group of devices, 0" if num_ranks == 1 else f"groups of devices 0 … {num_ranks - 1}"
            raise InvalidRequestError(
                f"routed_dp_rank is {self.dp_rank}; this server has {groups} (--dp-size)", param="routed_dp_rank"
            )
        if self.priority != 0 and scheduler.schedule_policy != "priority":
            raise InvalidRequestError(
                f"priority has no effect under --schedule-policy {scheduler.schedule_policy}: start the server with "
                "--schedule-policy priority, or leave priority out",
                param="priority",
            )
        if self.timeout is not None or self.background or scheduler.request_timeout is None:
            return self
        return dataclasses.replace(self, timeout=scheduler.request_timeout)


def _check_salt(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= MAX_SALT_LENGTH):
        message = "{param} must be a string of 1 … {most} characters"
        raise InvalidRequestError.of(message, param=name, most=MAX_SALT_LENGTH)


def _join_salts(*salts: str | None) -> str | None:
    """One salt for those that are given: the only one as it is, several as JSON, and none can be taken for another."""
    given = [salt for salt in salts if salt is not None]
    if not given:
        return None
    return given[0] if len(given) == 1 and not given[0].startswith("[") else json.dumps(given)
