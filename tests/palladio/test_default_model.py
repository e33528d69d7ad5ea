"""The embedded default model: a Hugging Face directory like any other, the same bytes everywhere."""

import concurrent.futures
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from palladio.default_model import DEFAULT_MODEL_NAME, ensure_default_model
from palladio.runtime.errors import ConfigError

# Whoever changes the default model changes its version in DEFAULT_MODEL_NAME and these together.
DIGESTS = {
    "config.json": "4416aaa1f9e44fbd",
    "generation_config.json": "7667ff296681b9d1",
    "tensors": "13623000bbd1ad55",
    "tokenizer.json": "118bc744bce21652",
    "tokenizer_config.json": "07905910db802255",
}

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model_dir(cache):
    return ensure_default_model(cache)


def test_files_are_the_same_everywhere(model_dir):
    found = {path.name: path.read_bytes() for path in model_dir.glob("*.json")}
    with safe_open(model_dir / "model.safetensors", "np") as file:  # its header's bytes are the library's affair
        found["tensors"] = b"".join(file.get_tensor(name).tobytes() for name in sorted(file.keys()))
    assert {name: hashlib.sha256(data).hexdigest()[:16] for name, data in found.items()} == DIGESTS


def test_it_is_made_once_and_leaves_nothing_behind(cache, model_dir):
    stamp = (model_dir / "config.json").stat().st_mtime_ns
    assert ensure_default_model(cache) == model_dir == cache / "models" / DEFAULT_MODEL_NAME
    assert (model_dir / "config.json").stat().st_mtime_ns == stamp
    assert [path.name for path in model_dir.parent.iterdir()] == [DEFAULT_MODEL_NAME]


def test_several_starts_at_once_agree(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(ensure_default_model, [tmp_path] * 4))
    assert len(paths) == 1
    assert [path.name for path in (tmp_path / "models").iterdir()] == [DEFAULT_MODEL_NAME]


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(ConfigError, match="PALLADIO_CACHE_DIR") as error:
        ensure_default_model(tmp_path)
    assert str(tmp_path / "models") in str(error.value)


def test_shapes_are_those_of_the_config(model_dir):
    config = json.loads((model_dir / "config.json").read_text())
    with safe_open(model_dir / "model.safetensors", "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    assert len(shapes) == 2 + 11 * config["num_hidden_layers"]
    assert shapes["model.embed_tokens.weight"] == [config["vocab_size"], config["hidden_size"]]
    assert shapes["model.layers.3.self_attn.k_proj.weight"] == [
        config["num_key_value_heads"] * config["head_dim"],
        config["hidden_size"],
    ]


def test_tokenizer_and_template(model_dir):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    config = json.loads((model_dir / "config.json").read_text())
    generation = json.loads((model_dir / "generation_config.json").read_text())
    assert len(tokenizer) == config["vocab_size"]
    assert tokenizer.eos_token_id == config["eos_token_id"]
    assert generation["eos_token_id"] == tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    text = "Hello, wörld! 日本語 🎉\n\tdef f(x): return 12345"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "w", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "content": "rain"},
    ]
    assert tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "w", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_making_it_needs_neither_torch_nor_jax():
    code = "import sys, palladio.default_model; print('torch' in sys.modules, 'jax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
