"""A request to generate, in the one form that it has from the route to the scheduler."""

import dataclasses
import json
import time
from typing import Self

from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.pooling_params import PoolingParams
from palladio.runtime.interface.request.prompt_parts import Media
from palladio.runtime.interface.request.sampling_params import SamplingParams, check_float, check_int

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
        dp_rank: the data-parallel rank (--dp-size) that is to run it; None: --load-balance-method chooses.
        owner: the API key's owner who asked, by name; empty on servers without keys, and offline.
        timeline: what becomes of it is recorded step by step, see TimelineRecord.
        progress: it has outputs without tokens while its prompt is computed, see PrefillProgress.

    Raises:
        InvalidRequestError: a value is of the wrong type or out of range; `param` names it.
    """

    cache_salt: str | None = None
    priority: int = 0
    timeout: float | None = None
    background: bool = False
    dp_rank: int | None = None
    owner: str = ""
    timeline: bool = False
    progress: bool = False

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
        timeline: bool | None = None,
        progress: bool = False,
    ) -> Self:
        """From a caller's fields; None: not given.

        Args:
            cache_salt, extra_key: two names of one thing, vLLM's and SGLang's; of two salts both must match.
            owner: who sent the request; the server sets it, never a caller's field.

        Raises:
            InvalidRequestError: a value is of the wrong type or out of range; `param` names it.
        """
        _check_salt("cache_salt", cache_salt)
        _check_salt("extra_key", extra_key)
        salt = _join_salts(cache_salt, extra_key)
        priority = 0 if priority is None else priority
        return cls(salt, priority, timeout, False, routed_dp_rank, owner, bool(timeline), progress)

    def resolve(self, scheduler: SchedulerConfig, num_ranks: int = 1) -> Self:
        """The options as this server's flags complete them.

        Raises:
            InvalidRequestError: a priority, where the scheduling policy ignores it, or a rank that does not exist.
        """
        if self.dp_rank is not None and self.dp_rank >= num_ranks:
            ranks = "one data-parallel rank, 0" if num_ranks == 1 else f"data-parallel ranks 0 … {num_ranks - 1}"
            message = f"routed_dp_rank is {self.dp_rank}; this server has {ranks} (--dp-size)"
            raise InvalidRequestError(message, param="routed_dp_rank")
        if self.priority != 0 and scheduler.schedule_policy != "priority":
            message = f"priority needs --schedule-policy priority; this server has {scheduler.schedule_policy}"
            raise InvalidRequestError(message, param="priority")
        if self.timeout is not None or self.background or scheduler.request_timeout is None:
            return self
        return dataclasses.replace(self, timeout=scheduler.request_timeout)


def _check_salt(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= MAX_SALT_LENGTH):
        raise InvalidRequestError.of("{param} must be a string of 1 … {n} characters", param=name, n=MAX_SALT_LENGTH)


def _join_salts(*salts: str | None) -> str | None:
    """One salt for those that are given: the only one as it is, several as JSON, and none can be taken for another."""
    given = [salt for salt in salts if salt is not None]
    if not given:
        return None
    return given[0] if len(given) == 1 and not given[0].startswith("[") else json.dumps(given)


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt, and how to answer it. A route builds it once. The front checks it and resolves what depends on the
    engine (`RequestIntake.resolve`), which makes one of it for each of the n samples: `params.max_tokens` and
    `params.seed` are set then, and `params.n` is 1. That value crosses the process border, and the scheduler's
    `Request` holds it.

    Attributes:
        request_id: the caller's, different for each prompt; of a resolved sample: the engine-side id.
        prompt_ids: a placeholder for each position of `media`, which are in order.
        stop_token_ids: all ids that end a resolved sample: the model's end-of-sequence ids (unless ignore_eos) and
            those of `params`.
        received: when it came, in seconds since the epoch.
        resent: an engine that failed had accepted it: the queue takes it even if it is full.
        default_length: max_tokens where `params` has none, as far as the prompt leaves room; None: all of the room.
        lowers_length: max_tokens makes way for a long prompt as well (--allow-auto-truncate).
        first_index: the index of its first sample among those of all the caller's prompts.
        pooling: what an engine that makes embeddings needs of it.
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
    media: tuple[Media, ...] = ()
    pooling: PoolingParams = PoolingParams()

    @property
    def scoped_id(self) -> str:
        """What the front, which knows one namespace, calls it. No owner's name has a slash."""
        return f"{self.options.owner}/{self.request_id}" if self.options.owner else self.request_id
