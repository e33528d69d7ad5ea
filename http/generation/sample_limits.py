"""Limits over all samples of a request: each one carries its prompt and its grammar to the engine."""

from collections.abc import Sequence

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.parameter_checks import MAX_STOP_CHARACTERS, STOP_REGEX

MAX_GRAMMAR_BYTES = 16 * 1024 * 1024
MAX_IDS = 1 << 25  # of prompts and of allowed_token_ids
MAX_PATTERNS = 16  # different ones, of all prompts


def check_samples(requests: Sequence[GenerationRequest]) -> None:
    """
    Raises:
        InvalidRequestError: prompts, allowed ids, grammars or stop strings are too large in sum.
    """
    _check_grammars(requests)
    _check_ids(requests)
    _check_stops(requests)


def stop_patterns(requests: Sequence[GenerationRequest]) -> set[str]:
    """The different patterns of `stop_regex`.

    Raises:
        InvalidRequestError: there are more than MAX_PATTERNS.
    """
    patterns = {pattern for request in requests for pattern in request.params.stop_regex}
    if len(patterns) > MAX_PATTERNS:
        message = "{param} takes at most {most} different patterns of all prompts together, got {count}"
        raise InvalidRequestError.of(message, param=STOP_REGEX, most=MAX_PATTERNS, count=len(patterns))
    return patterns


def _check_grammars(requests: Sequence[GenerationRequest]) -> None:
    size = sum(
        request.params.n * len(request.params.grammar.text)
        for request in requests
        if request.params.grammar is not None
    )
    if size > MAX_GRAMMAR_BYTES:
        raise InvalidRequestError.of(
            "the {param} of all samples together is {size} characters, over the limit of {limit}: lower n, send fewer "
            "prompts, or a smaller grammar",
            param="grammar",
            size=size,
            limit=MAX_GRAMMAR_BYTES,
        )


def _check_ids(requests: Sequence[GenerationRequest]) -> None:
    size = sum(request.params.n * _num_ids(request) for request in requests)
    if size > MAX_IDS:
        message = (
            "{param} × the samples are {size} token ids, over the limit of {limit}: lower {n}, or send fewer prompts"
        )
        raise InvalidRequestError.of(message, param="prompt", fields={"n": "n"}, size=size, limit=MAX_IDS)


def _num_ids(request: GenerationRequest) -> int:
    return len(request.prompt_ids) + len(request.params.allowed_token_ids or ())


def _check_stops(requests: Sequence[GenerationRequest]) -> None:
    """Prompts may each have their own, and each automaton is made before the first token."""
    stops = {request.params.stop for request in requests}
    if (size := sum(len(string) for strings in stops for string in strings)) > MAX_STOP_CHARACTERS:
        message = "{param} takes strings of at most {most} characters together, got {size} of all prompts"
        raise InvalidRequestError.of(message, param="stop", most=MAX_STOP_CHARACTERS, size=size)
