"""Wire fields → SamplingParams and RequestOptions."""

from collections.abc import Mapping
from typing import Any

from palladio.http.wire.protocol import SamplingFields
from palladio.http.wire.protocol_embeddings import EmbeddingRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.generation_request import RequestOptions
from palladio.runtime.interface.grammar_spec import Grammar
from palladio.runtime.interface.sampling_params import SamplingParams

WORKED_OUT = frozenset(("max_tokens", "logprobs", "stop", "no_stop_trim"))  # from several fields, or by the route
SAME_NAME = SamplingFields.model_fields.keys() & SamplingParams.__dataclass_fields__.keys() - WORKED_OUT


def sampling_params(
    body: SamplingFields,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    grammar: Grammar | None,
) -> SamplingParams:
    """Builds the parameters of a chat or text completion.

    Args:
        body: the request.
        defaults: values of the fields that it does not give; max_tokens is for `default_length`.
        max_tokens, logprobs: these two have route-specific meanings, so the route works them out.
        grammar: of its `structured_output`.

    Raises:
        InvalidRequestError: a value is out of range.
    """
    values = body.model_dump(include=set(SAME_NAME))
    values |= {"max_tokens": max_tokens, "logprobs": logprobs, "no_stop_trim": _no_stop_trim(body)}
    values["grammar"] = grammar
    values["stop"] = body.stop or None  # "" and [] are how some clients spell "no stop strings"
    return SamplingParams.from_dict(values, defaults={key: defaults[key] for key in defaults if key != "max_tokens"})


def default_length(params: SamplingParams, defaults: Mapping[str, Any], of_route: int | None = None) -> int | None:
    """A Job's: max_tokens where the request gives none, which makes way for a long prompt; None: the request does, or
    all that the context still holds."""
    return defaults.get("max_tokens", of_route) if params.max_tokens is None else None


def request_options(body: SamplingFields | EmbeddingRequest) -> RequestOptions:
    """
    Raises:
        InvalidRequestError: a value is out of range.
    """
    return RequestOptions.of(
        cache_salt=body.cache_salt,
        extra_key=body.extra_key,
        priority=body.priority,
        timeout=body.timeout,
        routed_dp_rank=body.routed_dp_rank,
    )


def request_name(body: SamplingFields | EmbeddingRequest, generated: str) -> str:
    """The request's id: the client's own (`rid` is SGLang's name, `request_id` vLLM's), or the generated one."""
    if body.rid is not None and body.request_id is not None and body.rid != body.request_id:
        raise InvalidRequestError("rid and request_id name the same parameter; give one", param="rid")
    return body.rid or body.request_id or generated


def check_scoring_only(body: SamplingFields, max_tokens: int | None, name: str, *, echo: bool = False) -> None:
    """max_tokens 0 only scores the prompt, and prompt_logprobs need a whole answer to stand in."""
    if max_tokens == 0 and body.prompt_logprobs is None and not echo:
        raise InvalidRequestError.of("{param} must be at least 1; 0 only scores the prompt", param=name)
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequestError("prompt_logprobs are not available with stream: true", param="prompt_logprobs")


def _no_stop_trim(body: SamplingFields) -> bool | None:
    ours, alias = body.no_stop_trim, body.include_stop_str_in_output
    if ours is not None and alias is not None and ours != alias:
        raise InvalidRequestError(
            "no_stop_trim and include_stop_str_in_output name the same parameter; give one", param="no_stop_trim"
        )
    return alias if ours is None else ours
