"""Muse Glimmer's format: each message has a recipient. What is to itself is reasoning, what is to the user content."""

import dataclasses
import re

from palladio.http.reasoning.family import PromptEnd, ReasoningFamily
from palladio.http.reasoning.harmony import MESSAGE, START, Channels, HarmonyParser, Kind, last_message
from palladio.http.reasoning.reasoning_parser import ReasoningParser
from palladio.runtime.interface.request.grammar_spec import Thinking
from palladio.runtime.text.tokenizers.stop_strings import Marks
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

NEXT, END = "<|eom|>", "<|eot|>"  # after a message that others follow, and after the last one
_SELF = "self"
_TEXT = ("user", "commentary")
_find_recipient = re.compile(r"\bto=([^\s<]+)").search


def _kind_of(header: str) -> Kind:
    recipient = _find_recipient(header)
    if recipient is None or recipient[1] in _TEXT:
        return "content"
    return "reasoning" if recipient[1] == _SELF else "call"


_BODY_END = Marks((NEXT, END, START))
_MUSE = Channels(beginnings=(START, MESSAGE, "to="), closers=(NEXT, END), ends=_BODY_END, kind=_kind_of)


@dataclasses.dataclass(frozen=True, slots=True)
class MuseFamily(ReasoningFamily):
    """Muse Glimmer."""

    @property
    def specials(self) -> tuple[str, ...]:
        return (START, MESSAGE, NEXT, END)

    def new_parser(self, end: PromptEnd, *, has_tools: bool = False, keep_tags: bool = False) -> ReasoningParser:
        return HarmonyParser(_MUSE, opening=last_message(end), keep_calls=has_tools, keep_tags=keep_tags)

    def thinking(
        self, tokenizer: Tokenizer, end: PromptEnd, budget: int | None, *, has_grammar: bool, has_tools: bool
    ) -> Thinking | None:
        """With tools, until the message to itself ends; else until one to the user begins."""
        header, is_inside, _ = last_message(end).partition(MESSAGE)
        if is_inside and f"to={_SELF}" not in header:
            return None
        closing = (NEXT,) if has_tools else (f"{START}assistant to={_TEXT[0]}", MESSAGE)
        telling, *others = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in closing)
        return Thinking(
            start_ids=tuple(tokenizer.encode(f" to={_SELF}{MESSAGE}", add_special_tokens=False)),
            end_ids=sum(others, telling),
            begun=bool(is_inside) or has_grammar or not has_tools,
            budget=budget,
            num_telling=len(telling) if others else None,
        )

    def guess_end(self, answer: str) -> PromptEnd:
        return PromptEnd("")
