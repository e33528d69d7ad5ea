"""Pooling and the steps behind it against sentence-transformers' own modules, with random hidden states."""

import importlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from palladio.model.loading.pooling_weights import read_pooling_weights
from palladio.model.pooling.pool import pool
from palladio.model.pooling.pooling_files import read_pooling

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("sentence_transformers") is None, reason="the oracle"),
]

D, LENGTHS = 8, (5, 1, 9)
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("mean", "max", "lasttoken"))
ACTIVATIONS = ("Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid")


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_the_library_saves_and_computes(tmp_path: Path, mode: str | tuple[str, ...], activation: str) -> None:
    import torch

    models = importlib.import_module("sentence_transformers.models")
    torch.manual_seed(0)
    pooling = models.Pooling(D, pooling_mode=mode)
    size = D * (len(mode) if isinstance(mode, tuple) else 1)
    dense = models.Dense(size, 3, activation_function=getattr(torch.nn, activation)())
    behind = [dense, models.LayerNorm(3), models.Normalize()]
    entries = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    for number, module in enumerate((pooling, *behind), start=1):
        name = f"{number}_{type(module).__name__}"
        (tmp_path / name).mkdir()
        module.save(str(tmp_path / name))
        entries.append({"type": f"{type(module).__module__}.{type(module).__name__}", "path": name})
    (tmp_path / "modules.json").write_text(json.dumps(entries))

    longest = max(LENGTHS)
    hidden = torch.randn(len(LENGTHS), longest, D)
    mask = torch.tensor([[int(place < length) for place in range(longest)] for length in LENGTHS])
    features = {"token_embeddings": hidden.clone(), "attention_mask": mask}
    with torch.inference_mode():
        for module in (pooling, *behind):
            features = module(features)
    expected = features["sentence_embedding"].numpy()

    packed = np.concatenate([row[:length] for row, length in zip(hidden.numpy(), LENGTHS, strict=True)])
    segments = np.repeat(np.arange(len(LENGTHS)), LENGTHS).astype(np.int32)
    spec = read_pooling(tmp_path, D)
    found = pool(spec, packed, segments, len(LENGTHS), read_pooling_weights(tmp_path, spec))  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, atol=1e-5)
