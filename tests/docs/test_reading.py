"""The pages that lead readers through the code name files and functions that are there, and stay short."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.worked_example import ROOT

PAGES = ("architecture.md", "engine-in-30-minutes.md")


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def rows(page: str) -> list[tuple[str, list[str]]]:
    """Files and names of the table after the mark."""
    table = text_of(page).partition("<!-- where -->\n\n")[2].partition("\n\n")[0]
    found = re.findall(r"^\|[^|]*\| `([\w/]+\.py)` \| (.+) \|$", table, re.MULTILINE)
    return [(file, re.findall(r"`([\w.]+)`", cell)) for file, cell in found]


def defined(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{prefix}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from defined(node.body, f"{node.name}.")


@pytest.mark.parametrize("page", PAGES)
def test_functions_of_the_tables_are_in_their_files(page: str) -> None:
    found = rows(page)
    assert len(found) == text_of(page).partition("<!-- where -->")[2].partition("\n\n#")[0].count(".py` |") >= 8
    for file, names in found:
        assert names
        known = set(defined(ast.parse((ROOT / file).read_text(encoding="utf-8")).body))
        assert set(names) - known == set(), file


def test_the_engine_is_eight_files_and_thirty_minutes() -> None:
    assert len(rows("engine-in-30-minutes.md")) == 8
    assert sum(map(int, re.findall(r"^\| (\d+) \|", text_of("engine-in-30-minutes.md"), re.MULTILINE))) == 30


def test_the_architecture_is_short() -> None:
    assert text_of("architecture.md").count("\n") <= 200
