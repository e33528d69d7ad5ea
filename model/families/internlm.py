"""InternLM 2, 2.5 and 3: Llama. The former two name tensors otherwise, and have queries, keys and values in one."""

import dataclasses

from palladio.model.base.errors import ConfigError
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.families import llama
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec


def _describe_2(hf: HfConfig) -> DecoderSpec:
    """Describe InternLM 2 and 2.5; `bias` applies to attention alone."""
    plain, has_bias = llama.describe(hf), hf.flag("bias", default=False)
    layer = plain.layers[0].with_attention(qkv_bias=has_bias, output_bias=has_bias)
    layer = dataclasses.replace(layer, mlp=dataclasses.replace(layer.mlp, bias=False))
    return dataclasses.replace(plain, layers=(layer,) * hf.num_layers)


def _describe_3(hf: HfConfig) -> DecoderSpec:
    """Describe InternLM 3; its own names of biases win, as in transformers."""
    of_heads = hf.flag("qkv_bias" if hf.values.get("qkv_bias") is not None else "attention_bias", default=False)
    of_others = hf.flag("bias" if hf.values.get("bias") is not None else "mlp_bias", default=False)
    if of_heads != of_others:
        raise ConfigError(f"qkv_bias {of_heads} differs from bias {of_others}: no such model is known")
    hf.no_windows()
    norm = hf.rms_norm()
    attention = AttentionSpec(rope=hf.rope(), scale=hf.scale, qkv_bias=of_heads, output_bias=of_others)
    mlp = DenseSpec(activation=hf.activation(), bias=of_others)
    return DecoderSpec(layers=(LayerSpec(attention=attention, mlp=mlp, norm=norm),) * hf.num_layers, norm=norm)


_WEIGHTS = (
    WeightRule("model.tok_embeddings.weight", "embedding.table", "rows"),
    WeightRule("model.norm.weight", "norm.scale", "vector"),
    WeightRule("output.weight", "lm_head.table", "rows"),
    *layer_rules(
        "",
        "",
        ("attention.wqkv.weight", "attention.qkv.kernel", "grouped_query"),
        ("attention.wqkv.weight", "attention.qkv.kernel", "grouped_key"),
        ("attention.wqkv.weight", "attention.qkv.kernel", "grouped_value"),
        ("attention.wqkv.bias", "attention.qkv.bias", "grouped_query_bias"),
        ("attention.wqkv.bias", "attention.qkv.bias", "grouped_key_bias"),
        ("attention.wqkv.bias", "attention.qkv.bias", "grouped_value_bias"),
        ("attention.wo.weight", "attention.output.kernel", "output"),
        ("attention.wo.bias", "attention.output.bias", "vector"),
        ("feed_forward.w1.weight", "mlp.gate_up.kernel", "gate"),
        ("feed_forward.w3.weight", "mlp.gate_up.kernel", "up"),
        ("feed_forward.w2.weight", "mlp.down.kernel", "down"),
        ("attention_norm.weight", "attention_norm.scale", "vector"),
        ("ffn_norm.weight", "mlp_norm.scale", "vector"),
    ),
)

FAMILIES = {
    "InternLM2ForCausalLM": Family(describe=_describe_2, weights=_WEIGHTS, defaults=llama.LLAMA.defaults),
    "InternLM3ForCausalLM": Family(
        describe=_describe_3,
        weights=llama.LLAMA.weights,
        defaults={
            "num_key_value_heads": 2,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 32768,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}
