"""The arguments of `Engine.generate` and of the HTTP /generate route, as requests."""

import dataclasses
import operator
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.input_embeds import EmbeddedPrompts
from palladio.runtime.interface.request.pooling_params import PoolingParams
from palladio.runtime.interface.request.prompt_parts import Media, join_parts
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 128  # SGLang's

Sampling = SamplingParams | Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogprobOptions:
    """SGLang's log-probability fields of one request.

    Attributes:
        return_logprob: report log-probabilities at all.
        logprob_start_len: first prompt position to report; -1 (or None): only the output.
        top_logprobs_num: how many likeliest tokens to report at each position.
        token_ids_logprob: tokens to report at each position.
        return_text_in_logprobs: the third entry of each tuple is the token's text instead of None.
    """

    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    token_ids_logprob: Sequence[int] | None = None
    return_text_in_logprobs: bool = False

    @property
    def wants_prompt(self) -> bool:
        return self.return_logprob and self.logprob_start_len is not None and self.logprob_start_len >= 0

    def apply(self, params: SamplingParams) -> SamplingParams:
        """The sampling parameters that make the engine report what is asked for.

        Raises:
            InvalidRequestError: a value is out of range, or one that needs `return_logprob` comes without.
        """
        top = self.top_logprobs_num or 0
        if not self.return_logprob:
            for name, is_given in (("top_logprobs_num", top > 0), ("token_ids_logprob", bool(self.token_ids_logprob))):
                if is_given:
                    raise InvalidRequestError.of("{param} needs return_logprob=true", param=name)
            return params
        if self.logprob_start_len is not None and self.logprob_start_len < -1:
            raise InvalidRequestError("logprob_start_len must be -1 or more", param="logprob_start_len")
        prompt_top, ids = top if self.wants_prompt else None, self.token_ids_logprob
        try:
            asked = params.logprob_token_ids if ids is None else tuple(ids)
            return dataclasses.replace(params, logprobs=top, prompt_logprobs=prompt_top, logprob_token_ids=asked)
        except InvalidRequestError as error:
            raise error.rename(_OUR_NAMES) from None


_OUR_NAMES = {
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "logprob_token_ids": "token_ids_logprob",
}


def expand_requests(
    *,
    prompt: str | Sequence[str] | None = None,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
    input_embeds: EmbeddedPrompts | None = None,
    sampling_params: Sampling | Sequence[Sampling] | None,
    rid: str | Sequence[str] | None,
    logprobs: Mapping[str, Any] = {},
    options: Mapping[str, Any],
    defaults: Mapping[str, Any] = {},
    tokenizer: Tokenizer | None = None,
    received: float,
    lowers_length: bool = False,
    pooling: Sequence[PoolingParams] | None = None,
) -> tuple[list[GenerationRequest], list[LogprobOptions], bool]:
    """The prompts of a call, each with its own parameters, which log-probabilities to show of each, and whether the
    result is a list (prompts were, or n > 1).

    Args:
        prompt: a text or a list of them; or else `input_ids`, or else `input_embeds`.
        input_ids: one prompt's ids, or a list of those.
        sampling_params: for all prompts, or one a prompt.
        rid: the request's id, or one a prompt; None: random.
        logprobs: fields of LogprobOptions by name, each for all prompts or a list; token_ids_logprob is a list for all
            of them, or a list of lists.
        options: arguments of RequestOptions.of, each for all prompts or a list.
        defaults: values of sampling parameters that are not given; max_tokens shrinks for a long prompt.
        tokenizer: tokenizes texts; None: there is none.
        received, lowers_length: see GenerationRequest.
        pooling: of each prompt, on an engine that makes embeddings.

    Raises:
        InvalidRequestError: a value is wrong, or a list has not one entry a prompt; or a text has no tokenizer.
    """
    prompts, is_list = _prompts(prompt, input_ids, input_embeds, tokenizer)
    count = len(prompts)
    samplings = _spread("sampling_params", {} if sampling_params is None else sampling_params, count)
    rids = _rids(rid, count)
    asked_ids = _asked_ids(logprobs.get("token_ids_logprob"), count)
    shown = [LogprobOptions(**row) for row in _rows({**logprobs, "token_ids_logprob": asked_ids}, count)]
    option_rows = _rows(options, count)
    requests: list[GenerationRequest] = []
    first_index = 0
    for i, part in enumerate(prompts):
        media: tuple[Media, ...] = ()
        if isinstance(part, Media):
            prompt_ids, media = join_parts([part])
        else:
            prompt_ids = part
        if media and shown[i].wants_prompt:
            message = "{param} must be -1 with input_embeds: there are no tokens whose log-probabilities could be told"
            raise InvalidRequestError.of(message, param="logprob_start_len")
        if i == 0 or samplings[i] is not samplings[i - 1] or shown[i] != shown[i - 1]:  # else they are the same
            params, default_length = _sampling_params(samplings[i], defaults)
            params = shown[i].apply(params)
        requests.append(
            GenerationRequest(
                *(rids[i], prompt_ids, params),
                received=received,
                options=RequestOptions.of(**option_rows[i]),
                default_length=default_length,
                lowers_length=lowers_length,
                first_index=first_index,
                media=media,
                pooling=PoolingParams() if pooling is None else pooling[i],
            )
        )
        first_index += params.n
    return requests, shown, is_list or first_index > count


def _prompts(
    prompt: str | Sequence[str] | None,
    input_ids: Any,
    input_embeds: EmbeddedPrompts | None,
    tokenizer: Tokenizer | None,
) -> tuple[Sequence[list[int] | Media], bool]:
    if (prompt, input_ids, input_embeds).count(None) != 2:
        message = "give one of the text of the prompt, its input_ids and its input_embeds"
        raise InvalidRequestError(message, param="prompt")
    if input_embeds is not None:
        return input_embeds.media, input_embeds.is_list
    if prompt is not None:
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not all(isinstance(text, str) for text in texts):
            message = "{param} must be a text or a list of texts; ids go to input_ids"
            raise InvalidRequestError.of(message, param="prompt")
        if tokenizer is None:
            message = "this server has no tokenizer (--skip-tokenizer-init): send token ids"
            raise InvalidRequestError(message, param="prompt")
        return [tokenizer.encode(text) for text in texts], not isinstance(prompt, str)
    try:
        if len(input_ids) > 0 and all(isinstance(row, Sequence) or hasattr(row, "tolist") for row in input_ids):
            return [[operator.index(token_id) for token_id in row] for row in input_ids], True
        return [[operator.index(token_id) for token_id in input_ids]], False
    except TypeError:
        raise InvalidRequestError(
            "input_ids must be a list of token ids, or a list of those", param="input_ids"
        ) from None


def _rids(rid: str | Sequence[str] | None, count: int) -> list[str]:
    rids = [uuid.uuid4().hex for _ in range(count)] if rid is None else _spread("rid", rid, count)
    if len(set(rids)) != count:
        raise InvalidRequestError("rid must be different for each prompt", param="rid")
    return rids


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """One value for each prompt: a list is one already."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        message = "{param} has {entries} entries for {prompts} prompts"
        raise InvalidRequestError.of(message, param=name, entries=len(value), prompts=count)
    return list(value)


def _asked_ids(value: Any, count: int) -> list[Any]:
    """The ids of each prompt: one list is for all of them, and a number is a list of one."""
    if isinstance(value, int):
        value = [value]
    is_nested = isinstance(value, list | tuple) and any(isinstance(entry, list | tuple) for entry in value)
    return _spread("token_ids_logprob", value, count) if is_nested else [value] * count


def _rows(fields: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The fields of each prompt."""
    columns = {name: _spread(name, value, count) for name, value in fields.items()}
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _sampling_params(sampling: Sampling, defaults: Mapping[str, Any]) -> tuple[SamplingParams, int | None]:
    """The parameters and the default length, if that counts. A SamplingParams is taken as it stands."""
    if isinstance(sampling, SamplingParams):
        return sampling, None
    if not isinstance(sampling, Mapping):
        raise InvalidRequestError("sampling_params must be an object", param="sampling_params")
    others = {name: value for name, value in defaults.items() if name != "max_tokens"}
    params = SamplingParams.from_dict(sampling, defaults=others)
    return params, defaults.get("max_tokens", DEFAULT_MAX_TOKENS) if params.max_tokens is None else None
