"""The embedded default model: a small random Qwen3 checkpoint in Hugging Face's layout, made in a second on first use.

It lets anyone start the server without a download. Its weights are random: it talks nonsense.
The files are a pure function of this module, of default_tokenizer.json and of default_chat_template.jinja; whoever
changes one of them changes DEFAULT_MODEL_NAME's version too.
"""

import importlib.resources
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from palladio.runtime.errors import ConfigError

DEFAULT_MODEL_NAME: Final = "palladio-default-v1"

_LAYERS, _D, _N, _K, _H, _F, _V = 4, 256, 4, 2, 64, 768, 4096
_END_OF_TEXT, _IM_START, _IM_END = 4087, 4088, 4089

_CONFIG: Final = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": _V,
    "hidden_size": _D,
    "intermediate_size": _F,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _N,
    "num_key_value_heads": _K,
    "head_dim": _H,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "use_cache": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": _END_OF_TEXT,
    "eos_token_id": _IM_END,
}

_GENERATION_CONFIG: Final = {
    "bos_token_id": _END_OF_TEXT,
    "pad_token_id": _END_OF_TEXT,
    "eos_token_id": [_IM_END, _END_OF_TEXT],
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": 50,
}

_TOKENIZER_CONFIG: Final = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "model_max_length": 8192,
    "clean_up_tokenization_spaces": False,
}


def ensure_default_model(cache_dir: Path) -> Path:
    """The default model's directory under `cache_dir`, made if it is not there.

    Several processes may do this at once: each writes a directory of its own and the first to rename it wins.

    Raises:
        ConfigError: it cannot be written there.
    """
    path = cache_dir / "models" / DEFAULT_MODEL_NAME
    if not path.is_dir():
        try:
            _make(path)
        except OSError as error:
            raise ConfigError(
                f"the embedded default model cannot be written to {path} ({error}); set PALLADIO_CACHE_DIR to a "
                "directory that can be written, or serve another model with --model-path"
            ) from error
    return path


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{DEFAULT_MODEL_NAME}-", dir=path.parent))
    try:
        _write(draft)
        draft.chmod(0o755)
        draft.rename(path)
    except OSError:
        if not path.is_dir():  # not beaten to it: a full disk, say
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(directory: Path) -> None:
    data = importlib.resources.files("palladio")
    template = data.joinpath("default_chat_template.jinja").read_text(encoding="utf-8")
    _write_json(directory / "config.json", _CONFIG)
    _write_json(directory / "generation_config.json", _GENERATION_CONFIG)
    _write_json(directory / "tokenizer_config.json", _TOKENIZER_CONFIG | {"chat_template": template})
    tokenizer = data.joinpath("default_tokenizer.json").read_text(encoding="utf-8")
    (directory / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    save_file(_weights(), os.fspath(directory / "model.safetensors"), metadata={"format": "pt"})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _weights() -> dict[str, np.ndarray[Any, Any]]:
    # RandomState, because NumPy promises that its stream never changes; Generator's may.
    random = np.random.RandomState(20260101)

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (random.standard_normal((rows, columns)) * 0.05).astype(ml_dtypes.bfloat16)

    def ones(size: int) -> np.ndarray[Any, Any]:
        return np.ones(size, ml_dtypes.bfloat16)

    tensors = {"model.embed_tokens.weight": matrix(_V, _D), "model.norm.weight": ones(_D)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": ones(_D),
            prefix + "self_attn.q_proj.weight": matrix(_N * _H, _D),
            prefix + "self_attn.k_proj.weight": matrix(_K * _H, _D),
            prefix + "self_attn.v_proj.weight": matrix(_K * _H, _D),
            prefix + "self_attn.o_proj.weight": matrix(_D, _N * _H),
            prefix + "self_attn.q_norm.weight": ones(_H),
            prefix + "self_attn.k_norm.weight": ones(_H),
            prefix + "post_attention_layernorm.weight": ones(_D),
            prefix + "mlp.gate_proj.weight": matrix(_F, _D),
            prefix + "mlp.up_proj.weight": matrix(_F, _D),
            prefix + "mlp.down_proj.weight": matrix(_D, _F),
        }
    return tensors
