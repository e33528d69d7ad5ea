"""SmolLM3: Llama without a rotary embedding on every fourth layer, which may have a window."""

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError
from palladio.model.config.family import Family
from palladio.model.config.hf_config import FULL, SLIDING, HfConfig
from palladio.model.families import llama
from palladio.model.spec.layer_spec import DecoderSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    layer, has_rope, types = llama.layer_of(hf), _has_rope(hf), hf.layer_types()
    if types is None:
        window = hf.optional_count("sliding_window") if hf.flag("use_sliding_window", default=False) else None
        types = tuple(FULL if has or window is None else SLIDING for has in has_rope)
    layers = (
        layer.with_attention(rope=layer.attention.rope if has else None, window=hf.window(kind))
        for has, kind in zip(has_rope, types, strict=True)
    )
    return DecoderSpec(layers=tuple(layers), norm=layer.norm)


def _has_rope(hf: HfConfig) -> list[int]:
    """Return 1 for each layer with a rotary embedding, 0 for the others."""
    found = hf.values.get("no_rope_layers")
    if found is None:
        interval = hf.count("no_rope_layer_interval")
        return [int((layer + 1) % interval != 0) for layer in range(hf.num_layers)]
    flags = [int(has) for has in found if type(has) is int and has in (0, 1)] if isinstance(found, list) else []
    if len(flags) != hf.num_layers or len(found) != hf.num_layers:
        raise ConfigError(
            f"no_rope_layers must list 1 (rotary embedding) or 0 (none) for each of the {hf.num_layers} layers, found "
            f"{shown(found)}"
        )
    return flags


FAMILIES = {
    "SmolLM3ForCausalLM": Family(
        describe=_describe,
        weights=llama.LLAMA.weights,
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rope_theta": 2e6,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
            "pad_token_id": 128004,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
        },
    )
}
