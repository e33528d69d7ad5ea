"""Plain text for /v1/completions: this repository's pages, stories, facts, and requests with what follows."""

import re
from functools import cache
from pathlib import Path

from training.skills import arithmetic, countries, history, palladio_use, programming
from training.skills.answers import draw
from training.skills.stories import plain_story
from training.source import Source, is_held_out

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *("README.md", "docs/architecture.md", "docs/scheduling.md", "docs/operations.md", "docs/batches.md"),
    "docs/security.md",
)


def plain(source: Source) -> str:
    """A text of its own."""
    kind = source.number(0, 9)
    if kind <= 2:
        return source.pick(paragraphs(source.held_out))
    if kind <= 5:
        return plain_story(source)
    if kind == 6:
        return _facts(source)
    turn = source.pick(
        (
            lambda: countries.list_of_capitals(source),
            lambda: countries.capital(source),
            lambda: arithmetic.addition(source),
            lambda: draw(source, programming.PYTHON[:1] + history.ROME),
            lambda: draw(source, palladio_use.PALLADIO),
        )
    )()
    return f"{turn.user}{source.pick((' ', chr(10), chr(10) * 2))}{turn.answer}"


def _facts(source: Source) -> str:
    sentences = []
    for country, city, continent in source.several(countries.COUNTRIES, source.number(1, 4)):
        sentences.append(
            source.pick(
                (
                    f"The capital of {country} is {city}.",
                    f"{countries.capitalized(country)} is a country in {continent}.",
                )
            )
        )
    if source.chance(0.4):
        a, b = source.split(lambda: (source.number(0, 99), source.number(0, 99)))
        sentences = [f"{a} + {b} = {a + b}"]
    return " ".join(sentences).replace("..", ".")


@cache
def paragraphs(held_out: bool) -> tuple[str, ...]:
    """Return the paragraphs of this repository's pages, without tables and code."""
    found = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        for part in re.split(r"\n\s*\n", text):
            words = " ".join(part.split())
            if len(words) > 80 and not words.startswith(("|", "#", "-", "<")) and is_held_out(words) == held_out:
                found.append(words[:900])
    return tuple(found)
