"""ChatRun: a conversation on the engine, whichever route it came by."""

import asyncio
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Self

from palladio.http.chat.chat_output import ChatMessage, MessagePlan
from palladio.http.chat.chat_plan import ChatPlan, plan_chat
from palladio.http.chat.template_output import NewReader, TemplateMessageParser, TemplateStream
from palladio.http.generation.context import Call, Context
from palladio.http.generation.output_stream import OutputStream
from palladio.http.generation.params import request_name
from palladio.http.generation.usage import Usage
from palladio.http.generation.whole import collect, feed
from palladio.http.prompts.text_encoding import ChatPrompt, TextEncoder, encode_chat, run_encoding
from palladio.http.prompts.tools import tools_size
from palladio.http.reasoning.family import PromptEnd
from palladio.http.wire.body import LARGE_BODY
from palladio.http.wire.fields import AS_SENT, FieldMap, Warnings
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
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
    request: for the engine, with its grammar and the bounds of reasoning.
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
            context.names.answering(body.model)
            name, options = request_name(body, call.request_id), call.options(body)
        before = call.warnings if warnings is None else warnings
        chat = await translate(context, body, before, names, name, options, reasoning_is_optional=reasoning_is_optional)
        chat.warnings.note_since(call.warnings, context.note_warning)
        request = dataclasses.replace(chat.request, lowers_length=True) if lowers_length else chat.request
        if chat.new_reader is None:
            stream = OutputStream(context, [request], origin=origin, names=chat.names)
        else:
            stream = TemplateStream(context, request, chat.new_reader, origin=origin, names=chat.names)
        return cls(context, call, request, chat.plan, chat.warnings, stream)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.context.facts.tokenizer

    def renewed(self) -> Self:
        """The same once more, for one that the engine has refused.

        Raises:
            PalladioError: it does not fit the engine any more.
        """
        return dataclasses.replace(self, stream=self.stream.renewed())

    async def start(self, *, keeps_alive: bool = True) -> OutputStream:
        """Its outputs as they come. The first of them is there, or a comment is due.

        Args:
            keeps_alive: comments may come between its events, see `OutputStream.start`.

        Raises:
            PalladioError: what went wrong before the first output.
            HttpError: the client went away.
        """
        return await self.call.wait(self.stream.start(keeps_alive=keeps_alive))

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
        await self.call.wait(feed(self.stream, write))

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
    new_reader: makes what reads a sample by the response template; None: none does.
    """

    request: GenerationRequest
    plan: MessagePlan
    names: FieldMap
    warnings: Warnings
    new_reader: NewReader | None = None


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
    with names.renaming():
        facts = context.facts
        template = await facts.template.for_request(body.chat_template)
    make_plan = functools.partial(
        plan_chat,
        *(body, facts, template, before, names),
        reasoning_is_optional=reasoning_is_optional,
        is_counted=is_counted,
    )
    # Checks of tools look at each of their parameters.
    plan = await asyncio.to_thread(make_plan) if tools_size(body) > LARGE_BODY else make_plan()
    prompt, grammar = await encode_plan(plan, context.counting_encoder if is_counted else context.encoder)
    request, reader = join_chat(
        *(plan, prompt, grammar, facts.tokenizer, request_id, options),
        received=received,
        lowers_length=context.config.allow_auto_truncate,
    )
    new_reader = None
    if plan.response is not None:
        tools = plan.tools.template_tools or ()
        new_reader = functools.partial(context.template_readers.reader, plan.response, prompt.text, tools)
    return TranslatedChat(request, reader, plan.names, plan.warnings, new_reader)


async def encode_plan(plan: ChatPlan, encoder: TextEncoder) -> tuple[ChatPrompt, Grammar | None]:
    """The prompt and the grammar of a plan.

    Raises:
        InvalidRequestError: see `encode_chat` and `ChatPlan.write_grammar`; in the client's names.
    """
    with plan.names.renaming():
        if isinstance(plan.prompt, ChatPrompt):
            return plan.prompt, await run_encoding(plan.write_grammar, plan.grammar_size)
        return await encode_chat(plan.template, encoder, plan.prompt, plan.write_grammar, plan.grammar_size)


def join_chat(
    plan: ChatPlan,
    prompt: ChatPrompt,
    grammar: Grammar | None,
    tokenizer: Tokenizer,
    request_id: str,
    options: RequestOptions,
    *,
    received: float,
    lowers_length: bool,
) -> tuple[GenerationRequest, MessagePlan]:
    """
    Args:
        received, lowers_length: see GenerationRequest.

    Raises:
        InvalidRequestError: the engine could not take it; in the client's names.
    """
    reasoning, tools = plan.reasoning, plan.tools
    end = PromptEnd(prompt.text, prompt.continued)
    has_tools, is_off = tools.reads_calls, plan.reasoning_is_off
    with plan.names.renaming():
        thinking = reasoning.thinking(
            *(tokenizer, end), has_grammar=grammar is not None, has_tools=has_tools, is_off=is_off
        )
        of_reasoning = reasoning.visible_special_ids(tokenizer)
        of_template = () if plan.response is None else plan.response.visible_special_ids(tokenizer)
        params = dataclasses.replace(
            plan.params,
            grammar=grammar,
            visible_special_ids=tuple(dict.fromkeys((*of_reasoning, *tools.visible_special_ids, *of_template))),
            thinking=thinking,
            closing=reasoning.closing(tokenizer, end, has_tools=has_tools, is_off=is_off),
        )
        request = GenerationRequest(
            *(request_id, prompt.token_ids, params),
            received=received,
            options=options,
            default_length=plan.default_length,
            lowers_length=lowers_length,
        )
    if plan.response is not None:
        functions = tools.functions
        new_whole = functools.partial(TemplateMessageParser, reasoning, functions, parallel=tools.is_parallel)
        return request, MessagePlan(reasoning, end, new_whole=new_whole)
    return request, MessagePlan(reasoning, end, tools.new_parser if tools.reads_calls else None)
