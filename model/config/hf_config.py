"""HfConfig: config.json as a family reads it, with the family's defaults for the keys that it leaves out."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, get_args

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import ConfigError
from palladio.model.spec.layer_spec import Activation
from palladio.model.spec.norm_spec import NormScaling, NormSpec
from palladio.model.spec.rope_config import MAX_CONTEXT, RopeConfig

# The most that config.json may ask for: several times what the largest published models have. Beyond it, a wrong file
# would keep the start busy for minutes, or end it in the middle of something else.
MAX_LAYERS = 512
MAX_HEADS = 4096
MAX_HEAD_SIZE = 4096
MAX_HIDDEN_SIZE = 1 << 17

logger = logging.getLogger(__name__)

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
_OLDER_TYPES = {"attention": FULL, "mamba": LINEAR}  # names of layers that transformers 5 still reads
_NAMES: Mapping[Activation, tuple[str, ...]] = {  # that transformers has for each
    "silu": ("silu", "swish"),
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"),
    "quick_gelu": ("quick_gelu",),
    "relu": ("relu",),
    "relu2": ("relu2",),
}
_ACTIVATIONS: Mapping[str, Activation] = {name: activation for activation, names in _NAMES.items() for name in names}


class HfConfig(Keys):
    """Typed access to a model's config.json, and readers of values that several families share.

    Every method raises ConfigError if a key is missing or asks for something unsupported; the message names the key.

    Attributes:
        hidden_size: D.
        num_layers: layers of the decoder.
        num_heads: query heads (N).
        num_kv_heads: key and value heads (K).
        head_size: H; in latent attention, the size of the rotated part.
        max_position: tokens of context, before rope scaling extends it.
    """

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, object]) -> None:
        super().__init__(config, defaults=defaults)
        self.require("is_encoder_decoder", False, default=False)
        self.require("is_causal", True, default=True)
        self.hidden_size = self.count("hidden_size", most=MAX_HIDDEN_SIZE)
        self.num_heads = self.count("num_attention_heads", most=MAX_HEADS)
        rotated = self.optional_count("qk_rope_head_dim", most=MAX_HEAD_SIZE)  # of latent attention
        self.head_size = rotated or self.count_or_default("head_dim", most=MAX_HEAD_SIZE) or self._derived_head_size()
        self.num_kv_heads = self.optional_count("num_key_value_heads", most=MAX_HEADS) or self.num_heads
        self.num_layers = self.count("num_hidden_layers", most=MAX_LAYERS)
        self.max_position = self.count_or_default("max_position_embeddings", most=MAX_CONTEXT) or 2048

    def _derived_head_size(self) -> int:
        hidden_size, num_heads = self.hidden_size, self.num_heads
        if hidden_size % num_heads:
            raise ConfigError(f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}")
        head_size = hidden_size // num_heads
        if head_size > MAX_HEAD_SIZE:
            raise ConfigError(
                f"head size {head_size} (hidden_size {hidden_size} / num_attention_heads {num_heads}) is not "
                f"supported; the maximum is {MAX_HEAD_SIZE}"
            )
        return head_size

    @property
    def scale(self) -> float:
        """The factor on scores that most families have."""
        return float(self.head_size**-0.5)

    def rms_norm(self, scaling: NormScaling = "rounded") -> NormSpec:
        """Return the norm of hidden states that most families have."""
        return NormSpec(eps=self.number("rms_norm_eps", default=1e-6), scaling=scaling)

    def activation(
        self, key: str = "hidden_act", *, default: str = "silu", only: Activation | None = None
    ) -> Activation:
        """Read the activation under `key`.

        Args:
            default: the name to use if config.json has none.
            only: the only activation that the family supports; None: all.
        """
        names = _ACTIVATIONS if only is None else _NAMES[only]
        name = default if self.values.get(key) is None else self.values[key]
        if not isinstance(name, str) or name not in names:
            raise ConfigError(f"{key}: {shown(name)} is not supported; supported: {', '.join(names)}")
        return _ACTIVATIONS[name]

    def rope(self, *, is_interleaved: bool = False, default_fraction: float | None = None) -> RopeConfig:
        """Read one rotary embedding for all layers; RopeConfig.from_hf describes the arguments."""
        theta = self.default_number("rope_theta", 10000.0)
        rope = RopeConfig.from_hf(
            self.values, self.max_position, theta, is_interleaved=is_interleaved, default_fraction=default_fraction
        )
        return rope.checked(self.head_size)

    def layered_rope(self, kind: str, theta_key: str, default_theta: float) -> RopeConfig:
        """Read the rotary embedding of the layers of one kind, as `layer_types` names it. rope_parameters (transformers
        5) has an object for each kind; before, rope_scaling applied only to layers with full attention.

        Args:
            theta_key: the key that gave the base of the frequencies before transformers 5.
            default_theta: the base if config.json gives none.
        """
        nested = self.values.get("rope_parameters")
        nested = {} if nested is None else nested
        is_object = isinstance(nested, Mapping)
        if not is_object or not all(isinstance(nested.get(name), Mapping | None) for name in (FULL, SLIDING)):
            raise ConfigError(
                f"rope_parameters must hold an object for each of {FULL} and {SLIDING}, found {shown(nested)}"
            )
        others = [key for key in nested if key not in (FULL, SLIDING)]
        if others and kind == FULL:
            logger.warning(
                "config.json: %s in rope_parameters has no effect: this architecture has objects for %s and %s there",
                ", ".join(others),
                FULL,
                SLIDING,
            )
        own: dict[str, Any] = dict(nested.get(kind) or {})
        scaling = self.values.get("rope_scaling")
        if kind == FULL and scaling is not None:
            if not isinstance(scaling, Mapping):
                raise ConfigError(f"rope_scaling must be an object, found {shown(scaling)}")
            own |= scaling
        if own.get("rope_theta") is None:
            own["rope_theta"] = self.number(theta_key, default=default_theta)
        outer = {"original_max_position_embeddings": self.values.get("original_max_position_embeddings")}
        rope = RopeConfig.from_hf({"rope_parameters": own, **outer}, self.max_position, default_theta)
        return rope.checked(self.head_size)

    def layer_types(self, allowed: tuple[str, ...] = (FULL, SLIDING)) -> tuple[str, ...] | None:
        """Read the kind of every layer; None: config.json does not say."""
        types = self.values.get("layer_types")
        if types is None:
            return None
        if not isinstance(types, list):
            raise ConfigError(f"layer_types must be a list of names, found {shown(types)}")
        types = [_OLDER_TYPES.get(kind, kind) if isinstance(kind, str) else kind for kind in types]
        if len(types) != self.num_layers or any(kind not in allowed for kind in types):
            raise ConfigError(
                f"layer_types must list {' or '.join(allowed)} for each of the {self.num_layers} layers,"
                f" found {shown(types)}"
            )
        return tuple(types)

    def no_windows(self) -> tuple[int | None, ...]:
        """Return no window for each layer, for a family without windows. In transformers the cache reads layer_types,
        attention does not.

        Raises:
            ConfigError: layer_types asks for a window.
        """
        if SLIDING in (self.layer_types() or ()):
            raise ConfigError(f"layer_types: this architecture does not support {SLIDING}")
        return (None,) * self.num_layers

    def windows_everywhere(self) -> tuple[int | None, ...]:
        """Return sliding_window for each layer, if config.json has one."""
        types, window = self.layer_types(), self.optional_count("sliding_window")
        if types is not None and window is not None and FULL in types:  # transformers makes a Mistral a Ministral then
            raise ConfigError("layer_types: this architecture uses sliding_window on every layer")
        return (window,) * self.num_layers

    def windows_of_upper_layers(self) -> tuple[int | None, ...]:
        """Return the window of each layer: sliding_window from max_window_layers on, or by layer_types, if
        use_sliding_window is set."""
        types, window = self.layer_types(), self.optional_count("sliding_window")
        if not self.flag("use_sliding_window", default=False):
            window = None
        if types is None:
            first = self.optional_count("max_window_layers", least=0)
            first = 28 if first is None else first
            return tuple(window if layer >= first else None for layer in range(self.num_layers))
        if window is None and SLIDING in types:
            raise ConfigError(f"layer_types contains {SLIDING}, but use_sliding_window or sliding_window is not set")
        return tuple(window if kind == SLIDING else None for kind in types)

    def alternating_types(self, is_full: Callable[[int], bool]) -> tuple[str, ...]:
        """Return the kind of each layer: by layer_types, or, without it, full attention where `is_full(number)` is
        true.

        Raises:
            ConfigError: a layer has a window, and sliding_window is null.
        """
        types = self.layer_types()
        if types is None:
            types = tuple(FULL if is_full(layer) else SLIDING for layer in range(self.num_layers))
        if SLIDING in types:
            self.count("sliding_window")
        return types

    def hybrid_types(self) -> tuple[str, ...]:
        """Return the kind of each layer: by layer_types, or, without it, full attention in every
        full_attention_interval-th layer and a state in the others.

        Raises:
            ConfigError: no layer has attention.
        """
        types = self.layer_types((FULL, LINEAR))
        if types is None:
            period = self.optional_count("full_attention_interval", default=4) or 4
            types = tuple(LINEAR if (layer + 1) % period else FULL for layer in range(self.num_layers))
        if FULL not in types:
            raise ConfigError(f"layer_types: models without any {FULL} are not supported")
        return types

    def window(self, kind: str) -> int | None:
        """Return the window of the layers of a kind."""
        return self.count("sliding_window") if kind == SLIDING else None


assert set(_NAMES) == set(get_args(Activation))
