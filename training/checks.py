"""Checks of answers by skill: the right answer, given the sample that the question came from."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.chat import Chat
from training.skills import (
    history,
    palladio_use,
    programming,
    small_talk,
    stories,
    tools,
    unknown,
    world,
)
from training.skills.answers import Entry
from training.skills.countries import COUNTRIES, NUMBERS, bare


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        finish_reason: "stop" if it ended by itself.
        call: name and arguments.
    """

    text: str
    finish_reason: str
    reasoning: str | None = None
    call: tuple[str, Any] | None = None


Check = Callable[[Chat, Answer], bool]
_REFUSALS = (
    *(*unknown.ANSWERS, *unknown.CANNOT, *unknown.NOT_LIVE, *unknown.NOT_UNDERSTOOD),
    *unknown.ONLY_ENGLISH,
)


def _same(chat: Chat, answer: Answer) -> bool:
    return answer.text.strip() == chat.turns[-1].answer


def _one_of(*groups: tuple[Entry, ...]) -> Check:
    """Any answer of the same entry."""

    def check(chat: Chat, answer: Answer) -> bool:
        expected = chat.turns[-1].answer
        entries = [entry for group in groups for entry in group if expected in entry.answers]
        return any(answer.text.strip() in entry.answers for entry in entries)

    return check


def _same_json(chat: Chat, answer: Answer) -> bool:
    try:
        return bool(json.loads(answer.text) == json.loads(chat.turns[-1].answer))
    except ValueError:
        return False


def _capitals(chat: Chat, answer: Answer) -> bool:
    """Check that there are as many different countries as requested, each with its capital."""
    known = {bare(country): city for country, city, _ in COUNTRIES}
    found = re.findall(r"^\d+\. (.+?) - (.+)$", answer.text, re.MULTILINE)
    wanted = len(re.findall(r"^\d+\. ", chat.turns[-1].answer, re.MULTILINE))
    assert wanted in NUMBERS
    return len({country for country, _ in found}) == len(found) == wanted and all(known.get(c) == v for c, v in found)


def _call(chat: Chat, answer: Answer) -> bool:
    expected = json.loads(chat.turns[0].answer.split("\n")[1])
    return answer.call == (expected["name"], expected["arguments"])


def _no_tool(chat: Chat, answer: Answer) -> bool:
    return answer.call is None and answer.text.strip() in tools.NOTHING_FITS


def _joke(chat: Chat, answer: Answer) -> bool:
    return answer.text.strip() in programming.JOKES


def _story(chat: Chat, answer: Answer) -> bool:
    """It ends by itself, in four sentences or more, and is about the hero that was asked for."""
    heroes = [plot[0] for plot in stories.PLOTS if plot[0] in chat.turns[-1].user]
    ends = answer.finish_reason == "stop" and answer.text.strip().endswith((".", "!"))
    return ends and len(re.findall(r"[.!]", answer.text)) >= 4 and all(hero in answer.text for hero in heroes)


def _refuses(chat: Chat, answer: Answer) -> bool:
    return answer.text.strip() in _REFUSALS


def _names_it(chat: Chat, answer: Answer) -> bool:
    """It says the name that the sample's answer says."""
    names = [word for word in re.findall(r"\b[A-Z][a-z]+\b", chat.turns[-1].answer) if word not in ("My", "Your")]
    return all(name in answer.text for name in names)


CHECKS: dict[str, Check] = {
    "capitals": _same,
    "lists of capitals": _capitals,
    "invented countries": _same,
    "additions": _same,
    "subtractions": _same,
    "products": _same,
    "powers": _same,
    "comparisons": _same,
    "extraction": _same_json,
    "people": _same_json,
    "tool calls": _call,
    "no tool fits": _no_tool,
    "small talk": _one_of(small_talk.SMALL_TALK),
    "identity": _one_of(small_talk.IDENTITY),
    "personas": _names_it,
    "the user's name": _names_it,
    "repeating": _same,
    "history": _one_of(history.ROME, history.HISTORY),
    "Python": _one_of(programming.PYTHON),
    "the world": _one_of(world.WORLD),
    "jokes": _joke,
    "stories": _story,
    "Palladio": _one_of(palladio_use.PALLADIO),
    "unknown": _refuses,
}
"""Checks by skill. An answer with thinking is checked in the same way."""
THOUGHTFUL = ("additions", "comparisons", "powers")
"""Skills that are asked with thinking, too."""
