"""Tensor names of GGUF files, translated to the names in the checkpoint that the file was made of."""

import re
from collections.abc import Mapping

_WHOLE: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_USUAL: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS_AROUND: Mapping[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS: Mapping[str, str] = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
_MIXTRAL_EXPERTS: Mapping[str, str] = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
}
_OF_CLASSES: Mapping[str, Mapping[str, str]] = {
    "Gemma2ForCausalLM": _NORMS_AROUND,
    "Gemma3ForCausalLM": _NORMS_AROUND,
    "MixtralForCausalLM": _MIXTRAL_EXPERTS,
    "Qwen3MoeForCausalLM": _EXPERTS,
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_STACKED = re.compile(r"ffn_(gate|up|down)_exps")

ROPE_DIVISORS = "rope_freqs.weight"
"""Not a weight: divisors of frequencies, which config.json has as well."""


def checkpoint_name(name: str, architecture: str) -> str:
    """Translate the name of a tensor. `{expert}` stands for each expert's number where one tensor holds all experts of
    a layer. An unknown name stays as it is.

    Args:
        architecture: the class that config.json would name.
    """
    match = _LAYER.fullmatch(name)
    if match is None:
        stem, _, end = name.rpartition(".")
        return f"{_WHOLE[stem]}.{end}" if stem in _WHOLE else name
    layer, part, end = match.groups()
    found = {**_USUAL, **_OF_CLASSES.get(architecture, {})}.get(part)
    return name if found is None else f"model.layers.{layer}.{found}.{end}"


def is_stacked(name: str) -> bool:
    """Return whether a tensor holds all experts of a layer."""
    match = _LAYER.fullmatch(name)
    return match is not None and _STACKED.fullmatch(match[2]) is not None
