"""The samples of a request at the front: resolved on the way in, and made text on the way out."""

import dataclasses
import itertools
import random
import time
from collections.abc import Iterable, Sequence
from typing import Self

from palladio.runtime.interface.config.scheduler_config import SchedulerConfig
from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.request_trace import RequestTimes, RequestTrace
from palladio.runtime.interface.outputs.timeline import Timeline
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenOutput
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.parameter_checks import MAX_STOP_TOKEN_IDS
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.detokenizer import IncrementalDetokenizer
from palladio.runtime.text.tokenizers.stop_regex import StopRegexMatcher, read_pattern
from palladio.runtime.text.tokenizers.stop_strings import StopStringMatcher
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
            samples.append(dataclasses.replace(new, media=request.media) if request.media else new)
        return samples

    def _check_prompt(self, ids: list[int]) -> None:
        if len(ids) > self._room.limit:
            self._max_tokens(len(ids), None)  # it is told before a million ids are looked at
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


LOGPROB_COST = 8  # of a token whose log-probabilities are written, in tokens without


class SampleProcessor:
    """Follows one sample from its first token to its end.

    A stop string ends the sample here, before the engine knows: the caller must then abort it there.

    Args:
        request_id: the user's id.
        index: which of the n samples.
        request: what the engine was told.
        tokenizer: None: no text.
    """

    def __init__(self, request_id: str, index: int, request: GenerationRequest, tokenizer: Tokenizer | None) -> None:
        params = request.params
        self._request_id = request_id
        self._index = index
        self._received = request.received
        self._num_prompt_tokens = len(request.prompt_ids)
        self._min_tokens = params.min_tokens
        self._keep_stop = params.no_stop_trim
        self._num_tokens = 0
        self._cached_tokens = 0
        self._num_retractions = 0
        self._times: RequestTimes | None = None
        self._trace: RequestTrace | None = None
        self._timeline = Timeline() if request.options.timeline else None
        self._first_token: float | None = None
        self._detokenize_seconds = 0.0
        self._detokenizer: IncrementalDetokenizer | None = None
        self._hidden_stops: dict[int, str] = {}
        self._matcher = StopStringMatcher(params.stop, keep_match=params.no_stop_trim)
        self._patterns = StopRegexMatcher(params.stop_regex) if params.stop_regex else None
        if tokenizer is not None:
            self._detokenizer = tokenizer.new_stream(
                request.prompt_ids,
                skip_special_tokens=params.skip_special_tokens,
                visible_special_ids=params.visible_special_ids,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )
            if params.skip_special_tokens and params.stop:
                named = {tokenizer.special_id(string): string for string in params.stop}
                self._hidden_stops = {i: string for i, string in named.items() if i is not None}
        self._is_plain = self._detokenizer is not None and not params.stop and not params.stop_regex

    @property
    def index(self) -> int:
        """Which of the n samples."""
        return self._index

    def process(self, new: TokenOutput | list[int]) -> RequestOutput:
        """Takes the engine's next output, or tokens alone; nothing may follow once the result has `finish`."""
        if isinstance(new, list):
            if self._is_plain:
                return self._process_plain(new)
            new = TokenOutput("", new, None, None, None, self._cached_tokens, self._num_retractions)
        return self._process_output(new)

    def _process_output(self, output: TokenOutput) -> RequestOutput:
        begun = time.perf_counter()
        if self._first_token is None and output.token_ids:
            self._first_token = time.time()
        times, trace = output.times, output.trace
        if self._timeline is not None and trace is not None and trace.timeline is not None:
            self._timeline.extend(trace.timeline)
            trace.tell(self._timeline)  # whoever has a trace of this sample sees what comes later
        if times is not None:
            self._times, self._trace = times, trace
        self._cached_tokens = output.cached_tokens
        self._num_retractions = output.num_retractions
        finish = output.finish
        text, num_taken, stop_string = self._take(output.token_ids, self._num_unshown(finish))
        if stop_string is not None:
            finish = FinishReason("stop", matched=stop_string)
        elif finish is not None:
            text += self._flush()
            if self._matched is not None:  # only with a stop string that contains U+FFFD, or a pattern
                finish = FinishReason("stop", matched=self._matched)
        self._num_tokens += num_taken
        if self._timeline is not None and num_taken < len(output.token_ids):
            self._timeline.take_back(len(output.token_ids) - num_taken)
        self._detokenize_seconds += time.perf_counter() - begun
        return RequestOutput(
            request_id=self._request_id,
            index=self._index,
            text=text,
            token_ids=output.token_ids[:num_taken],
            logprobs=None if output.logprobs is None else output.logprobs[:num_taken],
            prompt_logprobs=output.prompt_logprobs,
            finish=finish,
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_tokens,
            cached_tokens=self._cached_tokens,
            num_retractions=self._num_retractions,
            times=times if finish is None else self._final_times(),
            trace=None if times is None and finish is None else self._trace,
            detokenize_seconds=self._detokenize_seconds,
            embedding=output.embedding,
        )

    def _process_plain(self, token_ids: list[int]) -> RequestOutput:
        """What `process` does with tokens that neither begin nor end anything: nearly all of them."""
        begun = time.perf_counter()
        push = self._detokenizer.push  # type: ignore[union-attr]  # see _is_plain
        text = push(token_ids[0]) if len(token_ids) == 1 else "".join(map(push, token_ids))
        self._num_tokens += len(token_ids)
        self._detokenize_seconds += time.perf_counter() - begun
        return RequestOutput(
            *(self._request_id, self._index, text, token_ids, None, None, None),
            *(self._num_prompt_tokens, self._num_tokens, self._cached_tokens, self._num_retractions, None, None),
            self._detokenize_seconds,
        )

    def abort(self) -> RequestOutput:
        """The last output of a sample that someone aborted."""
        finish = FinishReason("abort", message="aborted")
        return self.process(TokenOutput("", [], None, None, finish, self._cached_tokens, self._num_retractions))

    def _num_unshown(self, finish: FinishReason | None) -> int:
        """How many tokens at the end are kept out of the text: the one that ended the sample, unless it is wanted."""
        if finish is None or finish.type != "stop" or not isinstance(finish.matched, int) or self._keep_stop:
            return 0
        return 1

    def _take(self, token_ids: list[int], num_unshown: int) -> tuple[str, int, str | None]:
        """Text of the tokens, how many of them count, and the stop string if one was found."""
        if self._detokenizer is None:
            return "", len(token_ids), None
        text = ""
        for taken, token_id in enumerate(token_ids[: len(token_ids) - num_unshown], start=1):
            armed = self._num_tokens + taken >= self._min_tokens
            if armed and token_id in self._hidden_stops:
                text += self._flush()
                return text, taken, self._matched or self._hidden_stops[token_id]
            text += self._show(self._matcher.feed(self._detokenizer.push(token_id), armed=armed), armed=armed)
            if self._matched is not None:
                return text, taken, self._matched
        return text, len(token_ids), None

    def _flush(self) -> str:
        if self._detokenizer is None:
            return ""
        text = self._matcher.feed(self._detokenizer.flush())
        return self._show(text if self._matcher.matched is not None else text + self._matcher.flush())

    def _show(self, text: str, *, armed: bool = True) -> str:
        """What may be shown of text that holds no stop string: a pattern may end it before one does."""
        return text if self._patterns is None else self._patterns.feed(text, armed=armed)

    @property
    def _matched(self) -> str | None:
        """The pattern or the stop string that ended the text."""
        if self._patterns is not None and self._patterns.matched is not None:
            return self._patterns.matched
        return self._matcher.matched

    def _final_times(self) -> RequestTimes:
        """The engine's, or, if this side ended the sample, what the engine told with its first token."""
        times = self._times or RequestTimes(self._received, first_token=self._first_token)
        return times if times.finished is not None else dataclasses.replace(times, finished=time.time())


def merge_outputs(outputs: Sequence[RequestOutput], max_cost: int) -> list[RequestOutput]:
    """Joins consecutive outputs of each sample, for a reader that was slow; outputs of a sample keep their order.

    Args:
        max_cost: an output that has reached it is not joined with the next one (see `output_cost`).
    """
    merged: list[RequestOutput] = []
    last: dict[int, tuple[RequestOutput, int]] = {}  # of each sample: its last output here, and what that costs
    for output in outputs:
        joined, cost = last.get(output.index, (output, max_cost))
        if cost >= max_cost:
            joined, cost = output, output_cost(output)
            merged.append(output)
        else:
            cost += output_cost(output)
            joined.extend(output)
        last[output.index] = joined, cost
    return merged


def output_cost(output: RequestOutput) -> int:
    """How long it takes to write an output, in tokens without log-probabilities."""
    num_tokens = len(output.token_ids)
    return num_tokens if output.logprobs is None else LOGPROB_COST * num_tokens
