"""Parameters whose rows are looked up lie row after row on a TPU, also where its compiler would choose otherwise."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.sharding import make_mesh
from palladio.model.config.config import ModelConfig
from palladio.model.functional import flatten_model
from palladio.model.loading import load_model, orbax_weights
from palladio.model.loading.layout import parameters
from palladio.runtime.execution.compiled.program_set import _abstract
from tests.model.driver import load
from tests.model.families.test_gpt_oss import PUBLISHED
from tests.model.format_cases import gpt_oss_checkpoint


def orders(hidden_size: int) -> list[tuple[int, ...]]:
    """Of the parameters that are told one, as programs are told of them."""
    sizes = {"num_hidden_layers": 2, "num_local_experts": 8, "hidden_size": hidden_size, "intermediate_size": 3072}
    model = load_model.abstract_model(ModelConfig.from_hf(PUBLISHED | sizes), dtype=jnp.float32, mesh=make_mesh(1))
    layouts = [_abstract(leaf).format.layout for leaf in flatten_model(model)[1]]
    return [layout.major_to_minor for layout in layouts if layout is not None]


def test_which_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert orders(2880) == []
    monkeypatch.setattr(parameters, "_is_tpu", lambda mesh: True)
    # Tables; of each of two layers, scales of experts' gate and up, values and scales of down, and its bias.
    assert sorted(orders(2880)) == [(0, 1)] * (2 + 2) + [(0, 1, 2)] * (2 * 4)
    assert orders(4096) == [], "whole tiles: the compiler has no reason to choose another"


def test_the_numbers_are_the_same_however_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = gpt_oss_checkpoint(tmp_path / "source", num_hidden_layers=2), tmp_path / "out"
    config, plain = load(source)
    orbax_weights.convert(source, out, config, "float32", lambda done, total: None)
    monkeypatch.setattr(parameters, "_is_tpu", lambda mesh: True)
    for path in (source, out):
        for one, other in zip(*(flatten_model(model)[1] for model in (load(path)[1], plain)), strict=True):
            np.testing.assert_array_equal(one, other)
    load(source, load_format="dummy")
