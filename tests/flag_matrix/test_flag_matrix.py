"""The flag matrix: every documented value has a row, and five of the rows run here, each a server of its own.

They share one folder for native code, empty at the start: what other tests have compiled or loaded is no help.
"""

import functools
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.pallas_kernels.target import Target
from tests.flag_matrix import rows as matrix
from tests.flag_matrix.files import HIDDEN_SIZE, Folder
from tests.flag_matrix.rows import DEFAULT_ROWS, ROWS, Row
from tests.flag_matrix.runner import PROMPT, QUICK, RowFailed, Runner, compiler, own_environment
from tests.model.driver import Driver, load
from tests.native_forms import ABLE

SECONDS = 240.0


def test_every_documented_value_has_a_row() -> None:
    assert matrix.missing(ROWS) == []
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert set(DEFAULT_ROWS) <= set(ROWS)


def test_a_value_without_a_row_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = [row for row in ROWS if row.values.get("kv_cache_dtype") != "fp8_e5m2"]
    assert matrix.missing(fewer) == [
        "--kv-cache-dtype fp8_e5m2 with a plain file",
        "--kv-cache-dtype fp8_e5m2 with a quantized file",
    ]
    assert matrix.missing([row for row in ROWS if row.file != "mxfp4"]) == ["a file of the format mxfp4"]
    monkeypatch.setattr(matrix, "QUANTIZATIONS", (*matrix.QUANTIZATIONS, "int3"))
    assert matrix.missing(ROWS) == [
        "--quantization int3 with a plain file",
        "--quantization int3 with a quantized file",
    ]


@pytest.mark.parametrize("kind", ["avx2", "avx512", "avx512_bf16", "amx_bf16"])
def test_the_files_are_large_enough_for_native_code(kind: str) -> None:
    smallest = NarrowProducts.of(Target("cpu", kind)).min_native_hidden_size
    assert smallest is not None
    assert smallest <= HIDDEN_SIZE


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = tmp_path_factory.mktemp("flag_matrix")
    tools = compiler(folder / "tools", QUICK)
    return Runner(Folder(folder / "files"), own_environment(tools), folder / "cache", SECONDS)


@functools.cache
def plain_mean(path: Path) -> float:
    """The mean log-probability of the prompt, by the model alone on XLA's own operations."""
    config, model = load(path)
    logits = np.asarray(Driver(config, model, 1).step([PROMPT])[0], np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return math.fsum(logprobs[place, token] for place, token in enumerate(PROMPT[1:])) / (len(PROMPT) - 1)


@pytest.mark.parametrize("row", DEFAULT_ROWS, ids=lambda row: row.name)
def test_a_server_does_what_its_flags_say_with_nothing_prepared(runner: Runner, row: Row) -> None:
    outcome = runner.run(row, plain_mean(runner.files.twin(row.file)))
    assert outcome.mean is not None
    assert runner.cache is not None
    compiled = {path.name.split("-")[0] for path in (runner.cache / "native").glob("*.so")}
    assert not ABLE or "cpu_native" in compiled


@pytest.mark.parametrize(("bits", "fits"), [(16, 0.0009), (8, 0.019), (4, 0.09)])
def test_a_row_fails_where_the_numbers_are_others(
    bits: Literal[16, 8, 4], fits: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, row = Runner(Folder(tmp_path), {}), Row(bits=bits)
    monkeypatch.setattr(Runner, "_serve", lambda self, path, flags, row: -6.0)
    assert runner.run(row, fits - 6).difference == pytest.approx(fits)
    for other in (1.2 * fits - 6, -1.2 * fits - 6, math.nan):
        with pytest.raises(RowFailed, match=r"mean log-probability -6\.00000, not"):
            runner.run(row, other)


def test_a_folder_that_was_converted_is_as_exact_as_its_numbers() -> None:
    names = ("converted plain", "converted to int8", "converted to int4")
    assert [Row(file=name).tolerance for name in names] == [0.001, 0.02, 0.1]
