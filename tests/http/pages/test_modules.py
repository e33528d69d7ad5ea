"""The scripts of the pages, as far as they need no browser, and what is written about the vendored ones."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from palladio.http.pages.page_files import FOLDER, page_files
from palladio.runtime.interface.messages.engine_state import LoadProgress

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_modules_that_need_no_browser(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    command = [NODE, "--test", str(Path(__file__).parent / "modules.mjs")]
    done = subprocess.run(
        command, env={**os.environ, "PAGES": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"# pass [1-9]", done.stdout)


def test_the_page_names_every_module_that_it_loads() -> None:
    """Otherwise the browser would find them one after another."""
    files = page_files()
    page = files["chat.html"].content.decode()
    named = set(re.findall(r'rel="modulepreload" href="ui/([^"]+)"', page)) | {"chat/main.js"}
    reached, open_names = set(), ["chat/main.js"]
    while open_names:
        name = open_names.pop()
        if name in reached:
            continue
        reached.add(name)
        text = files[name].content.decode()
        if not name.startswith("vendor/"):
            paths = re.findall(r'^import [^"]*"([^"]+)";', text, re.MULTILINE)
            open_names += [os.path.normpath(os.path.join(os.path.dirname(name), path)) for path in paths]
    assert reached == named


def test_the_page_has_words_for_each_phase_of_a_start() -> None:
    phases = re.findall(r'"(\w+)" \(', (LoadProgress.__doc__ or "").partition("phase:")[2].partition("\n")[0])
    words = page_files()["chat/server.js"].content.decode().partition("const what = {")[2].partition("}")[0]
    assert re.findall(r"(\w+):", words) == phases == ["device", "download", "load", "compile"]


def test_vendored_files_are_those_that_are_named() -> None:
    listed = (FOLDER / "vendor" / "README.txt").read_text(encoding="utf-8").split("sha256 of the files here:\n")[1]
    sums = dict(reversed(line.split()) for line in listed.splitlines() if line)
    scripts = {path.relative_to(FOLDER / "vendor").as_posix(): path for path in (FOLDER / "vendor").rglob("*.js")}
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in scripts.items()}
    for path in scripts.values():
        licence = (path.parent / "LICENSE.txt").read_text(encoding="utf-8")
        assert re.search("Permission is hereby granted|Apache License", licence)
