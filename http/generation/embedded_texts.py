"""Texts on an engine that makes embeddings: prompts before them, their tokens, their requests and their outputs. Every
route that embeds or classifies texts takes this way."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from palladio.http.generation.context import Call, Context
from palladio.http.generation.output_stream import OutputStream
from palladio.http.generation.params import request_name
from palladio.http.generation.prompts import encode_prompt, numbered_ids
from palladio.http.generation.whole import collect
from palladio.http.prompts.text_encoding import TextEncoder, Truncation, run_encoding
from palladio.http.wire.fields import AS_SENT, FieldMap, WarningList
from palladio.http.wire.protocol import PromptFields
from palladio.http.wire.protocol_completions import Prompt
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS, EmbeddingSpec, embedded
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.pooling_params import EncodedText, VectorKind

MAX_INPUTS = 2048  # OpenAI's


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TextInputs:
    """The texts of a request.

    Attributes:
        given: a text, several, or token ids of one or several.
        param: what the client calls them.
        prompt: stands before each text.
        with_special: the tokenizer adds its special tokens.
        truncation: of long texts; None: they are refused.
        max_tokens: of each text, if none are cut; None: as many as the model takes.
        kinds: what is made of them.
    """

    given: Prompt
    param: str
    prompt: str = ""
    with_special: bool = True
    truncation: Truncation | None = None
    max_tokens: int | None = None
    kinds: tuple[VectorKind, ...] = ("dense",)

    @property
    def each(self) -> list[str] | list[list[int]]:
        """The single ones. Texts may be empty: special tokens may stand for them.

        Raises:
            InvalidRequestError: there are none, or too many.
        """
        given = self.given
        is_one = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
        many: Any = [given] if is_one else given
        if not many:
            raise InvalidRequestError.of("{param} must not be empty", param=self.param)
        check_num_inputs(len(many), self.param)
        return many  # type: ignore[no-any-return]  # the wire model has checked the forms


def require_vectors(context: Context) -> EmbeddingSpec:
    """The embeddings that the engine makes.

    Raises:
        EngineNotReadyError, EngineDeadError: no engine runs.
        InvalidRequestError: it generates text, or its model classifies texts.
    """
    spec = context.require_embedding()
    if spec.classes is not None:
        raise InvalidRequestError("this server's model classifies texts: use /v1/classify, /v1/score or /v1/rerank")
    return spec


def check_num_inputs(count: int, param: str) -> None:
    """
    Raises:
        InvalidRequestError: a request has too many texts.
    """
    if count > MAX_INPUTS:
        raise InvalidRequestError.of(
            "{param} takes at most {most} texts, got {count}", param=param, most=MAX_INPUTS, count=count
        )


def text_truncation(
    context: Context, spec: EmbeddingSpec, asked: int | None, side: str | None = None
) -> Truncation | None:
    """What becomes of a text that is too long.

    Args:
        asked: truncate_prompt_tokens.
        side: "left" cuts the beginning, "right" the end; None: a decoder's text loses its beginning, an encoder's its
            end, as in sentence-transformers.
    """
    found = context.facts.truncation(asked, 0)
    if found is None or (side is None and not spec.is_encoder):
        return found
    return dataclasses.replace(found, keeps_end=side == "left")


def prompt_before(
    context: Context, call: Call, spec: EmbeddingSpec, name: str | None, texts: object
) -> tuple[str, Call]:
    """The prompt that stands before the texts of a request, and the call with a warning if there is none of it.

    Args:
        name: input_type: which of the model's prompts; None: its default one.
        texts: the client's; token ids get no prompt.

    Raises:
        InvalidRequestError: the model has other prompts, or token ids were given.
    """
    is_text = isinstance(texts, str) or (isinstance(texts, list) and bool(texts) and isinstance(texts[0], str))
    if name is None:
        return spec.prompt(None) if is_text else "", call
    if not spec.prompts:
        warnings = WarningList(call.warnings)
        message = "{param} has no effect: this model has no prompts; write what should stand before texts yourself"
        warnings.warn(InvalidRequestError.of(message, param="input_type", code="unsupported_parameter"))
        warnings.found.note_since(call.warnings, context.note_warning)
        return "", dataclasses.replace(call, warnings=warnings.found)
    if not is_text:
        raise InvalidRequestError.of("{param} is only for texts: token ids get no prompt", param="input_type")
    return spec.prompt(name), call


async def encode_texts(context: Context, spec: EmbeddingSpec, texts: TextInputs) -> list[EncodedText]:
    """Tokenize texts, with their prompt before them; token ids pass.

    Raises:
        InvalidRequestError: there are none, or too many; one has no tokens, or more than `max_tokens`.
    """
    each, encoder = texts.each, context.encoder
    size = sum(len(text) + len(texts.prompt) for text in each if isinstance(text, str))
    found = await run_encoding(lambda: [_encode(encoder, spec, texts, text) for text in each], size)
    if not all(one.ids for one in found):
        raise InvalidRequestError.of("{param} must not be empty", param=texts.param)
    longest = max(len(one.ids) for one in found)
    if texts.truncation is None and texts.max_tokens is not None and longest > texts.max_tokens:
        limits = {"limit": "max_tokens"}
        message = "{param} has a text of {longest} tokens, over {limit} ({most})"
        raise InvalidRequestError.of(message, param=texts.param, fields=limits, longest=longest, most=texts.max_tokens)
    return found


def _encode(encoder: TextEncoder, spec: EmbeddingSpec, texts: TextInputs, text: str | list[int]) -> EncodedText:
    if not isinstance(text, str):
        return EncodedText(encode_prompt(encoder, text, texts.with_special, texts.truncation))
    whole = spec.prepared(texts.prompt + text)
    ids = encoder.encode(whole, texts.with_special, texts.truncation)
    if spec.includes_prompt or not texts.prompt:
        return EncodedText(ids)
    return EncodedText(ids, num_skipped=min(_prompt_tokens(encoder, spec, texts), len(ids)))


def _prompt_tokens(encoder: TextEncoder, spec: EmbeddingSpec, texts: TextInputs) -> int:
    """Tokens that a prompt has at the beginning of a text: as it is alone, without the special tokens that end it."""
    prompt = spec.prepared(texts.prompt)
    ids = encoder.encode(prompt, texts.with_special)
    num_behind = encoder.find_frame()[1] if texts.with_special else 0
    return len(ids) - num_behind


async def embed_texts(
    context: Context, call: Call, body: PromptFields, texts: TextInputs, spec: EmbeddingSpec
) -> list[RequestOutput]:
    """The output of each text, in order.

    Raises:
        PalladioError: what went wrong.
        HttpError: the client went away.
    """
    names = FieldMap(paths={"prompt": texts.param})
    with names.renaming():
        encoded = await encode_texts(context, spec, texts)
        requests = embedding_requests(encoded, call, body, texts.kinds)
    return await run_requests(context, call, body, requests, names)


def embedding_requests(
    prompts: Sequence[EncodedText], call: Call, body: PromptFields, kinds: tuple[VectorKind, ...] = ("dense",)
) -> list[GenerationRequest]:
    """To an engine that makes embeddings, one for each prompt."""
    names = numbered_ids(request_name(body, call.request_id), len(prompts))
    options, received = call.options(body), time.time()
    return [
        GenerationRequest(
            *(name, prompt.ids, EMBEDDING_PARAMS),
            received=received,
            options=options,
            first_index=index,
            pooling=prompt.pooling(kinds),
        )
        for index, (name, prompt) in enumerate(zip(names, prompts, strict=True))
    ]


async def run_requests(
    context: Context,
    call: Call,
    body: PromptFields,
    requests: Sequence[GenerationRequest],
    names: FieldMap = AS_SENT,
) -> list[RequestOutput]:
    """The whole output of each.

    Args:
        names: what the client calls the engine's fields.

    Raises:
        PalladioError: one has failed, or was aborted.
        HttpError: the client went away.
    """
    name = request_name(body, call.request_id)
    origin = call.origin(no_logs=body.no_logs, log_metrics=body.log_metrics)
    stream = OutputStream(context, requests, name=name, origin=origin, names=names)
    outputs, _ = await call.wait(collect(stream))
    return [output if output.logprobs else embedded(output) for output in outputs]


def usage_of(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Return OpenAI's usage of the prompts; tokens generated to read a probability do not count."""
    num_tokens = sum(output.prompt_tokens for output in outputs)
    cached = sum(output.cached_tokens for output in outputs)
    return {
        "prompt_tokens": num_tokens,
        "completion_tokens": 0,
        "total_tokens": num_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
