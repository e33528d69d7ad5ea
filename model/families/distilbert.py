"""DistilBERT: BERT without token types, by other names."""

from collections.abc import Mapping
from typing import Any

from palladio.model.config.bert_parts import EMBEDDINGS, UNUSED, bert_encoder, head_rules
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.spec.encoder_spec import EncoderHead, EncoderSpec
from palladio.model.spec.layer_spec import DecoderSpec
from palladio.model.spec.norm_spec import NormSpec

_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}


def _usual_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(key, key): value for key, value in config.items() if key not in ("num_key_value_heads",)}


def _describe(hf: HfConfig) -> DecoderSpec:
    norm = NormSpec(kind="layer", eps=1e-12, scaling="float32", bias=True)
    return bert_encoder(hf, EncoderSpec(head=EncoderHead(activation="relu")), norm=norm)


_LAYERS = layer_rules(
    "",
    "",
    ("attention.q_lin.weight", "attention.qkv.kernel", "query"),
    ("attention.k_lin.weight", "attention.qkv.kernel", "key"),
    ("attention.v_lin.weight", "attention.qkv.kernel", "value"),
    ("attention.q_lin.bias", "attention.qkv.bias", "query_bias"),
    ("attention.k_lin.bias", "attention.qkv.bias", "key_bias"),
    ("attention.v_lin.bias", "attention.qkv.bias", "value_bias"),
    ("attention.out_lin.weight", "attention.output.kernel", "output"),
    ("attention.out_lin.bias", "attention.output.bias", "vector"),
    ("sa_layer_norm.weight", "attention_output_norm.scale", "vector"),
    ("sa_layer_norm.bias", "attention_output_norm.bias", "vector"),
    ("ffn.lin1.weight", "mlp.up.kernel", "inner"),
    ("ffn.lin1.bias", "mlp.up.bias", "inner_bias"),
    ("ffn.lin2.weight", "mlp.down.kernel", "down"),
    ("ffn.lin2.bias", "mlp.down.bias", "vector"),
    ("output_layer_norm.weight", "mlp_output_norm.scale", "vector"),
    ("output_layer_norm.bias", "mlp_output_norm.bias", "vector"),
    layers="transformer.layer",
)

FAMILIES = {
    "DistilBertModel": Family(
        describe=_describe,
        weights=(*EMBEDDINGS, *_LAYERS, *head_rules("pre_classifier", "classifier")),
        defaults={"max_position_embeddings": 512},
        ignored=(*UNUSED, r"vocab_(transform|layer_norm|projector)\..*"),
        usual_keys=_usual_keys,
    )
}
