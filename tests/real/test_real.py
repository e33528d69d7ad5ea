"""The parts of `make real` that need no packages."""

import re
from pathlib import Path

from palladio.runtime.text.hub.catalogue import catalogue
from tests.real.lines import drawn_lines
from tests.real.real import MODELS, ORACLE, ROWS, table

PACKAGES = Path(__file__).with_name("packages.txt")


def test_packages_are_pinned_and_those_of_the_catalogue_are_the_same() -> None:
    lines = [line for line in PACKAGES.read_text().splitlines() if not line.startswith("#")]
    pins = {match[1]: match[2] for line in lines if (match := re.fullmatch(r"(\S+)==\S+ --hash=sha256:(\w{64})", line))}
    assert len(pins) == len(lines)
    for model in catalogue():
        if model.package.name in pins:
            assert pins[model.package.name] == model.package.sha256
            assert MODELS[model.name].parts == (model.package.member,)
            assert MODELS[model.name].sha256 == model.package.member_sha256
    assert any(model.package.name in pins for model in catalogue())


def test_lines_are_the_same_for_a_seed_and_have_tokens_of_the_model() -> None:
    lines = drawn_lines(1000, ("<|x|>",))
    assert lines == drawn_lines(1000, ("<|x|>",))
    assert lines != drawn_lines(1000, ("<|x|>",), seed=1)
    assert any("<|x|>" in line for line in lines)
    scripts = ("в", "α", "ع", "स", "人", "の", "인", "🙂", "def ", "  ")
    assert all(any(part.casefold() in line.casefold() for line in lines) for part in scripts)


def test_the_table_shows_how_much_each_is_over_transformers() -> None:
    column = {ORACLE: 20.0} | {row.title: 21.0 for row in ROWS}
    first, _, second, third, *rest = table({"A": column})
    assert (first, second) == ("| | A |", f"| {ORACLE} | 20.000 |")
    assert third == f"| {ROWS[0].title} | 21.000 (+5.00 %) |"
    assert len(rest) == len(ROWS) - 1
