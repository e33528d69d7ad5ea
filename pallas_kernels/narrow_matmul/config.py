"""Settings of a kind of CPU for products with bfloat16 matrices: read from a table that `palladio tune` measured.

Nothing is measured at a start: the same flags on the same kind of CPU give the same programs.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, Self

from palladio.pallas_kernels.target import Target

TUNED = Path(__file__).resolve().parent.parent / "tuned"


@dataclasses.dataclass(frozen=True, slots=True)
class NarrowProducts:
    """How a kind of CPU multiplies with bfloat16 matrices.

    Attributes:
        min_rows: products of fewer rows are padded to this number: XLA:CPU widens the whole matrix for one row.
        min_hidden_size: models of this hidden size or more gain from bfloat16 weights; None: no model does, or this
            kind of CPU was not measured. Matrices of smaller models stay in the CPU's caches: calling the library costs
            more than it gains.
        min_native_hidden_size: models of this hidden size or more gain from our own C++, whatever their weights are;
            None: no model does, or this kind of CPU was not measured.
        native_rows: products of up to this number of rows, of experts on average, are those of our own C++, see
            cpu_native; 0: none are.
        native_int8_rows: the same of int8 matrices.
    """

    min_rows: int = 2
    min_hidden_size: int | None = None
    min_native_hidden_size: int | None = None
    native_rows: int = 0
    native_int8_rows: int = 0

    @classmethod
    def of(cls, target: Target) -> Self:
        """Read the table of the target's kind."""
        table = _table(target.kind)
        found = cls(**table["products"]) if table else cls()
        rows = found.native_rows if target.is_native else 0
        int8_rows = found.native_int8_rows if target.has_native_int8 else 0
        return dataclasses.replace(found, native_rows=rows, native_int8_rows=int8_rows)

    def describe(self) -> str:
        """Describe the settings for the log."""
        native = f"; up to {self.native_rows} by native code" if self.native_rows else ""
        return f"bfloat16[out, in] with {self.min_rows} rows or more{native}"


def table_path(kind: str, folder: Path = TUNED) -> Path:
    """Return the table's file.

    Args:
        kind: see Target.
    """
    return folder / kind / "narrow_matmul.json"


@functools.cache
def _table(kind: str) -> dict[str, Any]:
    file = table_path(kind)
    return read_table(file) if kind and file.is_file() else {}


def read_table(file: Path) -> dict[str, Any]:
    """Read a table that `palladio tune` wrote."""
    table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return table
