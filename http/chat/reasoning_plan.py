"""ReasoningPlan: what a request's fields about reasoning come to with the model at hand."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Self

from palladio.http.reasoning.family import PromptEnd, ReasoningFamily
from palladio.http.wire.fields import WarningList
from palladio.http.wire.protocol_chat import ChatRequest, Effort, ReasoningOptions, ThinkingOptions
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Thinking
from palladio.runtime.interface.request.sampling_params import check_int
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

EFFORTS: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_EFFORT_VARIABLE = "reasoning_effort"


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningPlan:
    """How one request reasons, and what becomes of it.

    Attributes:
        family: None: nothing is known to be reasoning.
        template_kwargs: variables for the chat template, in addition to the request's own.
        budget: most tokens of reasoning.
        separates: reasoning is not content.
        includes: it is answered at all.
        streams: in a stream, as it comes; else in one piece when it has ended.
    """

    family: ReasoningFamily | None = None
    template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    budget: int | None = None
    separates: bool = True
    includes: bool = True
    streams: bool = True

    @classmethod
    def of(
        cls,
        body: ChatRequest,
        family: ReasoningFamily | None,
        variables: Collection[str],
        warnings: WarningList,
        *,
        is_optional: bool = False,
    ) -> Self:
        """
        Args:
            family: the model's.
            variables: that its chat template reads.
            warnings: gets one of an effort that the model does not know.
            is_optional: the fields allow the model to reason, and change nothing where it cannot.

        Raises:
            InvalidRequestError: fields contradict each other, or one has no effect with this model; `param` names it.
        """
        wishes = _AskedReasoning.of(body)
        options = body.reasoning or ReasoningOptions()
        if body.include_reasoning and options.exclude:
            raise InvalidRequestError(
                "include_reasoning and reasoning.exclude contradict each other", param="reasoning"
            )
        budget_field, budget = wishes.budget
        if budget is not None and family is None and not is_optional:
            raise _without_effect(budget_field, "this model is not known to reason (see --reasoning-parser)")
        kwargs = wishes.template_kwargs(family, variables, warnings, is_optional=is_optional)
        for name, value in kwargs.items():
            given = (body.chat_template_kwargs or {}).get(name, value)
            if given != value:
                field = wishes.switch[0] if name != _EFFORT_VARIABLE else wishes.effort[0]
                message = "{param} sets {name} to {value!r}, chat_template_kwargs to {given!r}; give one"
                raise InvalidRequestError.of(message, param=field, name=name, value=value, given=given)
        return cls(
            family=family,
            template_kwargs=kwargs,
            budget=budget,
            separates=body.separate_reasoning is not False,
            includes=body.include_reasoning is not False and not options.exclude,
            streams=body.stream_reasoning is not False,
        )

    def visible_special_ids(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Special tokens that the family's parser has to see in the text."""
        if self.family is None:
            return ()
        found = (tokenizer.special_id(text) for text in self.family.specials)
        return tuple(token_id for token_id in found if token_id is not None)

    def is_off(self, template_kwargs: Mapping[str, Any]) -> bool:
        """Whether these variables of the chat template, with which it was rendered, turn reasoning off."""
        if self.family is None or template_kwargs.get(_EFFORT_VARIABLE) == "none":
            return self.family is not None
        return self.family.toggle is not None and template_kwargs.get(self.family.toggle) is False

    def thinking(
        self, tokenizer: Tokenizer, end: PromptEnd, *, has_grammar: bool, has_tools: bool, is_off: bool = False
    ) -> Thinking | None:
        """For SamplingParams: where a grammar does not hold yet, and how long that may be.

        Args:
            is_off: reasoning is turned off, whether or not the prompt shows it: a grammar holds at once.
        """
        if self.family is None or not (has_grammar or self.budget is not None):
            return None
        thinking = self.family.thinking(tokenizer, end, self.budget, has_grammar=has_grammar, has_tools=has_tools)
        if thinking is None or not is_off:
            return thinking
        if has_grammar and not thinking.begun:
            return None
        return dataclasses.replace(thinking, budget=0)


@dataclasses.dataclass(frozen=True, slots=True)
class _AskedReasoning:
    """What the fields ask for, whichever way it is written: each with the field that says so.

    Attributes:
        effort: None: nothing is said.
        switch: reasoning on or off; None: nothing is said.
        switches_by_effort: no other field says so.
        budget: None: none.
    """

    effort: tuple[str, Effort | None]
    switch: tuple[str, bool | None]
    switches_by_effort: bool
    budget: tuple[str, int | None]

    @classmethod
    def of(cls, body: ChatRequest) -> Self:
        options = body.reasoning or ReasoningOptions()
        thinking = body.thinking
        of_thinking = thinking if isinstance(thinking, ThinkingOptions) else None
        enabled = of_thinking.type == "enabled" if of_thinking is not None else thinking
        efforts = {_EFFORT_VARIABLE: body.reasoning_effort, "reasoning.effort": options.effort}
        budgets = {
            "thinking_token_budget": body.thinking_token_budget,
            "max_thinking_tokens": body.max_thinking_tokens,
            "thinking.budget_tokens": of_thinking.budget_tokens if of_thinking is not None else None,
            "reasoning.max_tokens": options.max_tokens,
        }
        for name, budget in budgets.items():
            if budget is not None:
                check_int(name, budget, 0, None)
        effort = _agree(efforts)
        by_effort = None if effort[1] is None else effort[1] != "none"
        switches = {
            effort[0]: by_effort,
            "thinking": enabled,
            "enable_thinking": body.enable_thinking,
            "reasoning.enabled": options.enabled,
        }
        by_effort_alone = [name for name, on in switches.items() if on is not None] == [effort[0]]
        return cls(effort, _agree(switches), by_effort_alone, _agree(budgets))

    def template_kwargs(
        self,
        family: ReasoningFamily | None,
        variables: Collection[str],
        warnings: WarningList,
        *,
        is_optional: bool,
    ) -> dict[str, Any]:
        """
        Raises:
            InvalidRequestError: the model has no such setting.
        """
        field, on = self.switch
        if on is None:
            return {}
        effort_field, effort = self.effort
        toggle = family.toggle if family is not None else None
        kwargs: dict[str, Any] = {}
        if toggle in variables:
            kwargs[str(toggle)] = on
        if effort is not None and _EFFORT_VARIABLE in variables and (on or not kwargs):
            known = family.efforts if family is not None else ()
            if known and not on:
                raise _without_effect(effort_field, f"this model always reasons; the least is {known[0]!r}")
            kwargs[_EFFORT_VARIABLE] = _closest(effort, known) if known else effort
        if kwargs or (family is None and not on) or (is_optional and on):
            return kwargs
        why = None
        if family is None:
            why = "this model is not known to reason (see --reasoning-parser)"
        elif not on:
            why = "this model's chat template has no way to turn reasoning off"
        if why is not None and not self.switches_by_effort:
            raise _without_effect(field, why)
        if why is not None or effort is not None:
            warnings.warn(_without_effect(effort_field, why or "this model's chat template does not read it"))
        return kwargs


def _agree(values: Mapping[str, Any]) -> tuple[str, Any]:
    """The value that is given, and its field: any of the fields that say the same.

    Raises:
        InvalidRequestError: two of them differ.
    """
    given = [(name, value) for name, value in values.items() if value is not None]
    if not given:
        return next(iter(values)), None
    (first, value), *others = given
    for name, other in others:
        if other != value:
            message = "{both} contradict each other; give one"
            raise InvalidRequestError.of(message, param=name, fields={"both": (first, name)})
    return first, value


def _closest(effort: Effort, known: tuple[str, ...]) -> str:
    """The value that the model knows."""
    order: list[str] = list(EFFORTS)
    return min(known, key=lambda name: abs(order.index(name) - order.index(effort)))


def _without_effect(field: str, why: str) -> InvalidRequestError:
    return InvalidRequestError.of("{param} has no effect: {why}", param=field, code="unsupported_parameter", why=why)
