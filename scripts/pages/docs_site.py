"""Builds the documentation as a site with Zensical, which reads mkdocs.yml.

    python scripts/pages/docs_site.py build              # into build/site; any warning is an error
    python scripts/pages/docs_site.py serve [HOST:PORT]  # on 127.0.0.1:8000, and again after each change of a page

Pages keep links that work in the repository. They are copied to build/docs with links that work on the site.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CONFIG: Final = ROOT / "mkdocs.yml"
DOCS: Final = ROOT / "docs"
STAGED: Final = ROOT / "build" / "docs"
NOTES: Final = ROOT / "benchmarks" / "results" / "notes"
# Pages of other folders, by their name on the site.
OTHERS: Final = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "examples.md": "examples/README.md",
    "benchmarks.md": "benchmarks/README.md",
    "results.md": "benchmarks/results/README.md",
    "results-notes.md": "benchmarks/results/NOTES.md",
    **{f"notes/{day.name}": f"benchmarks/results/notes/{day.name}" for day in sorted(NOTES.glob("*.md"))},
    "families.md": "benchmarks/results/cpu-2026-11-23/families.md",
    "training.md": "training/README.md",
    "tests.md": "tests/README.md",
}
PICTURES: Final = (".svg", ".png")

_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\])\(([^()\s#]*)(?:#([^()\s]*))?\)")


def pages() -> dict[str, Path]:
    """Name of every page on the site → its source."""
    own = {page.relative_to(DOCS).as_posix(): page for page in sorted(DOCS.rglob("*.md"))}
    return own | {name: ROOT / source for name, source in OTHERS.items()}


def navigation() -> list[str]:
    """The pages in mkdocs.yml's navigation, in order."""

    def leaves(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        return [leaf for one in inner for leaf in leaves(one)]

    return leaves(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"])


def links(text: str) -> list[tuple[str, str]]:
    """Return target ("" for the page itself) and anchor of every link and picture, except those in code."""
    return [(target, anchor) for target, anchor in _LINK.findall(_CODE.sub("", text)) if "://" not in target]


def anchors(text: str) -> set[str]:
    """Return the anchors that a link to a page may name after #."""
    headings = re.findall(
        r"^#{1,6} (.+)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {slug(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings}


def slug(heading: str) -> str:
    """A heading's anchor, by GitHub's rule."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def problems() -> list[str]:
    """List the errors of pages and navigation, a line each.

    Links that lead nowhere, anchors that no heading has, pages outside of the navigation, and text that GitHub and the
    site would show differently.
    """
    known = pages()
    listed = navigation()
    found = [f"mkdocs.yml: {name} is not in the navigation" for name in known if name not in listed]
    found += [
        f"mkdocs.yml: {name} is in the navigation, but there is no such page" for name in listed if name not in known
    ]
    found += [f"mkdocs.yml: {name} is twice in the navigation" for name in {*listed} if listed.count(name) > 1]
    texts = {source: source.read_text(encoding="utf-8") for source in known.values()}
    for source, text in texts.items():
        where = source.relative_to(ROOT)
        found += [f"{where}: {problem}" for problem in (*_broken(source, text, texts), *_shown_differently(text))]
    return found


def _broken(source: Path, text: str, texts: dict[Path, str]) -> list[str]:
    found = []
    for target, anchor in links(text):
        file = Path(os.path.normpath(source.parent / target)) if target else source
        if not file.exists():
            found.append(f"{target} does not exist")
        elif anchor and file not in texts:
            found.append(f"{target}#{anchor}: only pages have anchors")
        elif anchor and anchor not in anchors(texts[file]):
            found.append(f"{target}#{anchor}: no heading is called so")
    return found


def _shown_differently(text: str) -> list[str]:
    """Markdown that GitHub takes for more than the site does."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lists = re.findall(r"^(?![-*|#>\s]|\d+\. |<!--).+\n(?:[-*]|\d+\.) .*", prose, re.MULTILINE)
    nested = re.findall(r"^ {1,3}[-*] .*", prose, re.MULTILINE)
    tables = re.findall(r"^(?![|\n]|<!--).+\n\|[-:| ]+\|$|^(?!\||<!--).+\n\|.*\n\|[-:| ]+\|$", prose, re.MULTILINE)
    indented = re.findall(r"\n\n {4}(?![-*] |\d+\. )\S.*", prose)
    return [
        *(f"a list needs an empty line before it: {one.splitlines()[-1]}" for one in lists),
        *(f"a list in a list is indented by 4: {one}" for one in nested),
        *(f"a table needs an empty line before it: {one.splitlines()[0]}" for one in tables),
        *(f"a block of code needs ``` and a language: {one.strip()}" for one in indented),
    ]


def stage() -> None:
    """Copies pages and pictures to build/docs; what has not changed is not written again."""
    wanted = {name: _relinked(source).encode() for name, source in pages().items()}
    for source in pages().values():
        for target, _ in links(source.read_text(encoding="utf-8")):
            file = Path(os.path.normpath(source.parent / target))
            if target and file.is_file() and file not in pages().values():
                wanted[_file_name(file)] = file.read_bytes()
    for file in [*STAGED.rglob("*")]:
        if file.is_file() and file.relative_to(STAGED).as_posix() not in wanted:
            file.unlink()
    for name, content in wanted.items():
        file = STAGED / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_bytes() != content:
            file.write_bytes(content)


def _file_name(file: Path) -> str:
    """Return the site's path of a file that is no page. Source code gets .txt, so that browsers show it."""
    if file.suffix in PICTURES:
        return (file.relative_to(DOCS) if file.is_relative_to(DOCS) else file.relative_to(ROOT)).as_posix()
    return f"files/{file.relative_to(ROOT).as_posix()}.txt"


def _relinked(source: Path) -> str:
    """A page whose links lead to where their targets are on the site; folders are not there, so their links go."""
    places = {file: name for name, file in pages().items()}
    here = os.path.dirname(places[source])

    def relink(match: re.Match[str]) -> str:
        label, target, anchor = match["label"], match["target"], match["anchor"] or ""
        if not target or "://" in target:
            return match[0]
        file = Path(os.path.normpath(source.parent / target))
        if file.is_dir():
            return label
        name = places[file] if file in places else _file_name(file)
        return f"{match['mark']}[{label}]({os.path.relpath(name, here)}{anchor})"

    link = re.compile(
        r"(?P<code>^```.*?^```|(?<!\[)`[^`\n]*`(?!\]))"
        r"|(?P<mark>!?)\[(?P<label>[^][]*)\]\((?P<target>[^()\s#]*)(?P<anchor>#[^()\s]*)?\)",
        re.MULTILINE | re.DOTALL,
    )
    text = source.read_text(encoding="utf-8")
    return link.sub(lambda match: match[0] if match["code"] else relink(match), text)


def build() -> int:
    """Returns the exit code."""
    found = problems()
    if found:
        print("\n".join(found), file=sys.stderr)
        return 1
    shutil.rmtree(STAGED.parent / "site", ignore_errors=True)
    stage()
    return _zensical("build", "--clean", "--strict")


def serve(address: str) -> int:
    """Serves until Ctrl-C; pages are copied again every second."""
    stage()

    def follow() -> None:
        while True:
            time.sleep(1)
            stage()

    threading.Thread(target=follow, daemon=True).start()
    try:
        return _zensical("serve", "--dev-addr", address)
    except KeyboardInterrupt:
        return 0


def _zensical(*words: str) -> int:
    command = [sys.executable, "-m", "zensical", *words, "--config-file", str(CONFIG)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    match sys.argv[1:]:
        case ["build"]:
            return build()
        case ["serve"]:
            return serve("127.0.0.1:8000")
        case ["serve", address]:
            return serve(address)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
