"""Blocks of code on the pages for users, and how each is run.

Blocks of Python run against a server (tests/integration/test_blocks_of_the_docs.py). Commands of `palladio` run with
tiny checkpoints in place of the models that they name, and with simulated devices (tests/docs/test_blocks.py). What no
test can run is named here, with the reason. Pages of docs/extending have their own mechanism (worked_example.py).
"""

import dataclasses
import re
import shlex

from tests.docs.worked_example import PAGES as EXTENDING
from tests.docs.worked_example import ROOT

SOURCES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "README.md",
    ROOT / "examples" / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if EXTENDING not in page.parents),
)
LANGUAGES = ("bash", "json", "python", "text")  # text: output and drawings

# Commands that no test runs, as regular expressions, and why.
NOT_RUN = {
    r"make ": "runs make: another test compares the target's name with the Makefile",
    r"(.venv/bin/python -m )?pip install|python3 -m venv": "installs packages",
    r"\.venv/bin/python -m pytest": "runs the tests",
    r"\.venv/bin/python benchmarks/": "measures for minutes: another test compares the arguments with the script's",
    r"\.venv/bin/python examples/": "an example, which has a test of its own",
    r"(python )?benchmarks/(gpu/)?h200": "needs an H200",
    r"palladio serve .*--nnodes": "needs several hosts",
    r"palladio plan .*--compile": "needs the compilers of accelerators, 1.4 GB",
    r"palladio pull": "downloads from the hub",
    r"palladio chat --base-url": "talks to a server elsewhere: tests/palladio/commands/chat/test_chat.py has one",
    r"palladio bench": "loads a server for minutes: tests/palladio/load has a short one",
    r"palladio eval --tasks": "needs lm-eval and its data sets",
    r"palladio replay": "needs the dump of a crash: tests/palladio/commands/test_replay.py makes one",
    r"aws s3api": "asks a cloud: tests/http/storage/blobs/test_blob_bucket.py reads the rule",
    r"serve run": "needs Ray: tests/integration/test_ray_serve.py runs it",
    r"export RAY_SERVE_": "needs Ray: scripts/ray takes these lines from the page",
    r"palladio (serve|migrate-storage) .*--database-url": "needs PostgreSQL: `make postgres` runs both",
    r"palladio tune$": "writes into the installed package; the same command runs with --output",
}


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: its path, from the tree's root.
        heading: the nearest one above it.
        line: its first line in the page, counted from 1.
        language: of the block; "" if the page does not say.
    """

    page: str
    heading: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a block of bash: one a line, without comments. Lines after \\ and within quotes are
        joined."""
        found: list[str] = []
        for line in re.sub(r" *\\\n *", " ", self.text).splitlines():
            if found and found[-1].count("'") % 2:
                found[-1] += f"\n{line}"
            elif line.strip():
                found.append(re.sub(r" +#.*", "", line).strip())
        return found


def blocks() -> list[Block]:
    """Every block of the pages, in order."""
    found = []
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            above = text[: match.start()]
            headings = re.findall(r"^#+ (.+)", re.sub(r"^```.*?^```$", "", above, flags=re.M | re.S), re.MULTILINE)
            page = source.relative_to(ROOT).as_posix()
            found.append(Block(page, headings[-1], above.count("\n") + 2, match[1], match[2]))
    return found


def reason_not_run(command: str) -> str | None:
    """Why no test runs this command; None if one does."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, command)), None)


def palladio_words(command: str) -> list[str] | None:
    """Return the words after `palladio`, for a command of it that can be run."""
    program, *words = shlex.split(command)
    if (program, words[:2]) == ("python", ["-m", "palladio.launch_server"]):
        program, words = "palladio", ["serve", *words[2:]]
    return words if program == "palladio" and reason_not_run(command) is None else None
