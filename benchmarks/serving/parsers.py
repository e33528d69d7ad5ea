"""What parsers of answers cost a token: every tool-call format, every reasoning family, and a response template.

    python benchmarks/serving/parsers.py --tokens 8000 --rounds 5

A token is four characters. A text is prose and calls in turns (the samples of the tests), or a thought and an answer.
Each parser gets it token by token, as a stream brings it; the figure is CPU time. Another process reads by response
templates: their figure is the time from a token to its events, most of which is the way there and back.
"""

import argparse
import asyncio
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms

from benchmarks.support.report import report
from palladio.http.reasoning.family import PromptEnd, ReasoningFamily
from palladio.http.reasoning.registry import FAMILIES
from palladio.http.response_templates.readers import TemplateReaders
from palladio.http.response_templates.spec import ResponseSpec
from palladio.http.tool_calls.formats import FORMATS
from tests.http.response_templates.templates import CALL, PLAIN, TOOLS
from tests.http.tool_calls.tool_texts import FUNCTIONS, SAMPLES

TOKEN = 4  # characters
PROSE = "The weather of the next days depends on where you are, and I can look it up for a city. " * 4
SLOWEST = 5


def tokens(text: str, count: int) -> list[str]:
    """That many tokens of the text, over and over."""
    whole = text * (count * TOKEN // len(text) + 1)
    return [whole[at : at + TOKEN] for at in range(0, count * TOKEN, TOKEN)]


def microseconds(read: Callable[[list[str]], None], pieces: list[str], rounds: int) -> float:
    """The median of CPU time a token."""

    def once() -> float:
        begin = time.process_time()
        read(pieces)
        return (time.process_time() - begin) * 1e6 / len(pieces)

    return statistics.median(once() for _ in range(rounds))


def read_calls(name: str, pieces: list[str]) -> None:
    parser = FORMATS[name].new_parser(FUNCTIONS)
    for piece in pieces:
        parser.feed(piece)
    parser.finish()


def read_reasoning(family: ReasoningFamily, pieces: list[str]) -> None:
    parser = family.new_parser(PromptEnd(""), has_tools=True)
    for piece in pieces:
        parser.feed(piece)
    parser.finish()


def of_formats(count: int, rounds: int) -> Iterator[tuple[str, float]]:
    for name in FORMATS:
        pieces = tokens(PROSE + SAMPLES[name].text + "\n", count)
        yield name, microseconds(functools.partial(read_calls, name), pieces, rounds)


def of_families(count: int, rounds: int) -> Iterator[tuple[str, float]]:
    for family in FAMILIES:
        opening, *others = family.specials
        pieces = tokens(opening + PROSE + "".join(others[:1]) + PROSE, count)
        yield family.name, microseconds(functools.partial(read_reasoning, family), pieces, rounds)


async def of_template(count: int, rounds: int) -> float:
    """Microseconds from a token to its events."""
    readers = TemplateReaders()
    spec = ResponseSpec(json.dumps(PLAIN), None, calls_are_json=True)
    pieces = tokens(f"<think>{PROSE}</think>{PROSE}{CALL}", count)
    found: list[float] = []
    try:
        for _ in range(rounds):
            reader = readers.reader(spec, "<|im_start|>assistant\n", TOOLS)
            await reader.feed(" ")  # the process starts
            begin = time.perf_counter()
            for piece in pieces:
                await reader.feed(piece)
            found.append((time.perf_counter() - begin) * 1e6 / len(pieces))
            await reader.finish()
    finally:
        readers.close()
    return statistics.median(found)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the result goes")
    args = parser.parse_args(argv)
    tools = dict(of_formats(args.tokens, args.rounds))
    reasoning = dict(of_families(args.tokens, args.rounds))
    rows = [*((f"{name} (tools)", cost) for name, cost in tools.items())]
    rows += [(f"{name} (reasoning)", cost) for name, cost in reasoning.items()]
    result = {
        "slowest": dict(sorted(rows, key=lambda row: row[1], reverse=True)[:SLOWEST]),
        "response_template": asyncio.run(of_template(args.tokens // 8, args.rounds)),
        "tools": tools,
        "reasoning": reasoning,
    }
    report("serving/parsers.py", argv, result, args.json)


if __name__ == "__main__":
    main()
