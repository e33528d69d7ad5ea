"""An engine whose weights are bfloat16 on a CPU: its dtypes, its log, and an exchange of weights."""

import logging
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from palladio.pallas_kernels.cpu_native import library
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.messages.model_messages import UpdateWeights
from tests.runtime.tiny_engine import create_core, generate, random_prompt
from tests.tiny_model import make_checkpoint

PROMPTS = {f"{length}": random_prompt(length) for length in (1, 9)}


def core_of(folder: Path) -> EngineCore:
    few = {"max_running_requests": 2, "cuda_graph_bs": (1,), "compile": "lazy", "context_length": 64}
    return create_core(folder, load_format="auto", skip_tokenizer_init=True, dtype="bfloat16", **few)


def test_weights_are_exchanged_as_they_lie(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = make_checkpoint(tmp_path / "first", "qwen3_moe"), tmp_path / "second"
    second.mkdir()
    tensors = load_file(first / "model.safetensors")
    tensors = {name: np.ascontiguousarray(np.roll(array, 1, 0)) for name, array in tensors.items()}
    save_file(tensors, second / "model.safetensors")
    (second / "config.json").write_text((first / "config.json").read_text())
    with caplog.at_level(logging.INFO, "palladio.engine"):
        core = core_of(first)
    assert "dtype=float32, kv_cache_dtype=float32" in caplog.text  # of activations
    assert "Products: bfloat16[out, in] with 2 rows or more" in caplog.text
    is_native = any(map(shutil.which, library.COMPILERS)) and Target.of(jax.devices("cpu")[0]).kind != ""
    assert (" by native code; CPU feature" in caplog.text) == is_native
    before = generate(core, PROMPTS, max_tokens=6)
    outputs, reply = core.steer(UpdateWeights(1, str(second)))
    assert (outputs, reply.ok) == ([], True)
    after = generate(core, PROMPTS, max_tokens=6)
    assert before != after == generate(core_of(second), PROMPTS, max_tokens=6)


@pytest.mark.slow  # tests/pallas_kernels/test_cpu_native.py has its numbers, and test_native_choice.py who gets it
@pytest.mark.skipif(not any(map(shutil.which, library.COMPILERS)), reason="needs a C++ compiler")
def test_attention_by_our_own_code_gives_the_tokens_of_xla(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a model whose layers have windows, sinks and experts, over pages of 4 tokens."""
    folder = make_checkpoint(tmp_path, "gpt_oss", num_hidden_layers=2)
    few = {"max_running_requests": 2, "cuda_graph_bs": (2,), "compile": "lazy", "context_length": 64, "page_size": 4}
    tokens = []
    for backend in ("xla", "cpu_native"):
        with caplog.at_level(logging.INFO, "palladio.engine"):
            core = create_core(folder, load_format="auto", skip_tokenizer_init=True, attention_backend=backend, **few)
        assert f"attention_backend={backend}" in caplog.text
        tokens.append(generate(core, PROMPTS, max_tokens=12))
    assert tokens[0] == tokens[1]
