"""POST /tokenize and /detokenize, with and without /v1."""

import asyncio
import functools
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Response

from palladio.http.chat.chat_plan import warn_of_generic
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.generation.context import Context
from palladio.http.generation.logprobs import token_name
from palladio.http.generation.prompts import check_num_prompts, encode_prompts, token_lists
from palladio.http.prompts.text_encoding import Conversation, encode_chat, run_encoding
from palladio.http.prompts.tools import ToolPlan, tools_size
from palladio.http.wire.body import LARGE_BODY, JsonBody, describe_body
from palladio.http.wire.fields import AS_SENT, FieldMap, WarningList
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.http.wire.protocol_tokenize import DetokenizeRequest, TokenizeRequest
from palladio.runtime.interface.errors import InvalidRequestError

DETOKENIZE_CONTEXTS = 8  # how many contexts of ids may be turned into text at a time
TOKEN_SIZE = 8  # characters that a token counts for, and a little more

_OF_MESSAGES = (
    *("add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    *("tools", "tool_choice", "reasoning_effort"),
)


def tokenize_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/tokenize", openapi_extra=describe_body(TokenizeRequest))
    @router.post("/tokenize", openapi_extra=describe_body(TokenizeRequest))
    async def tokenize(body: Annotated[TokenizeRequest, Depends(JsonBody(TokenizeRequest))]) -> Response:
        """A list of prompts gives lists of tokens and counts."""
        context.require_ready()
        context.names.answering(body.model)
        names = AS_SENT if body.messages is None else FieldMap(paths={"prompt": "messages"})
        warnings = WarningList(context.no_warnings, names)
        with names.renaming():
            batch = await _tokenize(context, body, warnings)
        warnings.found.note_since(context.no_warnings, context.note_warning)
        single = not isinstance(body.prompt, list)
        tokenizer, max_model_len = context.facts.tokenizer, context.facts.max_model_len

        def answer() -> Response:
            fields: dict[str, Any] = {
                "tokens": batch[0] if single else batch,
                "count": len(batch[0]) if single else [len(ids) for ids in batch],
                "max_model_len": max_model_len,
            }
            if body.return_token_strs:
                texts = [[token_name(tokenizer, token_id) for token_id in ids] for ids in batch]
                fields["token_strs"] = texts[0] if single else texts
            return _json(fields | warnings.found.fields())

        return await run_encoding(answer, sum(map(len, batch)))

    @router.post("/v1/detokenize", openapi_extra=describe_body(DetokenizeRequest))
    @router.post("/detokenize", openapi_extra=describe_body(DetokenizeRequest))
    async def detokenize(body: Annotated[DetokenizeRequest, Depends(JsonBody(DetokenizeRequest))]) -> Response:
        """SGLang reads `text`, vLLM reads `prompt`."""
        context.require_ready()
        context.names.answering(body.model)
        tokenizer, vocab_size = context.facts.tokenizer, context.engine.info.vocab_size
        lists = token_lists(body.tokens)
        count, limit = sum(map(len, lists)), DETOKENIZE_CONTEXTS * context.facts.max_model_len
        if count > limit:
            message = (
                f"tokens takes at most {limit} ids, {DETOKENIZE_CONTEXTS} times the context; got {count}. Send them in "
                "parts"
            )
            raise InvalidRequestError(message, param="tokens")
        check_num_prompts(len(lists), "tokens")

        def answer() -> Response:
            texts: list[str] = []
            for ids in lists:
                if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
                    raise InvalidRequestError(f"tokens must be ids in 0 … {vocab_size - 1}", param="tokens")
                texts.append(tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens is not False))
            text = texts[0] if lists is not body.tokens else texts
            return _json({"text": text, "prompt": text})

        return await run_encoding(answer, TOKEN_SIZE * count)

    return router


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


async def _tokenize(context: Context, body: TokenizeRequest, warnings: WarningList) -> list[list[int]]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("give one of prompt and messages", param="prompt")
    if body.messages is not None:
        chat = ChatRequest(
            messages=body.messages,
            tools=body.tools,
            tool_choice=body.tool_choice,
            reasoning_effort=body.reasoning_effort,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        facts = context.facts
        tokenizer, template = facts.tokenizer, facts.template
        make_plan = functools.partial(
            ToolPlan.of, chat, facts.tool_format, tokenizer, is_written=template.reads_tools(tokenizer)
        )
        plan = await asyncio.to_thread(make_plan) if tools_size(chat) > LARGE_BODY else make_plan()
        if plan.is_generic:
            warn_of_generic(chat, warnings)
        template_tools = template.tools_to_write(tokenizer, plan)
        variables = template.variables(tokenizer, tools=template_tools is not None)
        reasoning = ReasoningPlan.of(chat, facts.reasoning, variables, warnings)
        conversation = Conversation(
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            kwargs={**(body.chat_template_kwargs or {}), **reasoning.template_kwargs},
            tools=template_tools,
        )
        encoder = context.counting_encoder  # the grammar is not needed, but tools that have none are refused
        prompt, _ = await encode_chat(template, encoder, conversation, lambda: plan.grammar, tools_size(chat))
        return [prompt.token_ids]
    for field in _OF_MESSAGES:
        if field in body.model_fields_set:
            raise InvalidRequestError.of("{param} needs messages", param=field)
    assert body.prompt is not None
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    check_num_prompts(len(prompts), "prompt")
    context.counting_encoder.check_counted(sum(map(len, prompts)))
    if not prompts:
        raise InvalidRequestError("prompt must not be empty", param="prompt")
    return await encode_prompts(
        context.counting_encoder, prompts, add_special_tokens=body.add_special_tokens is not False
    )
