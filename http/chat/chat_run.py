"""ChatRun: a conversation on the engine, whichever route it came by."""

import dataclasses
import time
from collections.abc import Callable, Collection
from typing import Self

from palladio.http.chat.chat_output import ChatMessage, MessagePlan
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.generation.context import Context
from palladio.http.generation.generation import Call, OutputStream, Usage
from palladio.http.generation.params import (
    check_scoring_only,
    default_length,
    request_name,
    sampling_params,
    structured_output,
)
from palladio.http.generation.whole import collect
from palladio.http.prompts.chat_messages import Truncation, run_encoding
from palladio.http.prompts.chat_template import ChatPrompt, ChatTemplate
from palladio.http.prompts.tools import ToolPlan, tools_size
from palladio.http.reasoning.family import PromptEnd
from palladio.http.wire.field_map import AS_SENT, FieldMap
from palladio.http.wire.field_warnings import WarningList, Warnings
from palladio.http.wire.protocol_chat import ChatRequest, ToolFields
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.outputs import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions, SamplingParams
from palladio.runtime.interface.request.grammar_spec import Grammar
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
    warnings: of the whole request.
    """

    context: Context
    call: Call
    request: GenerationRequest
    plan: MessagePlan
    warnings: Warnings
    stream: OutputStream

    @classmethod
    async def prepare(
        cls,
        context: Context,
        call: Call,
        body: ChatRequest,
        names: FieldMap = AS_SENT,
        warnings: Warnings | None = None,
        *,
        reasoning_is_optional: bool = False,
        lowers_length: bool = False,
    ) -> Self:
        """Everything up to the engine.

        Args:
            names: what the client calls the fields of `body`.
            warnings: of the translation to `body`; None: there was none, and the call's count.
            reasoning_is_optional: see `ReasoningPlan.of`.
            lowers_length: see GenerationRequest; it is so with --allow-auto-truncate in any case.

        Raises:
            EngineNotReadyError, EngineDeadError: no engine runs.
            ModelNotFoundError: it is not the model that is served.
            InvalidRequestError: a field is wrong, or has no effect with this model; or it makes embeddings.
        """
        with names.renaming():
            context.require_generation()
            origin = call.origin(no_logs=body.no_logs, log_metrics=body.log_metrics)
            context.model_name(body.model)
            name, options = request_name(body, call.request_id), call.options(body)
        before = call.warnings if warnings is None else warnings
        chat = await translate(context, body, before, names, name, options, reasoning_is_optional=reasoning_is_optional)
        chat.warnings.note_since(call.warnings, context.note_warning)
        request = dataclasses.replace(chat.request, lowers_length=True) if lowers_length else chat.request
        stream = OutputStream(context, [request], origin=origin, names=chat.names)
        return cls(context, call, request, chat.plan, chat.warnings, stream)

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


@dataclasses.dataclass(frozen=True, slots=True)
class TranslatedChat:
    """Attributes:
    request: for the engine.
    plan: how its answer is to be read.
    names: what the client calls the engine's fields.
    warnings: of the whole request.
    """

    request: GenerationRequest
    plan: MessagePlan
    names: FieldMap
    warnings: Warnings


async def translate(
    context: Context,
    body: ChatRequest,
    before: Warnings,
    names: FieldMap = AS_SENT,
    request_id: str = "",
    options: RequestOptions = RequestOptions(),
    *,
    reasoning_is_optional: bool = False,
    is_counted: bool = False,
) -> TranslatedChat:
    """
    Args:
        before: warnings of what came before.
        names: what the client calls the fields of `body`: errors come out in its names.
        reasoning_is_optional: see `ReasoningPlan.of`.
        is_counted: the prompt is not to be answered: it stays whole, however long it is.

    Raises:
        InvalidRequestError: a field is wrong, or has no effect with this model.
    """
    received = time.time()
    warnings = WarningList(before, names)
    limit_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    with names.renaming():
        _check_together(body)
        tokenizer = context.tokenizer
        grammar, grammar_field = structured_output(body, warnings)
        tool_format, grammars, size = context.tool_format, context.engine.config.grammar, tools_size(body)
        template = await context.chat_template.for_request(body.chat_template)
        is_written = body.input_ids is not None or template.reads_tools(tokenizer)
        tools = await run_encoding(
            lambda: ToolPlan.of(body, tool_format, tokenizer, grammars, is_written=is_written), size
        )
        template_tools = template.tools_to_write(tokenizer, tools)
        variables = template.variables(tokenizer, tools=template_tools is not None)
        if body.chat_template_kwargs or body.verbosity or body.enable_thinking:
            body = _without_unread(template, context, body, variables, warnings)
        reasoning = ReasoningPlan.of(body, context.reasoning, variables, warnings, is_optional=reasoning_is_optional)
        if tools.is_generic:
            warn_of_generic(body, warnings)
    is_of_tools = tools.grammar is not None and (grammar is None or tools.is_forced)
    asks = "tools" if is_of_tools else grammar_field
    names = engine_names(body, limit_name, asks).within(names)
    with names.renaming():
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
        request = GenerationRequest(
            *(request_id, prompt.token_ids, params),
            received=received,
            options=options,
            default_length=length,
            lowers_length=context.config.allow_auto_truncate,
        )
    plan = MessagePlan(reasoning, end, tools.new_parser if tools.reads_calls else None)
    return TranslatedChat(request, plan, names, warnings.found)


def warn_of_generic(body: ToolFields, warnings: WarningList) -> None:
    """
    Raises:
        InvalidRequestError: warnings are errors (--unknown-fields refuse).
    """
    message, param = "{param}: the chat template does not write them into the prompt", "tools"
    if body.functions:
        param = "functions"
    error = InvalidRequestError.of(message, param=param, code="unsupported_parameter")
    warnings.warn(error, outcome="they stand there as plain text, and calls are read as JSON")


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
    template: ChatTemplate, context: Context, body: ChatRequest, variables: Collection[str], warnings: WarningList
) -> ChatRequest:
    """The request without hints that the model does not read, of which its client is warned.

    Args:
        variables: that the chat template reads.

    Raises:
        InvalidRequestError: they may not pass, or contradict each other.
    """
    enable_thinking, verbosity = body.enable_thinking, body.verbosity
    kwargs = template.read_kwargs(context.tokenizer, body.chat_template_kwargs or {}, warnings)
    if enable_thinking and context.reasoning is None:
        message = "{param} has no effect: this model is not known to reason (see --reasoning-parser)"
        warnings.warn(InvalidRequestError.of(message, param="enable_thinking", code="unsupported_parameter"))
        enable_thinking = None
    if verbosity is not None and "verbosity" in variables:
        given = kwargs.setdefault("verbosity", verbosity)
        if given != verbosity:
            message = "{param} is {verbosity!r}, in chat_template_kwargs {given!r}; give one"
            raise InvalidRequestError.of(message, param="verbosity", verbosity=verbosity, given=given)
    elif verbosity not in (None, "medium"):
        message = "{param} has no effect: the chat template does not read it"
        warnings.warn(InvalidRequestError.of(message, param="verbosity", code="unsupported_parameter"))
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


def engine_names(body: ChatRequest, limit_name: str, grammar_field: str) -> FieldMap:
    """What the engine's fields are in a chat request. Args: grammar_field: that asks for the grammar."""
    paths = {"max_tokens": limit_name, "logprobs": "top_logprobs", "grammar": grammar_field}
    paths["prompt"] = "messages" if body.input_ids is None else "input_ids"
    return FieldMap(paths=paths | ({"tools": "functions", "tool_choice": "function_call"} if body.functions else {}))


def _params(body: ChatRequest, context: Context, limit_name: str, grammar: Grammar | None) -> SamplingParams:
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    check_scoring_only(body, max_tokens, limit_name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, context.sampling_defaults, max_tokens=max_tokens, logprobs=logprobs, grammar=grammar)
