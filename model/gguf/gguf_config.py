"""The config.json of the model in a GGUF file, made of its metadata."""

import collections
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.gguf.gguf_file import BLOCKS, PLAIN, GgufTensor
from palladio.model.gguf.gguf_model import GgufModel
from palladio.model.gguf.gguf_names import ROPE_DIVISORS

_ARCHITECTURE = "general.architecture"
CLASSES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
"""The architecture of each general.architecture."""

_GEMMA = ("gemma2", "gemma3")
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}  # layers of the one whose scores are scaled by hidden size over heads
_MAX_DIVISORS = 4096
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _Metadata:
    """The metadata of a file. Methods add the prefix of its architecture to keys."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path, self.values = path, values
        self.architecture = str(values.get(_ARCHITECTURE))

    def find(self, key: str, kinds: tuple[type, ...] = (int, float)) -> Any:
        """Return a value; None: the file does not have it.

        Raises:
            CheckpointError: it is of another type.
        """
        value = self.values.get(f"{self.architecture}.{key}")
        if isinstance(value, list) and list not in kinds and len(set(value)) == 1:
            value = value[0]  # of every layer
        if value is not None and not isinstance(value, kinds):
            raise CheckpointError(
                f"{self._path}: {self.architecture}.{key} is {str(value)[:60]}, which is not supported"
            )
        return value

    def need_count(self, key: str) -> int:
        """Return a required whole number of at least 1.

        Raises:
            CheckpointError: the file has no such value, or another one.
        """
        value = self.need(key)
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"{self._path}: {self.architecture}.{key} must be a whole number of at least 1, found {shown(value)}"
            )
        return value

    def need(self, key: str) -> Any:
        """Return a required value.

        Raises:
            CheckpointError: the file does not have it.
        """
        value = self.find(key)
        if value is None:
            raise CheckpointError(f"{self._path}: {self.architecture}.{key} is missing from its metadata")
        return value


def config_of_gguf(path: Path) -> dict[str, Any]:
    """Make the config.json of a GGUF file.

    Raises:
        CheckpointError: the file is damaged, or a key or a part is missing.
        ConfigError: its architecture is not supported.
    """
    model = GgufModel(path)
    try:
        return _config(_Metadata(path, model.metadata), model)
    finally:
        model.close()


def _config(found: _Metadata, model: GgufModel) -> dict[str, Any]:
    name = found.architecture
    tensors = {name: tensor for name, (tensor, _) in model.tensors.items()}
    if name not in CLASSES:
        raise ConfigError(
            f"{model.path}: {_ARCHITECTURE} {shown(name)} is not supported; supported: {', '.join(CLASSES)}. Give "
            "other models in Hugging Face's form, with config.json and *.safetensors"
        )
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{model.path} is incomplete: tensor token_embd.weight is missing")
    heads, hidden = found.need_count("attention.head_count"), found.need_count("embedding_length")
    kv_heads = found.find("attention.head_count_kv") or heads
    head_size = found.find("attention.key_length") or hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if found.find(key) not in (None, head_size):
            raise ConfigError(f"{model.path}: {name}.{key} is {found.find(key)}, only {head_size} is supported")
    config = {
        "architectures": [CLASSES[name]],
        "model_type": name,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": found.find("feed_forward_length") or found.need("expert_feed_forward_length"),
        "num_hidden_layers": found.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
        "max_position_embeddings": found.need("context_length"),
        "rms_norm_eps": found.need("attention.layer_norm_rms_epsilon"),
        "rope_theta": found.find("rope.freq_base") or 10000.0,
        "rope_scaling": _rope_scaling(found, model),
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": _ends(found.values),
        "bos_token_id": found.values.get("tokenizer.ggml.bos_token_id"),
        "torch_dtype": _dtype(tensors),
        "quantization_config": {
            "quant_method": "gguf",
            "interleaved_heads": [heads, kv_heads] if name == "llama" else None,
            "norms_plus_one": name in _GEMMA,
        },
    }
    return {key: value for key, value in (config | _OTHERS[name](found, tensors)).items() if value is not None}


def _ends(values: Mapping[str, Any]) -> list[int]:
    found = (values.get(f"tokenizer.ggml.{key}") for key in _ENDS)
    return list(dict.fromkeys(token for token in found if token is not None))


def _dtype(tensors: Mapping[str, GgufTensor]) -> str:
    """Return the dtype of activations: the type of most matrices; bfloat16 if any matrix is quantized."""
    kinds = [tensor.dtype for tensor in tensors.values() if len(tensor.shape) > 1]
    usual = collections.Counter(kinds or ["F32"]).most_common(1)[0][0]
    return "bfloat16" if any(kind in BLOCKS for kind in kinds) or usual not in PLAIN else _DTYPES[usual]


def _rope_scaling(found: _Metadata, model: GgufModel) -> dict[str, Any] | None:
    context = found.need("context_length")
    if ROPE_DIVISORS in model.tensors:  # Llama 3: what its scaling does to each frequency
        tensor, file = model.tensors[ROPE_DIVISORS]
        if tensor.dtype not in PLAIN or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_DIVISORS:
            raise CheckpointError(f"{file.path} is corrupt: tensor {ROPE_DIVISORS} is {tensor.dtype}{[*tensor.shape]}")
        divisors: list[float] = np.asarray(file.read(tensor), np.float64).tolist()
        same = {"long_factor": divisors, "short_factor": divisors, "attention_factor": 1.0, "factor": 1.0}
        return {"rope_type": "longrope", "original_max_position_embeddings": context, **same}
    kind, factor = found.find("rope.scaling.type", (str,)), found.find("rope.scaling.factor")
    if kind in (None, "none") or not factor:
        return None
    original = found.find("rope.scaling.original_context_length")
    return {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original or context}


def _llama(found: _Metadata, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    others: dict[str, Any] = {"attention_bias": "blk.0.attn_q.bias" in tensors}
    if found.find("expert_count"):
        others["architectures"] = ["MixtralForCausalLM"]
        others["num_local_experts"] = found.need("expert_count")
        others["num_experts_per_tok"] = found.need("expert_used_count")
    return others


def _qwen3(found: _Metadata, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in tensors}


def _qwen3moe(found: _Metadata, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    return _qwen3(found, tensors) | {
        "num_experts": found.need("expert_count"),
        "num_experts_per_tok": found.need("expert_used_count"),
        "moe_intermediate_size": found.need("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _gemma(found: _Metadata, tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    heads, hidden = found.need_count("attention.head_count"), found.need_count("embedding_length")
    is_27b = found.need("block_count") == _LAYERS_OF_27B[found.architecture]
    pattern = found.find("attention.sliding_window_pattern", (int, list))
    if isinstance(pattern, list):
        types: Any = ["sliding_attention" if is_sliding else "full_attention" for is_sliding in pattern]
    else:
        types = None
    return {
        "query_pre_attn_scalar": hidden // heads if is_27b else found.find("attention.key_length") or hidden // heads,
        "sliding_window": found.find("attention.sliding_window"),
        "sliding_window_pattern": pattern if isinstance(pattern, int) else None,
        "layer_types": types,
        "rope_local_base_freq": found.find("rope.freq_base_swa"),
        "attn_logit_softcapping": found.find("attn_logit_softcapping"),
        "final_logit_softcapping": found.find("final_logit_softcapping"),
    }


_OTHERS: Mapping[str, Callable[[_Metadata, Mapping[str, GgufTensor]], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": lambda found, tensors: {},
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma,
    "gemma3": _gemma,
}
"""Keys that only one architecture has."""
