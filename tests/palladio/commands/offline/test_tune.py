"""`palladio tune`: the table that it writes is the one that an engine reads."""

import dataclasses
from pathlib import Path

import jax
import pytest

from palladio.__main__ import main
from palladio.commands.offline import tune_worker
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, config, tuning
from palladio.pallas_kernels.narrow_matmul.tuning import Measured, least_hidden_size, measure
from palladio.pallas_kernels.target import Target
from palladio.runtime.interface.errors import ConfigError


def test_a_table_is_measured_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "HIDDEN_SIZES", (32, 64))
    monkeypatch.setattr(tuning, "ROWS", (1, 3))
    monkeypatch.setattr(tuning, "_LAYERS", 2)
    monkeypatch.setattr(tuning, "least_times", lambda *calls: [4.0 / len(calls[0][1])] * len(calls))
    target = Target.of(jax.devices()[0])
    monkeypatch.setattr(Target, "of", lambda device: Target("cpu", target.kind or "avx2"))
    monkeypatch.setattr(
        tune_worker, "with_native_kernels", lambda execution, target: dataclasses.replace(target, is_native=True)
    )
    measured: list[NarrowProducts] = []
    monkeypatch.setattr(tune_worker, "measure", lambda products: [measured.append(products), *measure(products)][1:])
    said: list[str] = []
    tune_worker.tune(tmp_path, said.append)
    kind = target.kind or "avx2"
    path = tmp_path / kind / "narrow_matmul.json"
    shipped = NarrowProducts.of(Target("cpu", kind, is_native=True, has_native_int8=True))
    assert said[-1] == f"wrote {path}"
    assert [products.native_rows for products in measured] == [shipped.native_rows], "as a server multiplies"
    assert [line.split()[:2] for line in said[2:-1]] == [["32", "1"], ["32", "3"], ["64", "1"], ["64", "3"]]
    monkeypatch.setattr(config, "_table", lambda kind: config.read_table(path))
    products = NarrowProducts.of(Target("cpu", kind))
    least = shipped.min_native_hidden_size
    assert products == NarrowProducts(tuning.PADDINGS[0], None, least)  # none was faster
    assert least is not None
    native = NarrowProducts.of(Target("cpu", kind, is_native=True, has_native_int8=True))
    rows = shipped.native_rows, shipped.native_int8_rows
    assert (native.native_rows, native.native_int8_rows) == rows > (0, 0)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({128: (0.8, 1.5), 256: (1.0, 2.0), 512: (1.5, 2.0)}, 256),
        ({128: (2.0, 2.0), 256: (0.5, 9.0), 512: (1.5, 2.0)}, 512),  # from there on; nowhere much slower
        ({128: (2.0, 2.0), 256: (1.0, 1.1)}, None),
    ],
)
def test_the_smallest_hidden_size_that_gains(ratios: dict[int, tuple[float, ...]], expected: int | None) -> None:
    figures = [Measured(size, rows, ratio, 1.0) for size, each in ratios.items() for rows, ratio in enumerate(each, 1)]
    assert least_hidden_size(figures) == expected


def test_what_cannot_be_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["tune", "--rows", "3"])
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(Target, "of", lambda device: Target("cpu", "avx2"))
    with pytest.raises(ConfigError, match=r"cannot write .*narrow_matmul\.json: .*; name another folder with --output"):
        tune_worker.tune(tmp_path / "file")
    monkeypatch.setattr(Target, "of", lambda device: Target("cpu", ""))
    with pytest.raises(ConfigError, match="this CPU has no feature that a table is for"):
        tune_worker.tune(tmp_path)
