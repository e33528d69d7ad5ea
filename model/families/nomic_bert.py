"""Nomic BERT: rotation, token types, norms of the residual sums and gated MLPs, by the names of its own files."""

from collections.abc import Mapping
from typing import Any

from palladio.model.config.bert_parts import FUSED_ATTENTION, POOLER_HEAD, UNUSED, layer_norm, norm_names, num_types
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.config.weight_tables import TABLES
from palladio.model.spec.encoder_spec import EncoderSpec
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec

_NAMES = {  # of files that were published before transformers had the model
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_OLDER = "activation_function"


def _usual_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {_NAMES.get(key, key): value for key, value in config.items() if key != _OLDER}
    if config.get(_OLDER) == "swiglu":
        found["hidden_act"] = "silu"
    elif _OLDER in config:
        found["hidden_act"] = config[_OLDER]
    return found


def _describe(hf: HfConfig) -> DecoderSpec:
    for key in ("prenorm", "use_rms_norm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved"):
        hf.require(key, False, default=False)
    hf.require("rotary_emb_fraction", 1.0, default=1.0)
    norm, types = layer_norm(hf), num_types(hf, 2)
    layer = LayerSpec(
        attention=AttentionSpec(rope=hf.rope(), scale=hf.scale),
        mlp=DenseSpec(activation=hf.activation(default="silu")),
        norm=norm,
        norm_placement="sums",
    )
    encoder = EncoderSpec(num_types=types, embedding_norm=norm, reads_types=types > 1)
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=norm, encoder=encoder)


_LAYERS = layer_rules(
    "",
    "",
    *FUSED_ATTENTION,
    ("attn.out_proj.weight", "attention.output.kernel", "output"),
    *norm_names("norm1", "attention_output_norm"),
    ("mlp.fc12.weight", "mlp.gate_up.kernel", "gate"),
    ("mlp.fc11.weight", "mlp.gate_up.kernel", "up"),
    ("mlp.fc2.weight", "mlp.down.kernel", "down"),
    *norm_names("norm2", "mlp_output_norm"),
    layers="encoder.layers",
)
_EMBEDDINGS = (
    TABLES[0],
    WeightRule("model.embeddings.token_type_embeddings.weight", "types", "vector"),
    WeightRule("model.emb_ln.weight", "embedding_norm.scale", "vector"),
    WeightRule("model.emb_ln.bias", "embedding_norm.bias", "vector"),
)

FAMILIES = {
    "NomicBertModel": Family(
        describe=_describe,
        weights=(*_EMBEDDINGS, *_LAYERS, *POOLER_HEAD),
        defaults={
            "max_position_embeddings": 2048,
            "rope_theta": 1000.0,
        },
        ignored=UNUSED,
        usual_keys=_usual_keys,
    )
}
