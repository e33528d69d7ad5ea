"""Prompts of the text routes: strings or token ids, one or many → token ids."""

from collections.abc import Sequence
from typing import TypeGuard

from palladio.http.prompts.text_encoding import TextEncoder, Truncation, run_encoding
from palladio.http.wire.protocol_completions import Prompt
from palladio.http.wire.protocol_generate import TokenIds
from palladio.runtime.interface.errors import InvalidRequestError

MAX_SAMPLES = 4096  # prompts × n in one request; more would hold one connection for very long
MAX_PAIRED = 1 << 25  # characters of prompts that share a text, as much as the largest body holds


def numbered_ids(name: str, count: int) -> list[str]:
    """The engine's ids for a request: the client's id, numbered if there are several prompts."""
    return [name] if count == 1 else [f"{name}.{position}" for position in range(count)]


def check_num_prompts(count: int, param: str) -> None:
    if count > MAX_SAMPLES:
        raise InvalidRequestError(f"a request takes at most {MAX_SAMPLES} prompts, got {count}", param=param)


def check_num_samples(num_prompts: int, num_samples: int) -> None:
    """
    Args:
        num_samples: of all prompts together.

    Raises:
        InvalidRequestError: they are too many.
    """
    if num_samples > MAX_SAMPLES:
        raise InvalidRequestError(
            f"a request takes at most {MAX_SAMPLES} samples (prompts × n), got {num_samples} of {num_prompts} prompts; "
            "lower n or send fewer prompts",
            param="n",
        )


def check_paired_size(size: int, param: str) -> None:
    """Check the size of pairs in which one text is repeated.

    Args:
        size: characters or token ids of all prompts together.

    Raises:
        InvalidRequestError: they are too many.
    """
    if size > MAX_PAIRED:
        message = (
            "{param} make prompts of {size} characters together, over the limit of {most}: send fewer, or in parts"
        )
        raise InvalidRequestError.of(message, param=param, size=size, most=MAX_PAIRED)


def split_prompts(prompt: Prompt, param: str) -> list[str] | list[list[int]]:
    """The single prompts of any of the four forms.

    Raises:
        InvalidRequestError: there is none, one is empty, or there are too many.
    """
    many = [prompt] if isinstance(prompt, str) or _is_flat(prompt) else prompt
    check_num_prompts(len(many), param)
    if not all(many) or not many:
        raise InvalidRequestError.of("{param} must not be empty", param=param)
    return many  # type: ignore[return-value]  # the wire model has checked the forms


def given_prompts(text: str | list[str] | None, input_ids: TokenIds | None) -> tuple[Prompt, str]:
    """What SGLang's native routes are given, and under which name.

    Raises:
        InvalidRequestError: none of the two, or both.
    """
    if text is not None and input_ids is None:
        return text, "text"
    if input_ids is not None and text is None:
        return input_ids, "input_ids"
    raise InvalidRequestError("give one of text and input_ids", param="text")


def prompt_names(rid: str | list[str] | None, generated: str, count: int) -> tuple[str, list[str]]:
    """The request's name, and the engine's ids.

    Raises:
        InvalidRequestError: `rid` is a list, and not of one id for each prompt.
    """
    if isinstance(rid, list):
        if len(rid) != count or len(set(rid)) != count:
            raise InvalidRequestError(f"rid must be {count} different ids, one for each prompt", param="rid")
        return generated, rid
    name = rid or generated
    return name, numbered_ids(name, count)


async def encode_prompts(
    encoder: TextEncoder,
    prompts: Sequence[str] | Sequence[list[int]],
    *,
    add_special_tokens: bool = True,
    truncation: Truncation | None = None,
) -> list[list[int]]:
    """Tokenize texts; token ids pass.

    Args:
        truncation: how prompts that are too long are cut.
    """
    size = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    return await run_encoding(
        lambda: [encode_prompt(encoder, prompt, add_special_tokens, truncation) for prompt in prompts], size
    )


def encode_prompt(
    encoder: TextEncoder, prompt: str | list[int], add_special_tokens: bool, truncation: Truncation | None
) -> list[int]:
    """One of `encode_prompts`."""
    if isinstance(prompt, str):
        return encoder.encode(prompt, add_special_tokens, truncation)
    return prompt if truncation is None else truncation.cut(prompt)


def token_lists(tokens: list[int] | list[list[int]]) -> list[list[int]]:
    """One list of token ids, or several, as several: those themselves."""
    return [tokens] if _is_flat(tokens) else tokens  # type: ignore[return-value]  # the wire model has checked them


def _is_flat(checked: list[str] | list[int] | list[list[int]]) -> TypeGuard[list[int]]:
    """Whether it is one list of token ids; a wire model has checked every item."""
    return not checked or type(checked[0]) is int
