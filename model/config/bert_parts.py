"""What encoders of BERT's form share: weight tables, their head, and how config.json describes them."""

import dataclasses

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import Transform, WeightRule, layer_rules
from palladio.model.config.weight_tables import TABLES
from palladio.model.spec.encoder_spec import EncoderHead, EncoderSpec, HeadActivation
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec
from palladio.model.spec.norm_spec import NormSpec

_ACTIVATIONS: tuple[HeadActivation, ...] = ("gelu", "gelu_tanh", "silu", "relu")
EMBEDDINGS = (
    TABLES[0],
    WeightRule("model.embeddings.position_embeddings.weight", "positions", "vector"),
    WeightRule("model.embeddings.token_type_embeddings.weight", "types", "vector"),
    WeightRule("model.embeddings.LayerNorm.weight", "embedding_norm.scale", "vector"),
    WeightRule("model.embeddings.LayerNorm.bias", "embedding_norm.bias", "vector"),
)
OUTPUTS = layer_rules(
    "",
    "",
    ("intermediate.dense.weight", "mlp.up.kernel", "inner"),
    ("intermediate.dense.bias", "mlp.up.bias", "inner_bias"),
    ("output.dense.weight", "mlp.down.kernel", "down"),
    ("output.dense.bias", "mlp.down.bias", "vector"),
    ("output.LayerNorm.weight", "mlp_output_norm.scale", "vector"),
    ("output.LayerNorm.bias", "mlp_output_norm.bias", "vector"),
    layers="encoder.layer",
)
LAYERS = (
    *layer_rules(
        "attention.",
        "",
        ("self.query.weight", "attention.qkv.kernel", "query"),
        ("self.key.weight", "attention.qkv.kernel", "key"),
        ("self.value.weight", "attention.qkv.kernel", "value"),
        ("self.query.bias", "attention.qkv.bias", "query_bias"),
        ("self.key.bias", "attention.qkv.bias", "key_bias"),
        ("self.value.bias", "attention.qkv.bias", "value_bias"),
        ("output.dense.weight", "attention.output.kernel", "output"),
        ("output.dense.bias", "attention.output.bias", "vector"),
        ("output.LayerNorm.weight", "attention_output_norm.scale", "vector"),
        ("output.LayerNorm.bias", "attention_output_norm.bias", "vector"),
        layers="encoder.layer",
    ),
    *OUTPUTS,
)


FUSED_ATTENTION: tuple[tuple[str, str, Transform], ...] = (
    ("attn.Wqkv.weight", "attention.qkv.kernel", "fused_query"),
    ("attn.Wqkv.weight", "attention.qkv.kernel", "fused_key"),
    ("attn.Wqkv.weight", "attention.qkv.kernel", "fused_value"),
    ("attn.Wqkv.bias", "attention.qkv.bias", "fused_query_bias"),
    ("attn.Wqkv.bias", "attention.qkv.bias", "fused_key_bias"),
    ("attn.Wqkv.bias", "attention.qkv.bias", "fused_value_bias"),
)
"""Queries, keys and values as one tensor, for `layer_rules`."""


def norm_names(stored: str, param: str) -> tuple[tuple[str, str, Transform], ...]:
    """Name the scale and the bias of a norm, for `layer_rules`."""
    return (f"{stored}.weight", f"{param}.scale", "vector"), (f"{stored}.bias", f"{param}.bias", "vector")


def back_names(stored: str, param: str, transform: Transform) -> tuple[tuple[str, str, Transform], ...]:
    """Name the kernel and the bias of a projection back, for `layer_rules`."""
    return (f"{stored}.weight", f"{param}.kernel", transform), (f"{stored}.bias", f"{param}.bias", "vector")


def head_rules(dense: str, labels: str) -> tuple[WeightRule, ...]:
    """Make the rules of the head that classifies, by the names of its two projections."""
    return (
        WeightRule(f"{dense}.weight", "score.dense", "transposed"),
        WeightRule(f"{dense}.bias", "score.dense_bias", "vector"),
        WeightRule(f"{labels}.weight", "score.labels.table", "vector"),
        WeightRule(f"{labels}.bias", "score.labels.bias", "vector"),
    )


POOLER_HEAD = head_rules("model.pooler.dense", "classifier")
UNUSED = (r"model\.pooler\..*", r"model\.embeddings\.(position_ids|token_type_ids)", r"(model\.)?(cls|lm_head)\..*")
"""Patterns of tensors that embeddings do not use: the pooler of a next-sentence task, buffers, heads for masks."""


def layer_norm(hf: HfConfig, key: str = "layer_norm_eps", *, default: float = 1e-12, bias: bool = True) -> NormSpec:
    """Read the norm of hidden states that BERT's relatives have."""
    return NormSpec(kind="layer", eps=hf.number(key, default=default), scaling="float32", bias=bias)


def bert_encoder(
    hf: HfConfig, encoder: EncoderSpec, *, activation: str = "hidden_act", norm: NormSpec | None = None
) -> DecoderSpec:
    """Describe an encoder of BERT's form.

    Args:
        encoder: what differs; the norm of embeddings is added.
        activation: key of the activation.
        norm: norm of hidden states; None: that of `layer_norm_eps`.
    """
    for key in ("is_decoder", "add_cross_attention"):
        hf.require(key, False, default=False)
    hf.require("position_embedding_type", "absolute", default="absolute")
    norm = layer_norm(hf) if norm is None else norm
    layer = LayerSpec(
        attention=AttentionSpec(rope=None, scale=hf.scale, qkv_bias=True, output_bias=True),
        mlp=DenseSpec(activation=hf.activation(activation, default="gelu"), is_gated=False, bias=True),
        norm=norm,
        norm_placement="sums",
    )
    return DecoderSpec(
        layers=(layer,) * hf.num_layers,
        norm=norm,
        learned_positions=hf.max_position,
        encoder=dataclasses.replace(encoder, embedding_norm=norm),
    )


def num_types(hf: HfConfig, default: int) -> int:
    """Read the number of token types; 0: there is no table of them."""
    found = hf.optional_count("type_vocab_size", least=0, most=1 << 10, default=default)
    if found is None:
        raise ConfigError(f"type_vocab_size must be a whole number, found {shown(found)}")
    return found


def read_head(hf: HfConfig, norm: NormSpec) -> EncoderHead:
    """Read the head that classifies where config.json describes it, as ModernBERT's does."""
    pooling = hf.values.get("classifier_pooling", "cls")
    named = hf.activation("classifier_activation", default="gelu")
    activation = next((one for one in _ACTIVATIONS if one == named), None)
    if pooling not in ("cls", "mean"):
        raise ConfigError(f"classifier_pooling must be cls or mean, found {shown(pooling)}")
    if activation is None:
        raise ConfigError(f"classifier_activation: {named} is not supported; only {', '.join(_ACTIVATIONS)} are")
    has_bias = hf.flag("classifier_bias", default=False)
    return EncoderHead(pooling=pooling, activation=activation, bias=has_bias, norm=norm)
