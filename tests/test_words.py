"""The product's language: words that no file of it has, and the form of docstrings."""

import ast
import inspect
import re
from collections.abc import Iterator

import pytest

from tests.source_tree import ROOMS, ROOT, SOURCES
from tests.test_architecture import check

# Each also as a part of a name, and broken over two lines of a docstring, a comment or a text.
WORDS = ("nobody", "whoever", "so many", "befell", "told of", "likewise", "desk", "patience")
EXCEPTIONS: dict[str, str] = {}  # path:word → why it stays: a column of a database, a text that clients read

_BREAK = r"[\s_#/\"']*"
_FORMS = (rf"(?<![a-z]){_BREAK.join(word.split())}" if " " in word else rf"{word}(?!top)" for word in WORDS)
_WORD = re.compile("|".join(_FORMS), re.IGNORECASE)
_SHORT_ARGUMENTS = re.compile(r"\b(?:Args|Attributes): +\w+(?:, \w+)*:")
_ONLY_A_REFERENCE = re.compile(r"See\s[^.]*(?:\.\w[^.]*)*\.?\s*")
_DOCSTRING = re.compile(r"""'\"{3}'|(^[ \t]*r?)?\"{3}(.*?)\"{3}""", re.MULTILINE | re.DOTALL)
_NATIVE = tuple(
    (file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    for room in ROOMS[1:]  # palladio/ has links to the others, and no C++ of its own
    for pattern in ("*.cc", "*.h")
    for file in sorted((ROOT / room).rglob(pattern))
)


def words(path: str, text: str) -> Iterator[str]:
    """`path:word line: text` of each word of the list, in the path of the file as well."""
    lines = text.splitlines()
    for found in _WORD.finditer(path):
        yield f"{path}:{_listed(found)} {path}: the name of the file"
    for found in _WORD.finditer(text):
        line = text.count("\n", 0, found.start())
        yield f"{path}:{_listed(found)} {path}:{line + 1}: {lines[line].strip()}"


def _listed(found: re.Match[str]) -> str:
    letters = re.sub(r"[^a-z]", "", found[0].lower())
    return next(word for word in WORDS if word.replace(" ", "") == letters).replace(" ", "_")


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring: of every string in three quotes that begins a line."""
    for found in _DOCSTRING.finditer(text):
        if found[1] is not None:
            yield text.count("\n", 0, found.start()) + 1, inspect.cleandoc(found[2])


def faults(docstring: str) -> Iterator[str]:
    """What is wrong with the form of a docstring."""
    if docstring.startswith("Of "):
        yield 'begins with "Of": say what it does, or name the thing'
    if _SHORT_ARGUMENTS.search(docstring):
        yield "arguments on the line of Args: give each a line below it"
    if _ONLY_A_REFERENCE.fullmatch(docstring):
        yield "only refers to something else: say what it does, or leave it out"


def test_no_file_has_a_word_of_the_list():
    sources = [(source.path, source.text) for source in SOURCES]
    check([place for path, text in (*sources, *_NATIVE) for place in words(path, text)], EXCEPTIONS)


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_say_what_a_thing_does(room):
    check(
        [
            f"{source.path}:{line} {fault}"
            for source in SOURCES
            if source.room == room
            for line, text in docstrings(source.text)
            for fault in faults(text)
        ]
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# nobody's", ["nobody"]),
        ("class FrontDesk: ...", ["desk"]),
        ("_PATIENCE = 1", ["patience"]),
        ('"""It holds so\n    many pages.', ["so_many"]),
        ('"it is told "\n    "of all"', ["told_of"]),
        ("def so_many(): ...", ["so_many"]),
        ("# a desktop, also many, and what it was told", []),
    ],
)
def test_words_are_found_in_names_and_across_lines(text, found):
    assert [place.split(" ")[0].removeprefix("a.py:") for place in words("a.py", text)] == found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Of one server.", 1),
        ("Args: name: as given.", 1),
        ("Returns it. Args: first, last: lines.", 1),
        ("See Reader.take.", 1),
        ("See `Reader`\nfor the reasons", 1),
        ("See Reader. Drops what it has read.", 0),
        ("Return the offer.\n\nArgs:\n    name: as given.", 0),
    ],
)
def test_forms_of_docstrings(text, count):
    assert len(list(faults(text))) == count


def test_docstrings_are_found_where_python_has_them():
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    for source in [source for source in SOURCES if re.search(r"[=(\']\s*\"{3}", source.text)]:  # others are easier
        expected = {ast.get_docstring(node) for node in ast.walk(source.tree) if isinstance(node, kinds)}
        assert expected - {None} <= {text for _, text in docstrings(source.text)}


def test_every_top_folder_is_read():
    assert {source.room for source in SOURCES} == {"palladio", "http", "runtime", "model", "pallas_kernels"}
    assert _NATIVE
