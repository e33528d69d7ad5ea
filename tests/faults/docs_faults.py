"""Faults of the documentation, and of what looks after it."""

from tests.faults.fault import Fault

SITE, TABLES, BLOCKS = ("tests/docs/test_site.py",), ("tests/docs/test_flag_pages.py",), ("tests/docs/test_blocks.py",)
_SITE, _TABLES = "scripts/pages/docs_site.py", "scripts/pages/gen_flag_docs.py"

DOCS_FAULTS = (
    Fault(
        "a page is outside of the navigation", "mkdocs.yml", "      - Troubleshooting: troubleshooting.md\n", "", SITE
    ),
    Fault("a link leads to a heading that is gone", "docs/install.md", "## Get a model", "## Find a model", SITE),
    Fault(
        "links of pages on the site lead to the repository's files",
        _SITE,
        "places[file] if file in places else",
        "places[file] if file.name in places else",
        SITE,
    ),
    Fault("anchors are not checked", _SITE, "elif anchor and anchor not in", "elif not anchor and anchor not in", SITE),
    Fault(
        "refused flags of other servers are not on their pages",
        _TABLES,
        'of_verdict(rows, "refused", "Flags that',
        'of_verdict(rows, "error", "Flags that',
        TABLES,
    ),
    Fault(
        "a command of a page has a flag that is not there",
        "docs/hardware.md",
        "--dp-size 8 --enable-dp-attention   #",
        "--dp-size 8 --enable-attention-dp   #",
        BLOCKS,
    ),
)
