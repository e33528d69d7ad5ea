"""ModelConfig: what a model is, in our words. `from_hf` is the only reader of Hugging Face's key names."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from palladio.model.config_keys import MAX_INT, Keys, shown
from palladio.model.config_overrides import override
from palladio.model.errors import ConfigError
from palladio.model.experts_config import ExpertsConfig
from palladio.model.family import Family
from palladio.model.registry import BASE_MODELS, find_family
from palladio.model.rope_config import MAX_CONTEXT, RopeConfig

DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")

# The most that config.json may ask for: several times what the largest published models have. Beyond it, a wrong file
# would keep the start busy for minutes, or end it in the middle of something else.
MAX_LAYERS = 512
MAX_HEADS = 4096
MAX_HEAD_SIZE = 4096
MAX_HIDDEN_SIZE = 1 << 17
MAX_INTERMEDIATE_SIZE = 1 << 28
MAX_VOCAB_SIZE = 1 << 24
_MAX_BLOCK = 1 << 16  # of a quantized matrix, in one direction

_REQUIRED = (  # settings of which only one value is supported, of every family
    ("hidden_act", "silu"),
    ("partial_rotary_factor", 1.0),
    ("pretraining_tp", 1),
    ("is_encoder_decoder", False),
    ("add_cross_attention", False),
    ("is_causal", True),
)


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """Weights stored as float8 e4m3 with scales; they are dequantized as they are loaded.

    Attributes:
        block_size: rows and columns (as stored: out, in) that share a scale; None: one scale a tensor.
    """

    block_size: tuple[int, int] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. Pure data: the HTTP process reads it without jax.

    Attributes:
        architecture: the class name that config.json gives.
        model_type: the family name that config.json gives.
        vocab_size: rows of the embedding (V); may be more than the tokenizer knows.
        hidden_size: D.
        intermediate_size: F, of the MLP.
        experts: in place of the MLP, in some layers or all; None: in none.
        num_layers: decoder layers.
        num_heads: query heads (N).
        num_kv_heads: key and value heads (K).
        head_size: H.
        rms_norm_eps: of every norm.
        rope: rotary embedding.
        max_position_embeddings: tokens of context that the model is made for, rope scaling included.
        tie_word_embeddings: logits use the embedding's own table.
        qkv_bias, output_bias, mlp_bias: which projections have a bias.
        qk_norm: queries and keys are normalized per head.
        sliding_windows: for each layer, how many keys a query sees; None: all.
        eos_token_ids: tokens that end an answer, those of generation_config.json first.
        bos_token_id: None: the model has none.
        dtype: of the weights as published.
        quantization: how the weights are stored; None: plainly.
        has_head: it makes logits, so it can generate; else only hidden states.
    """

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    experts: ExpertsConfig | None = None
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    dtype: DType
    quantization: QuantizationConfig | None
    has_head: bool = True

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
            )
        if self.head_size % 2:
            raise ConfigError(f"head_dim must be even (rotary embeddings rotate pairs), found {self.head_size}")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> Self:
        """Reads config.json (the styles of transformers 4 and 5) and generation_config.json.

        Raises:
            ConfigError: a key is missing, or its value asks for something unsupported; the message names the key.
        """
        architecture = _architecture(config)
        family = find_family(architecture)
        keys = Keys(config)
        _refuse_unsupported(keys, family)
        hidden_size = keys.count("hidden_size", most=MAX_HIDDEN_SIZE)
        num_heads = keys.count("num_attention_heads", most=MAX_HEADS)
        head_size = keys.optional_count("head_dim", most=MAX_HEAD_SIZE) or family.head_size
        if head_size is None:
            if hidden_size % num_heads:
                raise ConfigError(f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}")
            head_size = hidden_size // num_heads
            if head_size > MAX_HEAD_SIZE:
                raise ConfigError(
                    f"head size {head_size} (hidden_size {hidden_size} / num_attention_heads {num_heads}) is not "
                    f"supported; the maximum is {MAX_HEAD_SIZE}"
                )
        num_kv_heads = keys.optional_count("num_key_value_heads", most=MAX_HEADS)
        if num_kv_heads is None:
            explicit_none = "num_key_value_heads" in config or family.num_kv_heads is None
            num_kv_heads = num_heads if explicit_none else family.num_kv_heads
            assert num_kv_heads is not None
        num_layers = keys.count("num_hidden_layers", most=MAX_LAYERS)
        max_position = keys.optional_count("max_position_embeddings", most=MAX_CONTEXT)
        max_position = max_position or family.default_max_position_embeddings
        rope = RopeConfig.from_hf(config, max_position, family.default_rope_theta)
        attention_bias = keys.flag("attention_bias", default=False)
        return cls(
            architecture=architecture,
            model_type=str(config.get("model_type", "")),
            vocab_size=keys.count("vocab_size", most=MAX_VOCAB_SIZE),
            hidden_size=hidden_size,
            intermediate_size=keys.count("intermediate_size", most=MAX_INTERMEDIATE_SIZE),
            experts=None if family.experts is None else ExpertsConfig.from_hf(keys, family.experts, num_layers),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            rms_norm_eps=keys.number("rms_norm_eps", default=family.default_rms_norm_eps),
            rope=rope,
            max_position_embeddings=rope.context_length(max_position),
            tie_word_embeddings=keys.flag("tie_word_embeddings", default=False),
            qkv_bias=family.qkv_bias == "always" or (family.qkv_bias == "configured" and attention_bias),
            output_bias=family.output_bias == "configured" and attention_bias,
            mlp_bias=family.mlp_bias == "configured" and keys.flag("mlp_bias", default=False),
            qk_norm=family.qk_norm,
            sliding_windows=_sliding_windows(keys, family, num_layers),
            eos_token_ids=_eos_token_ids(config, generation_config or {}, family),
            bos_token_id=keys.optional_count("bos_token_id", least=0, default=family.bos_token_id),
            dtype=_dtype(config),
            quantization=_quantization(config),
            has_head=architecture not in BASE_MODELS,
        )


def read_model_dir(
    path: Path, overrides: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Reads config.json, with `overrides` merged over it, and generation_config.json where there is one.

    Raises:
        ConfigError: config.json is missing, or a file is not a JSON object.
    """
    if not path.is_dir():
        raise ConfigError(f"{path} is not a directory; a model path must contain config.json and *.safetensors")
    config = _read_json(path / "config.json")
    if config is None:
        has_tokenizer = any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
        hint = "it has only a tokenizer: download the whole model" if has_tokenizer else "give a Hugging Face model"
        raise ConfigError(f"no config.json in {path}; {hint}, with config.json and *.safetensors")
    return override(config, overrides or {}), _read_json(path / "generation_config.json")


def read_config_file(path: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json alone, with `overrides` merged over it.

    Raises:
        ConfigError: it is not a JSON object.
    """
    return override(_read_json(path) or {}, overrides)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must contain a JSON object, found {type(value).__name__}")
    return value


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError(f"architectures must be a list of one class name, found {shown(names)}")
    return names[0]


def _refuse_unsupported(keys: Keys, family: Family) -> None:
    """Settings that would change the numbers silently."""
    for key, value in (*family.required, *_REQUIRED):
        keys.require(key, value, default=value)


def _sliding_windows(keys: Keys, family: Family, num_layers: int) -> tuple[int | None, ...]:
    types = keys.values.get("layer_types")
    if types is not None and not isinstance(types, list):
        raise ConfigError(f"layer_types must be a list of names, found {shown(types)}")
    if types is not None:
        unknown = [kind for kind in types if kind not in ("full_attention", "sliding_attention")]
        if unknown or len(types) != num_layers:
            raise ConfigError(
                f"layer_types must list full_attention or sliding_attention for each of the {num_layers} layers,"
                f" found {shown(types)}"
            )
    if family.sliding_window == "none":
        if types is not None and "sliding_attention" in types:
            raise ConfigError("layer_types: this architecture does not support sliding_attention")
        return (None,) * num_layers
    window = keys.optional_count("sliding_window", default=family.default_sliding_window)
    if family.sliding_window == "all":
        if types is not None and window is not None and "full_attention" in types:
            raise ConfigError("layer_types: this architecture uses sliding_window on every layer")
        return (window,) * num_layers
    if not keys.flag("use_sliding_window", default=False):
        window = None
    if types is None:
        first = keys.optional_count("max_window_layers", least=0)
        first = 28 if first is None else first
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if window is None and "sliding_attention" in types:
        raise ConfigError("layer_types contains sliding_attention, but use_sliding_window or sliding_window is not set")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _eos_token_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any], family: Family) -> tuple[int, ...]:
    ids: list[int] = []
    for source in (generation_config, config):
        value = source.get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token <= MAX_INT for token in found):
            raise ConfigError(f"eos_token_id must be a token id or a list of them, found {shown(value)}")
        ids += [token for token in found if token not in ids]
    if not ids and "eos_token_id" not in config and family.eos_token_id is not None:
        ids = [family.eos_token_id]
    return tuple(ids)


def _dtype(config: Mapping[str, Any]) -> DType:
    name = config.get("torch_dtype") if config.get("dtype") is None else config["dtype"]
    known: dict[object, DType] = {None: "float32", **{dtype: dtype for dtype in DTYPES}}
    if not isinstance(name, str | None) or name not in known:
        raise ConfigError(f"dtype: {shown(name)} is not supported; supported: {', '.join(DTYPES)}")
    return known[name]


def _quantization(config: Mapping[str, Any]) -> QuantizationConfig | None:
    found = config.get("quantization_config")
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise ConfigError(f"quantization_config must be an object, found {shown(found)}")
    if found.get("quant_method") != "fp8":
        raise ConfigError(
            f"quantization_config.quant_method: {shown(found.get('quant_method'))} is not supported; only fp8"
        )
    keys = Keys(found, "quantization_config.")
    keys.require("fmt", "e4m3", default="e4m3")
    keys.require("activation_scheme", "dynamic", default="dynamic")
    block = found.get("weight_block_size")
    if block is None:
        return QuantizationConfig(None)
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and 0 < n <= _MAX_BLOCK for n in block)):
        raise ConfigError(
            f"quantization_config.weight_block_size must be two numbers in 1 … {_MAX_BLOCK}, found {shown(block)}"
        )
    return QuantizationConfig((block[0], block[1]))
