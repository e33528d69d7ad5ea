"""A request to generate, in the one form that it has from the route to the scheduler."""

import dataclasses
import json
import time
from typing import Self

from palladio.runtime.interface.config import SchedulerConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.sampling_params import SamplingParams, check_float, check_int

MAX_PRIORITY = 2**31 - 1
MAX_SALT_LENGTH = 1024  # characters; the cache keeps a salt as long as what it stands for


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request asks beside its tokens: whose cache it shares, how urgent it is, how long it has.

    Attributes:
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


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt, and how to answer it. A route builds it once. The front checks it and settles what depends on the
    engine (`RequestIntake.settle`), which makes one of it for each of the n samples: `params.max_tokens` and
    `params.seed` are set then, and `params.n` is 1. That value crosses the process border, and the scheduler's
    `Request` holds it.

    Attributes:
        request_id: the caller's, different for each prompt; of a settled sample: the engine-side id.
        stop_token_ids: all ids that end a settled sample: the model's end-of-sequence ids (unless ignore_eos) and those
            of `params`.
        received: when it came, in seconds since the epoch.
        resent: an engine that failed had accepted it: the queue takes it even if it is full.
        default_length: max_tokens where `params` has none, as far as the prompt leaves room; None: all of the room.
        lowers_length: max_tokens makes way for a long prompt as well (--allow-auto-truncate).
        first_index: the index of its first sample among those of all the caller's prompts.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    stop_token_ids: tuple[int, ...] = ()
    received: float = dataclasses.field(default_factory=time.time)
    options: RequestOptions = RequestOptions()
    resent: bool = False
    default_length: int | None = None
    lowers_length: bool = False
    first_index: int = 0

    @property
    def scoped_id(self) -> str:
        """What the front, which knows one namespace, calls it. No owner's name has a slash."""
        return f"{self.options.owner}/{self.request_id}" if self.options.owner else self.request_id


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
