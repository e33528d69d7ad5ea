"""Requests on their way in: checked against the engine's limits, and resolved to one for each sample."""

import dataclasses
import itertools
import random
from collections.abc import Iterable
from typing import Self

from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS, EmbeddingSpec
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.pooling_params import PoolingParams
from palladio.runtime.interface.request.sampling_params import MAX_STOP_TOKEN_IDS, SamplingParams
from palladio.runtime.text.tokenizers.stop_regex import read_pattern
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

_INT = {int}  # and not bool


@dataclasses.dataclass(frozen=True, slots=True)
class LengthLimit:
    """What a request may hold, prompt and output together.

    Attributes:
        limit: tokens: the model's context or the KV cache, whichever is smaller.
        name: which of the two it is, for messages.
    """

    limit: int
    name: str

    @classmethod
    def of(cls, info: EngineReady) -> Self:
        longest = info.max_total_tokens if info.longest_request is None else info.longest_request
        if longest < info.context_length:
            return cls(longest, "the KV cache (see --max-total-tokens and --mem-fraction-static)")
        return cls(info.context_length, "the model's context length")

    def fit(self, request: GenerationRequest) -> SamplingParams:
        """The parameters with max_tokens as the prompt leaves room for it, where the request gives only a default, or
        lets it be lowered. A prompt that leaves no room changes nothing: it is refused with its length and the limit
        later.

        Raises:
            InvalidRequestError: min_tokens is over what the prompt leaves.
        """
        params, room = request.params, self.limit - len(request.prompt_ids)
        wanted, makes_way = params.max_tokens, request.lowers_length
        if wanted is None and request.default_length is not None:
            wanted, makes_way = max(request.default_length, params.min_tokens), True
        if wanted is not None and makes_way and room > 0:
            wanted = min(wanted, room)
        return params if wanted == params.max_tokens else params.with_checked(max_tokens=wanted)


class RequestIntake:
    """Host-only request logic, the same for every transport.

    Args:
        info: the engine's limits.
        tokenizer: None with skip_tokenizer_init.
        scheduler: which options have an effect, and their defaults.
    """

    def __init__(
        self, info: EngineReady, tokenizer: Tokenizer | None, scheduler: SchedulerConfig = SchedulerConfig()
    ) -> None:
        self._info = info
        self._scheduler = scheduler
        self._room = LengthLimit.of(info)
        self._tokenizer = tokenizer
        self._random = random.Random(info.random_seed)
        self._serial = itertools.count()
        self._eos_ids = [*info.eos_token_ids, *(() if tokenizer is None else tokenizer.end_ids)]

    @property
    def room(self) -> LengthLimit:
        return self._room

    def renew(self, info: EngineReady) -> None:
        """Goes on with another engine of the same model, and its limits; serials and seeds go on as well."""
        self._info = info
        self._room = LengthLimit.of(info)

    def resolve(self, request: GenerationRequest) -> list[GenerationRequest]:
        """One request for each of the n samples, with everything that the engine needs resolved.

        Their engine-side ids are RID~SERIAL, or RID~SERIAL-INDEX of several samples. A serial is never used twice, so
        what an aborted request may still send cannot be taken for output of a later one with the same RID.

        Raises:
            ContextLengthError: the prompt, or prompt and max_tokens, do not fit.
            InvalidRequestError: an empty prompt, an id out of the vocabulary, too many stop ids, stop strings or
                patterns without a tokenizer, a pattern that cannot be followed, a priority that the scheduling policy
                does not look at, a rank that does not exist; or the engine makes embeddings, and text is asked for.
        """
        params, prompt_ids = self._room.fit(request), request.prompt_ids
        self._check_prompt(prompt_ids)
        if request.media and params.prompt_logprobs is not None:
            message = "{param} needs a prompt of token ids alone: a part of this one is embeddings, which no token has"
            raise InvalidRequestError.of(message, param="prompt_logprobs")
        embedding = self._info.embedding
        if embedding is not None and embedding.classes is not None:
            prompt_ids = embedding.classes.without_padding(prompt_ids)
        if embedding is not None and dataclasses.replace(params, seed=None) != EMBEDDING_PARAMS:
            raise InvalidRequestError(
                "this engine makes embeddings (--is-embedding) and generates no text: use Engine.encode, or start it "
                "without"
            )
        options = request.options.resolve(self._scheduler, self._info.num_ranks)
        if params.stop and self._tokenizer is None:
            raise InvalidRequestError("stop strings need a tokenizer: use stop_token_ids", param="stop")
        if params.stop_regex and self._tokenizer is None:
            raise InvalidRequestError("stop_regex needs a tokenizer: use stop_token_ids", param="stop_regex")
        for pattern in params.stop_regex:
            read_pattern(pattern)
        self._check_ids("logit_bias", params.logit_bias)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        self._check_ids("logprob_token_ids", params.logprob_token_ids or ())
        stop_token_ids = self._stop_token_ids(params)
        max_tokens = self._max_tokens(len(prompt_ids), params.max_tokens)
        thinking = params.thinking
        if thinking is not None and params.grammar is not None and max_tokens > 0:
            thinking = thinking.leaving_room(max_tokens)
        pooling = request.pooling if embedding is None else self._pooling(request, embedding, len(prompt_ids))
        samples = []
        for index in range(params.n):
            place = "" if params.n == 1 else f"-{index}"
            sample = params.with_checked(
                max_tokens=max_tokens,
                seed=self._seed(params.seed, index),
                n=1,
                thinking=thinking,
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,
            )
            engine_id = f"{request.scoped_id}~{next(self._serial):x}{place}"
            new = GenerationRequest(engine_id, prompt_ids, sample, stop_token_ids, request.received, options)
            is_plain = not request.media and embedding is None
            samples.append(new if is_plain else dataclasses.replace(new, media=request.media, pooling=pooling))
        return samples

    @staticmethod
    def _pooling(request: GenerationRequest, embedding: EmbeddingSpec, num_tokens: int) -> PoolingParams:
        """
        Raises:
            InvalidRequestError: the model does not make these vectors, or there are too few types of tokens.
        """
        pooling = request.pooling.of_prompt(num_tokens)
        for kind in () if embedding.classes is not None else pooling.kinds:
            if kind not in embedding.kinds:
                message = "{param}: this model makes {known} vectors, not {kind}"
                known = ", ".join(embedding.kinds)
                raise InvalidRequestError.of(message, param="embedding_types", known=known, kind=kind)
        return pooling

    def _check_prompt(self, ids: list[int]) -> None:
        if len(ids) > self._room.limit:
            self._max_tokens(len(ids), None)  # raises before a million ids are looked at
        if not set(map(type, ids)) <= _INT:
            raise InvalidRequestError("the prompt must be a list of token ids", param="prompt")
        if not ids:
            raise InvalidRequestError("the prompt is empty: give at least one token", param="prompt")
        self._check_ids("prompt", ids)

    def _seed(self, seed: int | None, index: int) -> int:
        return self._random.getrandbits(64) if seed is None else (seed + index) % 2**64

    def _max_tokens(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        limit, what = self._room.limit, self._room.name
        room = limit - num_prompt_tokens
        if room < 0 or (room == 0 and max_tokens != 0):
            relation, end = ("longer than", "") if room < 0 else ("as long as", ", which leaves no room for output")
            raise ContextLengthError.of_prompt(
                f"The input ({num_prompt_tokens} tokens) is {relation} {what} ({limit} tokens){end}. Send a shorter "
                "prompt.",
                num_prompt_tokens,
                limit if room < 0 else limit - 1,
                "" if limit == self._info.context_length else what,
            )
        if max_tokens is None:
            return room
        if max_tokens > room:
            raise ContextLengthError.of(
                "The input ({size} tokens) and {param} ({wanted}) together are longer than {what} ({limit} tokens). "
                "Lower {param} to {room} or less, leave it out, or send a shorter prompt.",
                param="max_tokens",
                size=num_prompt_tokens,
                wanted=max_tokens,
                what=what,
                limit=limit,
                room=room,
            )
        return max_tokens

    def _stop_token_ids(self, params: SamplingParams) -> tuple[int, ...]:
        suppressed = {*params.stop_token_ids}
        if params.min_tokens or not params.ignore_eos:
            suppressed |= {*self._eos_ids}
        if len(suppressed) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequestError(
                f"stop_token_ids and the model's own end-of-sequence ids together are {len(suppressed)}, "
                f"over the limit of {MAX_STOP_TOKEN_IDS}",
                param="stop_token_ids",
            )
        return tuple(dict.fromkeys([*([] if params.ignore_eos else self._eos_ids), *params.stop_token_ids]))

    def _check_ids(self, param: str, ids: Iterable[int]) -> None:
        ids = list(ids)
        if ids and not (min(ids) >= 0 and max(ids) < self._info.vocab_size):
            bad = next(token_id for token_id in ids if not 0 <= token_id < self._info.vocab_size)
            message = "{param}: token id {bad} is not in the model's vocabulary (0 … {last})"
            raise InvalidRequestError.of(message, param=param, bad=bad, last=self._info.vocab_size - 1)
