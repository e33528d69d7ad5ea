"""Every worked example of docs/extending works, from its first block to its last command, on a copy of this tree."""

import importlib.util
import re
from pathlib import Path

import pytest

from scripts.pages.gen_model_docs import PAGE, with_table
from tests.docs.worked_example import PAGES, ROOT, apply_step, copy_tree, edited, run_in, steps_of

EXAMPLES = sorted(page.name for page in PAGES.glob("*.md") if page.name != "README.md")
LINT = "ruff check ."
HOUSE_RULES = "python -m pytest -q -x tests/test_architecture.py tests/test_rooms.py"
has_torch = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize("name", EXAMPLES)
def test_changes_fit_the_tree(name: str, tmp_path: Path) -> None:
    """Quick: no command is run. It fails when a line that a page changes has changed: follow the page again."""
    steps = steps_of(PAGES / name)
    assert {step.kind for step in steps} == {"create", "edit", "run"}
    for step in steps:
        if step.kind != "run":
            apply_step(step, ROOT, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_page_can_be_followed(name: str, tmp_path: Path) -> None:
    if name == "model-family.md" and not has_torch:
        pytest.skip("it compares with transformers, which needs torch")
    copy_tree(tmp_path)
    for step in steps_of(PAGES / name):
        if step.kind == "run":
            run_in(tmp_path, step.text)
        else:
            apply_step(step, tmp_path, tmp_path)
    run_in(tmp_path, f"{LINT} && {HOUSE_RULES}")


def test_index_names_every_page() -> None:
    links = re.findall(r"\]\(([\w-]+\.md)\)", (PAGES / "README.md").read_text(encoding="utf-8"))
    assert sorted(links) == EXAMPLES


def test_links_of_the_pages_lead_somewhere() -> None:
    pages = [*PAGES.glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_an_edit_needs_its_lines_exactly_once() -> None:
    assert edited("a\nb\nc\n", " a\n-b\n+B\n", "file") == "a\nB\nc\n"
    assert edited("a\nb\nc\n", "@@\n+0\n a\n@@\n c\n+d\n", "file") == "0\na\nb\nc\nd\n"
    for text in ("a\nb\na\nb\n", "ab\nb\n", ""):
        with pytest.raises(AssertionError, match="times, not once"):
            edited(text, " a\n-b\n", "file")


def test_the_page_of_models_has_the_table_of_the_registry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run: make docs"
