"""StableLM: Llama with LayerNorms, partly rotated heads, and perhaps attention and MLP side by side."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_tables import ATTENTION, LAYER_NORM_BIASES, MLP, PRE_NORMS, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec
from palladio.model.spec.norm_spec import NormSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.require("qk_layernorm", False, default=False)  # norms of each head are tensors of their own: only 12B has them
    hf.no_windows()
    layer = LayerSpec(
        attention=AttentionSpec(
            rope=hf.rope(default_fraction=0.25),
            scale=hf.scale,
            qkv_bias=hf.flag("use_qkv_bias", default=False),
        ),
        mlp=DenseSpec(activation=hf.activation()),
        norm=NormSpec(kind="layer", eps=hf.number("layer_norm_eps"), scaling="float32", bias=True),
        norm_placement="parallel" if hf.flag("use_parallel_residual", default=False) else "pre",
    )
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=layer.norm)


FAMILIES = {
    "StableLmForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *MLP, *PRE_NORMS, *LAYER_NORM_BIASES),
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "layer_norm_eps": 1e-5,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    )
}
