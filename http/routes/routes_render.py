"""POST /v1/chat/completions/render and /v1/completions/render: a request as token ids, for routers that go by prefixes.

The answer is vLLM's `GenerateRequest`; a completion has a list of those, one a prompt. Nothing goes to the engine.
"""

from fastapi import Response

from palladio.http.chat.chat_run import translate
from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.params import request_name
from palladio.http.generation.rendered import rendered, rendered_response
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.routes.routes_completions import read_completion
from palladio.http.wire.protocol_chat import RenderChatRequest
from palladio.http.wire.protocol_completions import RenderCompletionRequest
from palladio.runtime.interface.request.generation_request import GenerationRequest

_Body = RenderChatRequest | RenderCompletionRequest


async def _render_chat(context: Context, call: Call, body: RenderChatRequest) -> Response:
    context.require_generation()
    model = context.names.answering(body.model)
    name, options = request_name(body, call.request_id), call.options(body)
    chat = await translate(context, body, call.warnings, request_id=name, options=options)
    chat.warnings.note_since(call.warnings, context.note_warning)
    request, text = chat.request, chat.plan.end.text if body.input_ids is None else None
    with chat.names.renaming():
        return rendered_response(
            rendered(context, request, model, body.stream, body.stream_options)
            | {"token_offsets": await _offsets(context, body, request, text, is_framed=bool(body.add_special_tokens))}
            | chat.warnings.fields()
        )


async def _render_completion(context: Context, call: Call, body: RenderCompletionRequest) -> Response:
    context.require_generation()
    model = context.names.answering(body.model)
    read = await read_completion(context, call, body)
    is_framed = body.add_special_tokens is not False
    with read.names.renaming():
        return rendered_response(
            [
                rendered(context, request, model, body.stream, body.stream_options)
                | {"token_offsets": await _offsets(context, body, request, prompt, is_framed=is_framed)}
                for request, prompt in zip(read.requests, read.prompts, strict=True)
            ]
        )


async def _offsets(
    context: Context, body: _Body, request: GenerationRequest, prompt: str | list[int] | None, *, is_framed: bool
) -> list[tuple[int, int]] | None:
    """Return the characters of the text that each token of the prompt covers; None: not asked for, or not known.

    Args:
        is_framed: the tokenizer put its special tokens around the text.
    """
    if not body.return_token_offsets or not isinstance(prompt, str):
        return None
    cut = Truncation(len(request.prompt_ids), keeps_end=body.truncate_prompt_tokens is not None)
    return await run_encoding(lambda: context.encoder.spans(prompt, is_framed, cut), len(prompt))


RENDER_CHAT = Endpoint("/v1/chat/completions/render", RenderChatRequest, _render_chat)
RENDER_COMPLETION = Endpoint("/v1/completions/render", RenderCompletionRequest, _render_completion)
