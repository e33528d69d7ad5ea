"""The scores as README.md shows them.

python -m training.score_table     # writes README.md's table anew from scores.json
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
PAIRS_A_ROW = 3
_HEADER = "| Skill | Right " * PAIRS_A_ROW + "|\n" + "|---|--:" * PAIRS_A_ROW + "|\n"
_TABLE = re.compile(r"(?:\| Skill \| Right )+\|\n(?:\|.*\|\n)+")


def recorded() -> dict[str, Any]:
    """Return the last result of evaluate.py: `scores` by skill, `samples` a skill, `perplexity`."""
    result: dict[str, Any] = json.loads((HERE / "scores.json").read_text(encoding="utf-8"))
    return result


def table(scores: Mapping[str, float]) -> str:
    """In Markdown, from the best skill to the worst, down the columns."""
    cells = [f"| {skill} | {score:.0%} " for skill, score in sorted(scores.items(), key=lambda pair: -pair[1])]
    num_rows = -(-len(cells) // PAIRS_A_ROW)
    cells += ["| | "] * (num_rows * PAIRS_A_ROW - len(cells))
    return _HEADER + "".join("".join(cells[row::num_rows]) + "|\n" for row in range(num_rows))


def main() -> None:
    text = README.read_text(encoding="utf-8")
    README.write_text(_TABLE.sub(lambda _: table(recorded()["scores"]), text, count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
