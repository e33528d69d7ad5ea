"""Granite 3, dense and mixtures: Llama with factors on embeddings, scores, residual sums and logits."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, PRE_NORMS, TABLES
from palladio.model.families import llama
from palladio.model.families.mistral import MIXTRAL_KEYS
from palladio.model.spec.experts_config import ExpertsConfig
from palladio.model.spec.layer_spec import DecoderSpec, RouterSpec, SparseSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    plain = llama.describe(hf)
    layer = dataclasses.replace(
        plain.layers[0].with_attention(scale=hf.number("attention_multiplier")),
        residual_scale=hf.number("residual_multiplier"),
    )
    return dataclasses.replace(
        plain,
        layers=(layer,) * hf.num_layers,
        embedding_scale=hf.number("embedding_multiplier"),
        logits_scale=1 / hf.number("logits_scaling"),
    )


def _describe_moe(hf: HfConfig) -> DecoderSpec:
    dense = _describe(hf)
    mlp = SparseSpec(router=RouterSpec(renormalize=True), activation=hf.activation())
    layer = dataclasses.replace(dense.layers[0], mlp=mlp)
    return dataclasses.replace(dense, layers=(layer,) * hf.num_layers, experts=ExpertsConfig.from_hf(hf, MIXTRAL_KEYS))


_FACTORS = ("attention_multiplier", "residual_multiplier", "embedding_multiplier", "logits_scaling")

_DEFAULTS = {**llama.LLAMA.defaults, **dict.fromkeys(_FACTORS, 1.0)}
_EXPERTS = layer_rules(
    "block_sparse_moe.",
    "mlp.",
    ("router.layer.weight", "router", "transposed"),
    ("input_linear.weight", "gate", "experts_gate"),
    ("input_linear.weight", "up", "experts_up"),
    ("output_linear.weight", "down", "experts_down"),
)

FAMILIES = {
    "GraniteForCausalLM": Family(describe=_describe, weights=llama.LLAMA.weights, defaults=_DEFAULTS),
    "GraniteMoeForCausalLM": Family(
        describe=_describe_moe,
        weights=(*TABLES, *ATTENTION, *_EXPERTS, *PRE_NORMS),
        defaults={**_DEFAULTS, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
}
