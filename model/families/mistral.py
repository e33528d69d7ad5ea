"""Mistral: Llama without biases, with a sliding window on every layer; and Mixtral, its mixture of experts."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_tables import DECODER_WEIGHTS, MIXTRAL_EXPERTS
from palladio.model.spec.experts_config import ExpertKeys, ExpertsConfig
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, RouterSpec, SparseSpec

MIXTRAL_KEYS = ExpertKeys(
    num_experts="num_local_experts",
    other_name="num_experts",
    other_name_wins=True,
    intermediate_size="intermediate_size",
)


def _describe_mistral(hf: HfConfig) -> DecoderSpec:
    return _describe(hf, DenseSpec(activation=hf.activation()))


def _describe_mixtral(hf: HfConfig) -> DecoderSpec:
    mlp = SparseSpec(router=RouterSpec(renormalize=True), activation=hf.activation())
    return _describe(hf, mlp, ExpertsConfig.from_hf(hf, MIXTRAL_KEYS))


def _describe(hf: HfConfig, mlp: DenseSpec | SparseSpec, experts: ExpertsConfig | None = None) -> DecoderSpec:
    norm, rope = hf.rms_norm(), hf.rope()
    layers = (
        LayerSpec(attention=AttentionSpec(rope=rope, scale=hf.scale, window=window), mlp=mlp, norm=norm)
        for window in hf.windows_everywhere()
    )
    return DecoderSpec(layers=tuple(layers), norm=norm, experts=experts)


_DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 131072, "bos_token_id": 1, "eos_token_id": 2}

MISTRAL = Family(describe=_describe_mistral, weights=DECODER_WEIGHTS, defaults={**_DEFAULTS, "sliding_window": 4096})
MIXTRAL = Family(
    describe=_describe_mixtral,
    weights=(*DECODER_WEIGHTS, *MIXTRAL_EXPERTS),
    defaults={**_DEFAULTS, "rope_theta": 1e6, "rms_norm_eps": 1e-5},
)

FAMILIES = {"MistralForCausalLM": MISTRAL, "MixtralForCausalLM": MIXTRAL}
