"""The process that `palladio tune` starts: jax is imported here.

python -m palladio.commands.offline.tune_worker FOLDER
"""

from palladio.processes.early_signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)  # before what takes seconds to import

import dataclasses
import datetime
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.pallas_kernels.narrow_matmul.config import TUNED, table_path
from palladio.pallas_kernels.narrow_matmul.tuning import best_padding, least_hidden_size, measure
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.plan.kernel_choice import with_native_kernels
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.server.launch import run_worker
from palladio.version import __version__


def main() -> int:
    """Returns the exit code, see run_worker."""
    (folder,) = sys.argv[1:]
    return run_worker(lambda: tune(Path(folder).expanduser() if folder else TUNED))


def tune(folder: Path, say: Callable[[str], None] = print) -> None:
    """Measures, and writes the table.

    Raises:
        ConfigError: of this CPU no feature is known, or the table cannot be written.
    """
    target = Target.of(jax.devices()[0])
    kind = target.kind
    if not kind:
        raise ConfigError("this CPU has no feature that a table is for: amx_bf16, avx512_bf16, avx512 or avx2")
    path = table_path(kind, folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; name another folder with --output") from error
    shipped = NarrowProducts.of(dataclasses.replace(target, is_native=True, has_native_int8=True))
    own = NarrowProducts.of(with_native_kernels(ExecutionConfig(), target))  # as a server multiplies here
    products, figures = NarrowProducts(min_rows=best_padding(), native_rows=own.native_rows), []
    native = f"; up to {products.native_rows} rows by native code" if products.native_rows else ""
    say(f"CPU feature {kind}, {os.cpu_count()} cores; one row is padded to {products.min_rows}{native}")
    say("hidden  rows  float32 ms  bfloat16 ms  ratio")
    for figure in measure(products):
        figures.append(figure)
        ratio = figure.float32 / figure.bfloat16
        say(f"{figure.hidden_size:6}{figure.rows:6}{figure.float32:12.3f}{figure.bfloat16:13.3f}{ratio:7.2f}")
    table: dict[str, Any] = {
        "source": f"palladio tune {__version__}, JAX {jax.__version__}, {os.cpu_count()} cores, "
        f"{datetime.datetime.now(datetime.UTC).date()}",
        "products": {
            "min_rows": products.min_rows,
            "min_hidden_size": least_hidden_size(figures),
            "min_native_hidden_size": shipped.min_native_hidden_size,
            "native_rows": shipped.native_rows,
            "native_int8_rows": shipped.native_int8_rows,
        },
        "milliseconds, float32 / bfloat16, by rows x hidden size": {
            f"{figure.rows} x {figure.hidden_size}": f"{figure.float32:.3f} / {figure.bfloat16:.3f}"
            for figure in figures
        },
    }
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    say(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
