"""CONTRIBUTING.md, the glossary, tests/README.md and CHANGELOG.md name what exists; developers' hooks fetch nothing."""

import re
import tomllib
from collections import Counter

import pytest

from tests.docs.worked_example import ROOT

PAGES = ("CONTRIBUTING.md", "tests/README.md")
GLOSSARY = re.findall(
    r"^\| (.+?) \| (.+?) \| `(.+?)` \|(.*)\|$",
    (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_glossary_names_files_and_each_word_once() -> None:
    assert len(GLOSSARY) > 50
    assert [path for _, _, path, _ in GLOSSARY if not (ROOT / path).is_file()] == []
    words = Counter(word.partition(" (")[0] for cell, *_ in GLOSSARY for word in cell.split(", "))
    assert [word for word, count in words.items() if count > 1] == []


@pytest.mark.parametrize("page", PAGES)
def test_files_and_folders_of_the_rules_exist(page: str) -> None:
    prose = re.sub(r"\]\(.*?\)|http://\S+", "", text_of(page))
    named = re.findall(r"\b((?:tests|runtime|http|benchmarks|docs)/[\w/.]*)", prose)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path.rstrip(".")).exists()] == []


def test_contributing_is_short() -> None:
    assert text_of("CONTRIBUTING.md").count("\n") <= 180


@pytest.mark.parametrize("page", [*PAGES, "docs/architecture.md"])
def test_files_and_folders_of_the_map_exist(page: str) -> None:
    named = re.findall(r"`((?:http|runtime|model|pallas_kernels|tests|scripts|benchmarks)/[\w/.]*)`", text_of(page))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_make_targets_exist() -> None:
    makefile, pages = text_of("Makefile"), "\n".join(map(text_of, PAGES))
    targets = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", pages, re.MULTILINE))
    assert len(targets) > 15
    for target in {one or other for one, other in targets}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_changelog_has_this_version_and_what_is_not_released() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", version]


def test_hooks_fetch_nothing() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"repo: (\S+)", text)) == {"local"}
    assert set(re.findall(r"language: (\S+)", text)) == {"system"}
