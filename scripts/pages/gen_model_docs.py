"""Writes the table of architectures in docs/models.md, from the registry's table.

python scripts/pages/gen_model_docs.py
"""

import re
from pathlib import Path
from typing import Final

from palladio.commands.models.architectures import table

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "models.md"
_PLACE: Final = re.compile(r"<!-- architectures -->\n(?:\|[^\n]*\n)+")


def with_table(page: str) -> str:
    """Return the page with the table as it has to be."""
    found, count = _PLACE.subn(lambda _: f"<!-- architectures -->\n{table()}\n", page)
    assert count == 1, "docs/models.md has no place for the table"
    return found


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
