"""A request to generate, in the one form that it has from the route to the scheduler."""

import dataclasses
import time

from palladio.runtime.interface.request.prompt_parts import Media
from palladio.runtime.interface.request.request_options import RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams


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

    @property
    def scoped_id(self) -> str:
        """What the front, which knows one namespace, calls it. No owner's name has a slash."""
        return f"{self.options.owner}/{self.request_id}" if self.options.owner else self.request_id
