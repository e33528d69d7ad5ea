"""ChatPlan: what a chat request comes to with the model at hand, before anything is rendered, tokenized or compiled."""

import dataclasses
from collections.abc import Collection

from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.generation.model_facts import ModelFacts
from palladio.http.generation.params import check_scoring_only, default_length, sampling_params, structured_output
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.text_encoding import ChatPrompt, Conversation, Truncation
from palladio.http.prompts.tools import ToolPlan, tools_size
from palladio.http.response_templates.spec import ResponseSpec
from palladio.http.wire.fields import AS_SENT, FieldMap, WarningList, Warnings
from palladio.http.wire.protocol_chat import ChatRequest, ToolFields
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.interface.request.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """
    Attributes:
        params: how to sample, but for what the prompt and the grammar add.
        default_length: see GenerationRequest.
        tools: what may be called, and how.
        reasoning: how to reason, and what becomes of that.
        response: the response template that reads the answer; None: parsers of names do.
        answer_grammar: of an answer that calls nothing; None: any text.
        grammar_field: that asks for the answer's grammar.
        grammar_size: what writing the request's grammar counts for, in characters.
        template: renders the conversation.
        prompt: the conversation, or the prompt itself of a request that brings its token ids.
        reasoning_is_off: the template's variables turn reasoning off.
        names: what the client calls the engine's fields.
        warnings: of the whole request.
    """

    params: SamplingParams
    default_length: int | None
    tools: ToolPlan
    reasoning: ReasoningPlan
    response: ResponseSpec | None
    answer_grammar: Grammar | None
    grammar_field: str
    grammar_size: int
    template: ChatTemplate
    prompt: Conversation | ChatPrompt
    reasoning_is_off: bool
    names: FieldMap
    warnings: Warnings

    def write_grammar(self) -> Grammar | None:
        """The request's grammar; None: the answer may be anything. It takes time for large tools.

        Raises:
            InvalidRequestError: a schema cannot be kept to, or not beside calls.
        """
        if not self.tools.has_grammar and self.answer_grammar is None:
            return None
        return self.tools.grammar_with(self.answer_grammar, self.grammar_field)


def plan_chat(
    body: ChatRequest,
    facts: ModelFacts,
    template: ChatTemplate,
    before: Warnings,
    names: FieldMap = AS_SENT,
    *,
    reasoning_is_optional: bool = False,
    is_counted: bool = False,
) -> ChatPlan:
    """
    Args:
        template: of the request, or else the model's.
        before: warnings of what came before.
        names: what the client calls the fields of `body`: errors come out in its names.
        reasoning_is_optional: see `ReasoningPlan.of`.
        is_counted: the prompt is not to be answered: it stays whole, however long it is.

    Raises:
        InvalidRequestError: a field is wrong, or has no effect with this model.
    """
    warnings, tokenizer = WarningList(before, names), facts.tokenizer
    with names.renaming():
        _check_together(body)
        answer_grammar, grammar_field = structured_output(body, warnings)
        is_written = body.input_ids is not None or template.reads_tools(tokenizer)
        tools = ToolPlan.of(body, facts.tool_format, tokenizer, facts.engine.grammar, is_written=is_written)
        template_tools = template.tools_to_write(tokenizer, tools)
        variables = template.variables(tokenizer, tools=template_tools is not None)
        if body.chat_template_kwargs or body.verbosity or body.enable_thinking:
            body = _without_unread(body, facts, template, variables, warnings)
        reasoning = ReasoningPlan.of(
            *(body, facts.reasoning, variables, warnings),
            is_optional=reasoning_is_optional,
            forbidden_ids=facts.forbidden_thoughts,
        )
        if tools.is_generic:
            warn_of_generic(body, warnings)
        if tools.leaves_strict:
            warn_of_strict(body, warnings)
    asks = "tools" if tools.has_grammar and (answer_grammar is None or tools.is_forced) else grammar_field
    names = engine_names(body, asks).within(names)
    with names.renaming():
        params = _params(body, facts, answer_grammar)
        length = default_length(params, facts.sampling_defaults)
        reserved = params.max_tokens if length is None else length
        truncation = None if is_counted else facts.truncation(body.truncate_prompt_tokens, reserved)
        kwargs = {**(body.chat_template_kwargs or {}), **reasoning.template_kwargs}
        prompt: Conversation | ChatPrompt
        if body.input_ids is not None:
            prompt = given_prompt(body, facts, reasoning, truncation)
        else:
            prompt = Conversation(
                body.messages,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                add_special_tokens=body.add_special_tokens,
                kwargs=kwargs,
                tools=template_tools,
                truncation=truncation,
            )
    return ChatPlan(
        params=params,
        default_length=length,
        tools=tools,
        reasoning=reasoning,
        response=None if tools.is_forced or tools.is_generic else facts.response,
        answer_grammar=answer_grammar,
        grammar_field=grammar_field,
        grammar_size=tools_size(body),
        template=template,
        prompt=prompt,
        reasoning_is_off=reasoning.is_off(template.settings(kwargs)),
        names=names,
        warnings=warnings.found,
    )


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


def warn_of_strict(body: ToolFields, warnings: WarningList) -> None:
    """
    Raises:
        InvalidRequestError: warnings are errors (--unknown-fields refuse).
    """
    message = "{param}: strict has no effect: the model's response template has no grammar for its calls"
    error = InvalidRequestError.of(
        message, param="functions" if body.functions else "tools", code="unsupported_parameter"
    )
    warnings.warn(error)


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
    body: ChatRequest, facts: ModelFacts, template: ChatTemplate, variables: Collection[str], warnings: WarningList
) -> ChatRequest:
    """The request without hints that the model does not read, each of which gets a warning.

    Args:
        variables: that the chat template reads.

    Raises:
        InvalidRequestError: they may not pass, or contradict each other.
    """
    enable_thinking, verbosity = body.enable_thinking, body.verbosity
    kwargs = template.read_kwargs(facts.tokenizer, body.chat_template_kwargs or {}, warnings)
    if enable_thinking and facts.reasoning is None:
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
    body: ChatRequest, facts: ModelFacts, reasoning: ReasoningPlan, truncation: Truncation | None
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
    most = facts.info.vocab_size - 1
    if not body.input_ids or min(body.input_ids) < 0 or max(body.input_ids) > most:
        raise InvalidRequestError(f"input_ids must be token ids in 0 … {most}, one at least", param="input_ids")
    token_ids = body.input_ids if truncation is None else truncation.cut(body.input_ids)
    tail = facts.tokenizer.decode(token_ids[-_TAIL:], skip_special_tokens=False)
    return ChatPrompt(tail, list(token_ids), None)


def engine_names(body: ChatRequest, grammar_field: str) -> FieldMap:
    """Map the engine's field names to those of a chat request.

    Args:
        grammar_field: the field that asks for the grammar.
    """
    paths = {"max_tokens": _limit_name(body), "logprobs": "top_logprobs", "grammar": grammar_field}
    paths["prompt"] = "messages" if body.input_ids is None else "input_ids"
    return FieldMap(paths=paths | ({"tools": "functions", "tool_choice": "function_call"} if body.functions else {}))


def _limit_name(body: ChatRequest) -> str:
    return "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"


def _params(body: ChatRequest, facts: ModelFacts, grammar: Grammar | None) -> SamplingParams:
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    check_scoring_only(body, max_tokens, _limit_name(body))
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, facts.sampling_defaults, max_tokens=max_tokens, logprobs=logprobs, grammar=grammar)
