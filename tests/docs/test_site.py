"""The documentation as a site: no link leads nowhere, no page is outside of the navigation, Zensical builds it."""

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.worked_example import ROOT

PAGES_OF_CODE = re.compile(r"docs/([\w/-]+\.md)(?:#([\w-]+))?")


@pytest.fixture
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "pages" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_anchors_and_navigation(site: ModuleType) -> None:
    assert len(site.pages()) > 45
    assert site.problems() == []


@pytest.fixture
def small(site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Two pages without a problem."""
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    (tmp_path / "docs" / "a.md").write_text("# A\n\n[b](sub/b.md#two-words) [c](../code.py) [here](#a)\n")
    (tmp_path / "docs" / "sub" / "b.md").write_text(
        "# B\n\n## Two `words`\n\n![x](x.svg) [folder](../sub)\n\n`[n](no.md)`\n"
    )
    (tmp_path / "docs" / "sub" / "x.svg").write_text("<svg/>")
    (tmp_path / "code.py").write_text("pass\n")
    (tmp_path / "mkdocs.yml").write_text("nav:\n  - A: a.md\n  - More:\n      - B: sub/b.md\n")
    names = {"ROOT": "", "DOCS": "docs", "CONFIG": "mkdocs.yml", "STAGED": "build/docs"}
    for name, path in names.items():
        monkeypatch.setattr(site, name, tmp_path / path)
    monkeypatch.setattr(site, "OTHERS", {})
    assert site.problems() == []
    return site


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[b](sub/no.md)", "docs/a.md: sub/no.md does not exist"),
        ("![b](sub/no.svg)", "docs/a.md: sub/no.svg does not exist"),
        ("[b](sub/b.md#three)", "docs/a.md: sub/b.md#three: no heading is called so"),
        ("[b](#b)", "docs/a.md: #b: no heading is called so"),
        ("[c](../code.py#a)", "docs/a.md: ../code.py#a: only pages have anchors"),
        ("text\n- a list", "docs/a.md: a list needs an empty line before it: - a list"),
        ("- a\n  - b", "docs/a.md: a list in a list is indented by 4:   - b"),
        ("    code", "docs/a.md: a block of code needs ``` and a language: code"),
        ("text\n| a |\n|---|", "docs/a.md: a table needs an empty line before it: text"),
    ],
)
def test_problems_of_a_page(small: ModuleType, text: str, problem: str) -> None:
    (small.DOCS / "a.md").write_text(f"# A\n\n{text}\n")
    assert small.problems() == [problem]


def test_problems_of_the_navigation(small: ModuleType) -> None:
    small.CONFIG.write_text("nav: [a.md, a.md, c.md]")
    assert small.problems() == [
        "mkdocs.yml: sub/b.md is not in the navigation",
        "mkdocs.yml: c.md is in the navigation, but there is no such page",
        "mkdocs.yml: a.md is twice in the navigation",
    ]


def test_links_work_on_the_site(small: ModuleType) -> None:
    small.stage()
    written = {file.relative_to(small.STAGED).as_posix(): file for file in small.STAGED.rglob("*") if file.is_file()}
    assert written.keys() == {"a.md", "sub/b.md", "sub/x.svg", "files/code.py.txt"}
    assert "[b](sub/b.md#two-words) [c](files/code.py.txt) [here](#a)" in written["a.md"].read_text()
    assert "![x](x.svg) folder\n\n`[n](no.md)`" in written["sub/b.md"].read_text()


def test_pages_that_the_code_names_exist(site: ModuleType) -> None:
    """In flags' help, errors and logs."""
    rooms = ("palladio", "http", "runtime", "model", "pallas_kernels", "scripts", "benchmarks", "deploy")
    files = [file for room in rooms for file in (ROOT / room).rglob("*.*") if file.suffix in (".py", ".json", ".yaml")]
    named = {match for file in files for match in PAGES_OF_CODE.findall(file.read_text(encoding="utf-8"))}
    assert len(named) > 4
    for page, anchor in named:
        file = ROOT / "docs" / page
        assert file.is_file(), page
        assert not anchor or anchor in site.anchors(file.read_text(encoding="utf-8")), f"{page}#{anchor}"


@pytest.mark.slow
def test_zensical_builds_it(site: ModuleType) -> None:
    """With its own strict check of links and anchors; what it made fetches nothing from other hosts."""
    subprocess.run(["make", "docs-site"], cwd=ROOT, check=True, timeout=280)
    made = list((ROOT / "build" / "site").rglob("*.html"))
    assert len(made) == len(site.pages()) + 1  # and 404.html
    for file in made:
        html = file.read_text(encoding="utf-8")
        assert re.findall(r"""(?:src|srcset)=["']?https?:|<link[^>]*href=["']?https?:""", html) == [], file
        assert re.findall(r"<p>\|", html) == [], f"{file}: a table that is none"
