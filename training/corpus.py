"""The text that the model is trained on: an endless, numbered row of samples, each of one skill.

python -m training.corpus      # shows a few of each
"""

import sys
from collections.abc import Callable

from training.chat import Chat, Turn
from training.skills import (
    arithmetic,
    countries,
    extraction,
    history,
    palladio_use,
    programming,
    small_talk,
    stories,
    tools,
    unknown,
    world,
)
from training.skills.answers import draw, draw_subject
from training.skills.plain import plain
from training.source import Source

Make = Callable[[Source], Turn | Chat | str]
Pieces = list[tuple[str, bool]]

SYSTEMS = (
    *("You are a helpful AI assistant", "You are a helpful AI assistant", "You are a helpful assistant."),
    *("You are a helpful AI assistant.", "Be brief.", "Answer shortly.", "You are a friendly assistant."),
    *("Answer in English.", "Be polite.", "You are a chat bot.", "Help the user.", "You answer questions."),
)


def _no_call(source: Source) -> Chat:
    return tools.no_call(source, _easy(source))


def _easy(source: Source) -> Turn:
    turn = source.pick(_EASY)(source)
    assert isinstance(turn, Turn)
    return turn


SKILLS: dict[str, tuple[float, Make]] = {
    "capitals": (6, countries.capital),
    "lists of capitals": (4, countries.list_of_capitals),
    "invented countries": (2, countries.unknown_country),
    "additions": (12, arithmetic.addition),
    "subtractions": (2, arithmetic.subtraction),
    "products": (2, arithmetic.multiplication),
    "powers": (2, arithmetic.power),
    "comparisons": (10, arithmetic.comparison),
    "extraction": (16, extraction.extraction),
    "people": (4, extraction.people),
    "tool calls": (12, tools.call),
    "no tool fits": (3, tools.nothing_fits),
    "no tool needed": (2, _no_call),
    "small talk": (5, lambda source: draw(source, small_talk.SMALL_TALK)),
    "identity": (4, lambda source: draw(source, small_talk.IDENTITY)),
    "personas": (2, small_talk.persona),
    "the user's name": (3, small_talk.users_name),
    "repeating": (7, small_talk.repeat),
    "history": (5, history.history),
    "Python": (4, lambda source: draw_subject(source, programming.PYTHON)),
    "the world": (2, lambda source: draw_subject(source, world.WORLD)),
    "jokes": (3, programming.joke),
    "stories": (6, stories.story),
    "Palladio": (7, lambda source: draw_subject(source, palladio_use.PALLADIO)),
    "unknown": (9, unknown.unknown),
    "plain text": (9, plain),
}
"""By name: the share of samples, and what makes one."""

_BEFORE = (
    *("Hi.", "Hello,", "Please:", "I have a question.", "Quick question:", "Tell me:", "Next question:", "One more:"),
    *("Ok.", "Thanks.", "Now:", "Hey,", "So,", "Well,", "Can you answer this?", "Another question:", "Hello there."),
)

_JOINED = (
    *("capitals", "lists of capitals", "additions", "comparisons", "small talk", "identity", "repeating", "Python"),
    *("the world", "jokes", "Palladio", "unknown", "extraction"),
)
_EASY = tuple(SKILLS[name][1] for name in ("capitals", "small talk", "identity", "jokes", "Python", "Palladio"))
_NAMES = tuple(SKILLS)
_WEIGHTS = tuple(weight for weight, _ in SKILLS.values())
_KEPT_AS_WRITTEN = {"extraction", "people", "repeating"}
THINKING_SHARE = {"additions": 0.35, "comparisons": 0.4, "powers": 0.35, "subtractions": 0.1}


def training_sample(seed: int, number: int) -> Pieces:
    """Sample `number` of the row with this seed."""
    source = Source(f"{seed}/{number}")
    name = _weighted(source)
    if name in _JOINED and source.chance(0.2):
        return _conversation(source).pieces()
    made = make(name, source)
    if isinstance(made, str):
        return [(f"{made}<|endoftext|>", True)]
    return made.pieces()


def make(name: str, source: Source) -> Chat | str:
    """A sample of one skill."""
    made = SKILLS[name][1](source)
    if not isinstance(made, Turn):
        return made
    turn = made if name in _KEPT_AS_WRITTEN else _loosely_written(source, made)
    system = source.pick(SYSTEMS) if source.chance(0.2) else None
    if system is not None and source.chance(0.2):
        system = f"{source.number(0, 99)}: {system}"  # as the batches of the tutorial have it
    return Chat((turn,), system=system, thinking=source.chance(THINKING_SHARE.get(name, 0.07)))


def _conversation(source: Source) -> Chat:
    turns = []
    for _ in range(source.number(5, 8) if source.chance(0.1) else source.number(2, 4)):
        turn = SKILLS[source.pick(_JOINED)][1](source)
        assert isinstance(turn, Turn)
        turns.append(turn)
    return Chat(tuple(turns), system=source.pick(SYSTEMS) if source.chance(0.2) else None, thinking=source.chance(0.05))


def _loosely_written(source: Source, turn: Turn) -> Turn:
    """Write as people type: without the last mark, or the first capital."""
    user = turn.user
    if source.chance(0.1):
        user = f"{source.phrase(_BEFORE)} {user}"
    if source.chance(0.15):
        user = user.rstrip(".?!")
    if source.chance(0.08) and user[:1].isalpha():
        user = user[0].lower() + user[1:]
    return Turn(user or turn.user, turn.answer, turn.thought)


def _weighted(source: Source) -> str:
    point = source.number(0, 10**6 - 1) / 10**6 * sum(_WEIGHTS)
    for name, weight in zip(_NAMES, _WEIGHTS, strict=True):
        point -= weight
        if point < 0:
            return name
    return _NAMES[-1]


def main() -> None:
    for name in _NAMES:
        print(f"===== {name}")
        for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
            made = make(name, Source(f"shown/{name}/{number}"))
            print(made if isinstance(made, str) else "".join(text for text, _ in made.pieces()), end="\n---\n")


if __name__ == "__main__":
    main()
