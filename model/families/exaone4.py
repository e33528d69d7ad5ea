"""EXAONE 4: norms after attention and MLP, and of queries and keys; 32B rotates only where it has windows."""

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError
from palladio.model.config.family import Family
from palladio.model.config.hf_config import FULL, SLIDING, HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, HEAD_NORMS, MLP, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, QKNormSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    norm, kinds = hf.rms_norm(), _kinds(hf)
    plain = LayerSpec(
        attention=AttentionSpec(rope=hf.rope(), scale=hf.scale, qk_norm=QKNormSpec(norm=norm)),
        mlp=DenseSpec(activation=hf.activation()),
        norm=norm,
        norm_placement="post",
    )
    is_hybrid = hf.optional_count("sliding_window") is not None
    layers = {FULL: plain.with_attention(rope=None) if is_hybrid else plain}
    if SLIDING in kinds:
        layers[SLIDING] = plain.with_attention(window=hf.window(SLIDING))
    return DecoderSpec(layers=tuple(layers[kind] for kind in kinds), norm=norm)


def _kinds(hf: HfConfig) -> tuple[str, ...]:
    """Read the kind of every layer. A pattern of letters, such as LLLG, stands for its length."""
    pattern = hf.values.get("sliding_window_pattern")
    if hf.values.get("layer_types") is not None or hf.optional_count("sliding_window") is None:
        return hf.alternating_types(lambda _: True)
    period = len(pattern) if isinstance(pattern, str) else pattern
    is_text = isinstance(pattern, str) and pattern != "L" * (len(pattern) - 1) + "G"
    if is_text or not isinstance(period, int) or isinstance(period, bool) or period < 1:
        raise ConfigError(f"sliding_window_pattern must be a number of layers, or L… and one G, found {shown(pattern)}")
    return hf.alternating_types(lambda layer: (layer + 1) % period == 0)


_NORMS = layer_rules(
    "",
    "",
    ("post_attention_layernorm.weight", "attention_output_norm.scale", "vector"),
    ("post_feedforward_layernorm.weight", "mlp_output_norm.scale", "vector"),
)

FAMILIES = {
    "Exaone4ForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *MLP, *_NORMS),
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
    )
}
