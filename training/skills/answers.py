"""Questions that have one subject each, many wordings, and an answer or two: data, with the function that draws."""

from collections.abc import Callable
from dataclasses import dataclass

from training.chat import Turn
from training.source import Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One subject.

    Attributes:
        asked: ways to ask, the last of them held out.
        answers: what may be answered.
        about: what the question is about, as a thought names it.
    """

    asked: tuple[str, ...]
    answers: tuple[str, ...]
    about: str


_SUBJECTS = (
    *("Tell me about {x}.", "Explain {x}.", "What can you tell me about {x}?", "I have a question about {x}.", "{x}?"),
    *("What do you know about {x}?", "Tell me something about {x}.", "Help me with {x}.", "I want to know about {x}."),
    *("Can you explain {x}?", "Please explain {x}.", "A word about {x}, please.", "I want to learn about {x}."),
    *("Say something about {x}.", "Could you tell me about {x}?", "Give me some information on {x}."),
)


def draw(source: Source, entries: tuple[Entry, ...]) -> Turn:
    """One entry, asked in one of its own ways."""
    return _turn(source, source.pick(entries), source.phrase)


def draw_subject(source: Source, entries: tuple[Entry, ...]) -> Turn:
    """One entry, asked in its own ways or by its subject alone."""
    entry = source.pick(entries)
    if source.chance(0.7):
        return _turn(source, entry, source.phrase)
    question = source.phrase(_SUBJECTS).format(x=entry.about)
    return _turn(source, entry, lambda _: question[0].upper() + question[1:])


def _turn(source: Source, entry: Entry, ask: Callable[[tuple[str, ...]], str]) -> Turn:
    return Turn(ask(entry.asked), source.pick(entry.answers), f"The user asks about {entry.about}.")
