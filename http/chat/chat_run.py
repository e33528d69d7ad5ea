"""POST /v1/chat/completions, and ChatRun: a conversation on the engine, whichever route it came by."""

import dataclasses
import time
from collections.abc import Callable, Collection
from typing import Any, Self

import orjson
from fastapi import APIRouter, Response

from palladio.http.chat.chat_output import ChatMessage, MessageChunks, MessagePlan
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.generation.context import Context
from palladio.http.generation.generation import Call, Endpoint, OutputStream, Usage, finish_fields
from palladio.http.generation.logprobs import chat_logprobs, prompt_logprobs
from palladio.http.generation.params import (
    check_scoring_only,
    default_length,
    request_name,
    sampling_params,
    structured_output,
)
from palladio.http.generation.sse import ChatChunks, EventStream, StreamSettings, with_warnings
from palladio.http.generation.whole import answer_size, collect
from palladio.http.prompts.chat_messages import Truncation, run_encoding
from palladio.http.prompts.chat_template import ChatPrompt, ChatTemplate
from palladio.http.prompts.tools import ToolPlan, tools_size
from palladio.http.reasoning.family import PromptEnd
from palladio.http.wire.errors import ErrorBody, FieldNames, RequestNames
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.interface.request.request_options import RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class ChatAnswer:
    """Attributes:
    outputs: the whole samples, and messages what is made of their texts, by index.
    """

    outputs: list[RequestOutput]
    messages: list[ChatMessage]
    usage: Usage


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRun:
    """Attributes:
    request: what the engine is told, grammar and bounds of reasoning included.
    plan: how to read a sample's text.
    """

    context: Context
    call: Call
    request: GenerationRequest
    plan: MessagePlan
    stream: OutputStream

    @classmethod
    async def prepare(
        cls,
        context: Context,
        call: Call,
        body: ChatRequest,
        *,
        reasoning_is_optional: bool = False,
        lowers_length: bool = False,
    ) -> Self:
        """Everything up to the engine.

        Args:
            reasoning_is_optional: see `ReasoningPlan.of`.
            lowers_length: see GenerationRequest; it is so with --allow-auto-truncate in any case.

        Raises:
            EngineNotReadyError, EngineDeadError: no engine runs.
            ModelNotFoundError: it is not the model that is served.
            InvalidRequestError: a field is wrong, or has no effect with this model; or it makes embeddings.
        """
        context.require_generation()
        origin = call.origin(no_logs=body.no_logs, log_metrics=body.log_metrics)
        context.model_name(body.model)
        name, options = request_name(body, call.request_id), call.options(body)
        request, plan = await translate(
            context, body, call.names, name, options, reasoning_is_optional=reasoning_is_optional
        )
        if lowers_length:
            request = dataclasses.replace(request, lowers_length=True)
        return cls(context, call, request, plan, OutputStream(context, [request], origin=origin))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.context.tokenizer

    def renewed(self) -> Self:
        """The same once more, for one that the engine has refused.

        Raises:
            PalladioError: it does not fit the engine any more.
        """
        return dataclasses.replace(self, stream=self.stream.renewed())

    async def start(self) -> OutputStream:
        """Its outputs as they come, the first of which is there.

        Raises:
            PalladioError: what went wrong before the first output.
            HttpError: the client went away.
        """
        return await self.call.wait(self.stream.start())

    async def collect(self) -> ChatAnswer:
        """Waits for all of it.

        Raises:
            PalladioError: what went wrong.
            HttpError: the client went away.
        """
        outputs, usage = await self.call.wait(collect(self.stream))
        return await run_encoding(lambda: self._read(outputs, usage), sum(len(output.text) for output in outputs))

    async def feed(self, write: Callable[[RequestOutput], object]) -> None:
        """Waits for all of it, and hands each output on as it comes.

        Raises:
            PalladioError: what went wrong.
            HttpError: the client went away.
        """
        await self.call.wait(self.stream.feed(write))

    def _read(self, outputs: list[RequestOutput], usage: Usage) -> ChatAnswer:
        messages = [ChatMessage.read(self.plan.new_parser(), output.text) for output in outputs]
        for output in outputs:
            counter = self.plan.new_counter(self.tokenizer, self.request.params)
            if counter is not None:
                counter.add(output.token_ids)
                usage.note_reasoning(output.index, counter.count)
        return ChatAnswer(outputs, messages, usage)


async def translate(
    context: Context,
    body: ChatRequest,
    names: RequestNames,
    request_id: str = "",
    options: RequestOptions = RequestOptions(),
    *,
    reasoning_is_optional: bool = False,
    is_counted: bool = False,
) -> tuple[GenerationRequest, MessagePlan]:
    """What the engine is to be told, and how its answer is to be read.

    Args:
        names: of the request's fields, which are told what the engine calls them.
        reasoning_is_optional: see `ReasoningPlan.of`.
        is_counted: the prompt is not to be answered: it stays whole, however long it is.

    Raises:
        InvalidRequestError: a field is wrong, or has no effect with this model.
    """
    received = time.time()
    limit_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    _check_together(body)
    tokenizer = context.tokenizer
    grammar, grammar_field = structured_output(body, names)
    tool_format, grammars, size = context.tool_format, context.engine.config.grammar, tools_size(body)
    template = await context.chat_template.for_request(body.chat_template)
    is_written = body.input_ids is not None or template.reads_tools(tokenizer)
    tools = await run_encoding(lambda: ToolPlan.of(body, tool_format, tokenizer, grammars, is_written=is_written), size)
    template_tools = template.tools_to_write(tokenizer, tools)
    variables = template.variables(tokenizer, tools=template_tools is not None)
    if body.chat_template_kwargs or body.verbosity or body.enable_thinking:
        body = _without_unread(template, context, body, variables, names)
    reasoning = ReasoningPlan.of(body, context.reasoning, variables, names, is_optional=reasoning_is_optional)
    is_of_tools = tools.grammar is not None and (grammar is None or tools.is_forced)
    asks = "tools" if is_of_tools else grammar_field
    names.add(engine_names(body, limit_name, asks))
    if tools.is_generic:
        warn_of_generic(names)
    params = _params(body, context, limit_name, grammar)
    length = default_length(params, context.sampling_defaults)
    reserved = params.max_tokens if length is None else length
    kwargs = {**(body.chat_template_kwargs or {}), **reasoning.template_kwargs}
    truncation = None if is_counted else context.truncation(body.truncate_prompt_tokens, reserved)
    if body.input_ids is not None:
        prompt = given_prompt(body, context, reasoning, truncation)
    else:
        prompt = await template.encode(
            context.counting_encoder if is_counted else context.encoder,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            kwargs=kwargs,
            tools=template_tools,
            truncation=truncation,
        )
    if tools.grammar is not None or grammar is not None:
        grammar = await run_encoding(lambda: tools.grammar_with(grammar, grammar_field), size)
    end, is_off = PromptEnd(prompt.text, prompt.continued), reasoning.is_off(template.settings(kwargs))
    thinking = reasoning.thinking(
        tokenizer, end, has_grammar=grammar is not None, has_tools=tools.reads_calls, is_off=is_off
    )
    params = dataclasses.replace(
        params,
        grammar=grammar,
        visible_special_ids=(*reasoning.visible_special_ids(tokenizer), *tools.visible_special_ids),
        thinking=thinking,
    )
    plan = MessagePlan(reasoning, end, tools.new_parser if tools.reads_calls else None)
    request = GenerationRequest(
        *(request_id, prompt.token_ids, params),
        received=received,
        options=options,
        default_length=length,
        lowers_length=context.config.allow_auto_truncate,
    )
    return request, plan


def warn_of_generic(names: RequestNames) -> None:
    """
    Raises:
        InvalidRequestError: warnings are errors (--unknown-fields refuse).
    """
    message = "{param}: the chat template does not write them into the prompt"
    error = InvalidRequestError.of(message, param="tools", code="unsupported_parameter")
    names.warn(error, outcome="they stand there as plain text, and calls are read as JSON")


def _check_together(body: ChatRequest) -> None:
    """
    Raises:
        InvalidRequestError: fields contradict each other, or one needs another.
    """
    if len({body.max_tokens, body.max_completion_tokens} - {None}) > 1:
        other = {"other": "max_completion_tokens"}
        raise InvalidRequestError.of("{param} and {other} differ; give one", param="max_tokens", fields=other)
    for name, value in (("top_logprobs", body.top_logprobs), ("logprob_token_ids", body.logprob_token_ids)):
        if value and not body.logprobs:
            other = {"logprobs": "logprobs"}
            raise InvalidRequestError.of("{param} needs {logprobs}: true", param=name, fields=other)
    if not body.messages and body.input_ids is None:
        other = {"other": "input_ids"}
        raise InvalidRequestError.of(
            "{param} is required: at least 1 message, or {other}", param="messages", fields=other
        )


def _without_unread(
    template: ChatTemplate, context: Context, body: ChatRequest, variables: Collection[str], names: RequestNames
) -> ChatRequest:
    """The request without hints that the model does not read, of which its client is warned.

    Args:
        variables: that the chat template reads.

    Raises:
        InvalidRequestError: they may not pass, or contradict each other.
    """
    enable_thinking, verbosity = body.enable_thinking, body.verbosity
    kwargs = template.read_kwargs(context.tokenizer, body.chat_template_kwargs or {}, names)
    if enable_thinking and context.reasoning is None:
        message = "{param} has no effect: this model is not known to reason (see --reasoning-parser)"
        names.warn(InvalidRequestError.of(message, param="enable_thinking", code="unsupported_parameter"))
        enable_thinking = None
    if verbosity is not None and "verbosity" in variables:
        given = kwargs.setdefault("verbosity", verbosity)
        if given != verbosity:
            message = "{param} is {verbosity!r}, in chat_template_kwargs {given!r}; give one"
            raise InvalidRequestError.of(message, param="verbosity", verbosity=verbosity, given=given)
    elif verbosity not in (None, "medium"):
        message = "{param} has no effect: the chat template does not read it"
        names.warn(InvalidRequestError.of(message, param="verbosity", code="unsupported_parameter"))
    return body.model_copy(update={"enable_thinking": enable_thinking, "chat_template_kwargs": kwargs})


_OF_RENDERING = (
    *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("chat_template", "chat_template_kwargs"),
)
_TAIL = 256  # tokens of a given prompt that are looked at for the beginning of reasoning


def given_prompt(
    body: ChatRequest, context: Context, reasoning: ReasoningPlan, truncation: Truncation | None
) -> ChatPrompt:
    """The prompt of a request that brings its token ids: nothing is rendered.

    Raises:
        InvalidRequestError: there are none, one is not in the vocabulary, or a field of rendering is given as well.
    """
    assert body.input_ids is not None
    toggles = ("thinking", "reasoning_effort", "reasoning") if reasoning.template_kwargs else ()
    for name in (*_OF_RENDERING, *toggles):
        if name in body.model_fields_set:
            other = {"other": "input_ids"}
            message = "{param} has no effect with {other}, which is the prompt as it is"
            raise InvalidRequestError.of(message, param=name, fields=other, code="unsupported_parameter")
    most = context.engine.info.vocab_size - 1
    if not body.input_ids or min(body.input_ids) < 0 or max(body.input_ids) > most:
        raise InvalidRequestError(f"input_ids must be token ids in 0 … {most}, one at least", param="input_ids")
    token_ids = body.input_ids if truncation is None else truncation.cut(body.input_ids)
    tail = context.tokenizer.decode(token_ids[-_TAIL:], skip_special_tokens=False)
    return ChatPrompt(tail, list(token_ids), None)


def engine_names(body: ChatRequest, limit_name: str, grammar_field: str) -> FieldNames:
    """What the engine's fields are in a chat request. Args: grammar_field: that asks for the grammar."""
    paths = {"max_tokens": limit_name, "logprobs": "top_logprobs", "grammar": grammar_field}
    paths["prompt"] = "messages" if body.input_ids is None else "input_ids"
    return FieldNames(paths=paths | ({"tools": "functions", "tool_choice": "function_call"} if body.functions else {}))


def _params(body: ChatRequest, context: Context, limit_name: str, grammar: Grammar | None) -> SamplingParams:
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    check_scoring_only(body, max_tokens, limit_name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, context.sampling_defaults, max_tokens=max_tokens, logprobs=logprobs, grammar=grammar)


async def complete_chat(context: Context, call: Call, body: ChatRequest) -> Response:
    """
    Raises:
        PalladioError: what went wrong before the status was sent.
        HttpError: the client went away.
    """
    run = await ChatRun.prepare(context, call, body)
    head = {
        "id": run.request.request_id,
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(run.request.received),
        "model": context.model_name(body.model),
        "system_fingerprint": context.system_fingerprint,
    }
    if body.stream:
        stream = await run.start()
        settings = StreamSettings.of(body, head, context.config.stream_interval, stream)
        if run.plan.is_plain:
            return EventStream(stream, with_warnings(ChatChunks(settings, run.tokenizer), call.names))
        chunks = MessageChunks(settings, run.tokenizer, run.plan, run.request.params)
        return EventStream(stream, with_warnings(chunks, call.names))
    answer = await run.collect()
    outputs, prompt_ids = answer.outputs, run.request.prompt_ids

    def write() -> Response:
        choices = [_choice(*pair, body, run) for pair in zip(outputs, answer.messages, strict=True)]
        fields: dict[str, Any] = head | {"choices": choices, "usage": answer.usage.as_dict()} | context.metadata()
        fields |= call.names.warnings()
        if body.prompt_logprobs is not None:
            scores = outputs[0].prompt_logprobs or []
            fields["prompt_logprobs"] = prompt_logprobs(run.tokenizer, scores, body.prompt_logprobs)
        if body.return_token_ids:
            fields["prompt_token_ids"] = prompt_ids
        if body.return_timings:
            fields["timings"] = answer.usage.timings()
        return Response(orjson.dumps(fields), media_type="application/json")

    return await run_encoding(write, answer_size(outputs, [prompt_ids] if body.return_token_ids else ()))


def _choice(output: RequestOutput, message: ChatMessage, body: ChatRequest, run: ChatRun) -> dict[str, Any]:
    logprobs = chat_logprobs(run.tokenizer, output.logprobs or []) if run.request.params.logprobs is not None else None
    fields: dict[str, Any] = {"index": output.index, "message": message.as_dict(), "logprobs": logprobs}
    fields |= finish_fields(output.finish, has_calls=bool(message.calls))
    return fields | {"token_ids": output.token_ids} if body.return_token_ids else fields


CHAT = Endpoint("/v1/chat/completions", ChatRequest, complete_chat)


def stored_router(_context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/chat/completions")
    async def list_completions() -> dict[str, Any]:
        """Whatever is asked for: there is nothing to filter."""
        return {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}

    @router.get("/v1/chat/completions/{completion_id}")
    @router.post("/v1/chat/completions/{completion_id}")
    @router.delete("/v1/chat/completions/{completion_id}")
    @router.get("/v1/chat/completions/{completion_id}/messages")
    async def one_completion(completion_id: str) -> Response:
        message = f"no stored chat completion {completion_id[:256]!r}: this server stores none, even with store: true"
        return ErrorBody(404, message, "completion_id", code="completion_not_found").response()

    return router
