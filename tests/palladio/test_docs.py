"""Generated pages are up to date, and the README's promises name things that exist."""

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import palladio
from palladio import Engine, launch_server

ROOT = Path(__file__).resolve().parents[2]


def test_flags_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("gen_flag_docs", ROOT / "scripts" / "gen_flag_docs.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.PATH.read_text(encoding="utf-8") == generator.render(), "run `make docs`"


def test_links_of_the_pages_lead_somewhere():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_pages_tell_what_the_launcher_does():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name, value in launch_server.GPU_MEMORY.items():
        assert f"{name}={value}" in page
        assert f"{name}={value}" in (ROOT / "README.md").read_text(encoding="utf-8")
        assert f"{name}={value}" in Engine.__doc__


def test_installs_of_the_readme_are_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"pip install '\.\[(\w+)\]'", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert set(named) == {"cpu", "tpu", "cuda13"}
    assert set(named) | {"cuda12", "otel"} == set(extras)


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_python_of_the_readme_uses_public_names():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "palladio":
                assert {alias.name for alias in node.names} <= set(palladio.__all__)
