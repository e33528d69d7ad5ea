"""What the weights say of config.json: a head that is not the embedding is not tied, as in transformers."""

import importlib.util
import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from palladio.model.base.errors import CheckpointError
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.loading import orbax_weights
from palladio.model.loading.readers.tensor_names import EMBEDDING, HEAD
from palladio.model.loading.stored_config import agree_with_weights
from tests.model.driver import Driver, load
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint, tiny_config, tiny_weights, to_bfloat16, write_json


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One whose config.json says that the head is tied."""
    return make_checkpoint(tmp_path / "model", "qwen2_tied", num_hidden_layers=1)


def rewrite(path: Path, *, head: np.ndarray | None = None) -> dict[str, np.ndarray]:
    stored = tiny_weights(json.loads((path / "config.json").read_text()))
    if head is not None:
        stored[HEAD] = head
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    return stored


def changed(path: Path) -> np.ndarray:
    """The embedding but for one value, its last."""
    head = rewrite(path)[EMBEDDING].copy()
    head[-1, -1] += 1
    return head


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")
@pytest.mark.torch
@pytest.mark.parametrize(
    "which", ["one value", "none", *(pytest.param(which, marks=pytest.mark.slow) for which in ("other", "equal"))]
)
def test_logits_are_those_of_transformers(path: Path, which: str, caplog: pytest.LogCaptureFixture) -> None:
    from tests.model import hf_oracle

    embedding = rewrite(path)[EMBEDDING]
    heads = {"other": embedding[::-1].copy(), "one value": changed(path), "equal": embedding, "none": None}
    rewrite(path, head=heads[which])
    caplog.set_level(logging.WARNING, "palladio")
    config, model = load(path)
    told = [message for message in caplog.messages if "tie_word_embeddings" in message and str(path) in message]
    assert len(told) == (which in ("other", "one value"))
    assert config.tie_word_embeddings == (which in ("equal", "none"))
    found = Driver(config, model, 2).step(prompts()[:2])
    wanted, _ = hf_oracle.run(path, prompts()[:2], 1)
    for b, expected in enumerate(wanted):
        np.testing.assert_allclose(found[b], expected, atol=1e-4, rtol=0)


def test_a_head_of_another_dtype_is_compared_by_value(path: Path) -> None:
    stored = rewrite(path)
    half = to_bfloat16(stored)
    for embedding, head, is_tied in ((half, half, True), (stored, half, False)):
        both = {**stored, EMBEDDING: embedding[EMBEDDING], HEAD: head[EMBEDDING]}
        save_file(both, path / "model.safetensors")
        assert load(path)[0].tie_word_embeddings is is_tied
    exact = half[EMBEDDING].astype(np.float32)
    save_file({**stored, EMBEDDING: half[EMBEDDING], HEAD: exact}, path / "model.safetensors")
    assert load(path)[0].tie_word_embeddings


def test_a_converted_checkpoint_keeps_the_head(path: Path, tmp_path: Path) -> None:
    rewrite(path, head=changed(path))
    config, model = load(path)
    orbax_weights.convert(path, tmp_path / "out", config, "float32", lambda *_: None)
    again_config, again = load(tmp_path / "out")
    assert not again_config.tie_word_embeddings
    np.testing.assert_array_equal(again.head.table.values[...], model.head.table.values[...])


def test_what_makes_no_logits_has_no_head_to_compare(path: Path) -> None:
    rewrite(path, head=changed(path))
    base = {**json.loads((path / "config.json").read_text()), "architectures": ["Qwen2Model"]}
    write_json(path / "config.json", base)
    assert load(path)[0].tie_word_embeddings


@pytest.mark.parametrize("converted", [False, True])
def test_layers_that_are_not_there(path: Path, tmp_path: Path, converted: bool) -> None:
    """Told before a layer is built, and so at once."""
    if converted:
        config, _ = load(path)
        orbax_weights.convert(path, tmp_path / "out", config, "float32", lambda *_: None)
        path = tmp_path / "out"
    write_json(path / "config.json", tiny_config("qwen2_tied", num_hidden_layers=512))
    config = ModelConfig.from_hf(*read_model_dir(path))
    start = time.monotonic()
    with pytest.raises(
        CheckpointError, match=r"num_hidden_layers is 512 in config\.json, but the checkpoint has 1 layers"
    ):
        agree_with_weights(path, config, "auto")
    assert time.monotonic() - start < 5
    assert agree_with_weights(path, config, "dummy") == config


def test_a_directory_without_weights_is_taken_as_it_is(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", tiny_config("qwen2_tied"))
    config = ModelConfig.from_hf(*read_model_dir(tmp_path))
    assert agree_with_weights(tmp_path, config, "auto") == config
