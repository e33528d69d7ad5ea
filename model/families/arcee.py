"""Arcee (AFM-4.5B): Llama with an MLP without a gate."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_tables import ATTENTION, DOWN, PRE_NORMS, TABLES
from palladio.model.families import llama
from palladio.model.families.nemotron import UP
from palladio.model.spec.layer_spec import DecoderSpec, DenseSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    plain = llama.describe(hf)
    mlp = DenseSpec(activation=hf.activation(default="relu2"), is_gated=False, bias=hf.flag("mlp_bias", default=False))
    layer = dataclasses.replace(plain.layers[0], mlp=mlp)
    return dataclasses.replace(plain, layers=(layer,) * hf.num_layers)


FAMILIES = {
    "ArceeForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *UP, *DOWN, *PRE_NORMS),
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
        },
    )
}
