"""A chat request as the engine gets it, and how its samples are to be read."""

import dataclasses
from typing import Self

from palladio.http.chat.chat_output import MessagePlan
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.chat.structured_output import structured_output
from palladio.http.generation.context import Context
from palladio.http.generation.sampling import check_scoring_only, default_length, sampling_params
from palladio.http.prompts.chat_template import ChatPrompt
from palladio.http.prompts.text_encoder import run_encoding
from palladio.http.prompts.tools import ToolPlan, tools_size
from palladio.http.reasoning.family import PromptEnd
from palladio.http.wire.field_names import FieldNames, RequestNames
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.grammar_spec import Grammar
from palladio.runtime.interface.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True, slots=True)
class ChatJob:
    """One request, prepared.

    Attributes:
        params: what the engine is told, grammar and bounds of reasoning included.
        plan: how to read a sample's text.
    """

    prompt: ChatPrompt
    params: SamplingParams
    plan: MessagePlan

    @classmethod
    async def prepare(
        cls,
        context: Context,
        body: ChatRequest,
        names: RequestNames,
        *,
        reasoning_is_optional: bool = False,
        is_counted: bool = False,
    ) -> Self:
        """
        Args:
            names: of the request's fields, which are told what the engine calls them.
            reasoning_is_optional: see `ReasoningPlan.of`.
            is_counted: the prompt is not to be answered: it stays whole, however long it is.

        Raises:
            InvalidRequestError: a field is wrong, or has no effect with this model.
        """
        limit_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        if len({body.max_tokens, body.max_completion_tokens} - {None}) > 1:
            other = {"other": "max_completion_tokens"}
            raise InvalidRequestError.of("{param} and {other} differ; give one", param="max_tokens", fields=other)
        if body.top_logprobs is not None and not body.logprobs:
            other = {"logprobs": "logprobs"}
            raise InvalidRequestError.of("{param} needs {logprobs}: true", param="top_logprobs", fields=other)
        tokenizer = context.tokenizer
        grammar, grammar_field = structured_output(body)
        tool_format, grammars, size = context.tool_format, context.engine.config.grammar, tools_size(body)
        tools = await run_encoding(lambda: ToolPlan.of(body, tool_format, tokenizer, grammars), size)
        template_tools = context.chat_template.tools_to_write(tokenizer, tools)
        variables = context.chat_template.variables(tokenizer, tools=template_tools is not None)
        reasoning = ReasoningPlan.of(body, context.reasoning, variables, is_optional=reasoning_is_optional)
        asks = "tools" if grammar is None and tools.grammar is not None else grammar_field
        names.add(engine_names(body, limit_name, asks))
        params = _params(body, context, limit_name, grammar)
        length = default_length(params, context.sampling_defaults)
        reserved = params.max_tokens if length is None else length
        prompt = await context.chat_template.encode(
            context.counting_encoder if is_counted else context.encoder,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            kwargs={**(body.chat_template_kwargs or {}), **reasoning.template_kwargs},
            tools=template_tools,
            truncation=None if is_counted else context.truncation(body.truncate_prompt_tokens, reserved),
        )
        if tools.grammar is not None or grammar is not None:
            grammar = await run_encoding(lambda: tools.grammar_with(grammar, grammar_field), size)
        end = PromptEnd(prompt.text, prompt.continued)
        params = dataclasses.replace(
            params,
            grammar=grammar,
            visible_special_ids=(*reasoning.visible_special_ids(tokenizer), *tools.visible_special_ids),
            thinking=reasoning.thinking(tokenizer, end, has_grammar=grammar is not None, has_tools=tools.reads_calls),
        )
        return cls(prompt, params, MessagePlan(reasoning, end, tools.new_parser if tools.reads_calls else None))


def engine_names(body: ChatRequest, limit_name: str, grammar_field: str) -> FieldNames:
    """What the engine's fields are in a chat request. Args: grammar_field: that asks for the grammar."""
    paths = {"max_tokens": limit_name, "logprobs": "top_logprobs", "grammar": grammar_field, "prompt": "messages"}
    return FieldNames(paths=paths | ({"tools": "functions", "tool_choice": "function_call"} if body.functions else {}))


def _params(body: ChatRequest, context: Context, limit_name: str, grammar: Grammar | None) -> SamplingParams:
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    check_scoring_only(body, max_tokens, limit_name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, context.sampling_defaults, max_tokens=max_tokens, logprobs=logprobs, grammar=grammar)
