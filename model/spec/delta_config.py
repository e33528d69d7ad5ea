"""DeltaConfig: sizes of layers with a gated delta rule, which keep a state instead of keys and values."""

import dataclasses
from typing import Self

from palladio.model.base.config_keys import Keys
from palladio.model.base.errors import ConfigError

MAX_HEADS = 4096
MAX_SIZE = 1 << 12
MAX_WIDTH = 64  # tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """Sizes that every such layer has.

    Attributes:
        num_key_heads: heads of queries and keys (K).
        num_value_heads: heads of values (K·R), the same number for each key head; each has a state of its own.
        key_size: size of each head's queries and keys (dk).
        value_size: size of each value head's values (dv).
        width: tokens that the convolution sees, the newest included (W).
    """

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    width: int

    @classmethod
    def from_hf(cls, keys: Keys) -> Self:
        """Read config.json.

        Raises:
            ConfigError: a key is missing or does not fit; the message names it.
        """
        sizes = cls(
            num_key_heads=keys.count("linear_num_key_heads", most=MAX_HEADS),
            num_value_heads=keys.count("linear_num_value_heads", most=MAX_HEADS),
            key_size=keys.count("linear_key_head_dim", most=MAX_SIZE),
            value_size=keys.count("linear_value_head_dim", most=MAX_SIZE),
            width=keys.count("linear_conv_kernel_dim", most=MAX_WIDTH),
        )
        if sizes.num_value_heads % sizes.num_key_heads:
            raise ConfigError(
                f"linear_num_value_heads {sizes.num_value_heads} is not a multiple of linear_num_key_heads "
                f"{sizes.num_key_heads}"
            )
        if sizes.width < 2:
            raise ConfigError(f"linear_conv_kernel_dim must be at least 2, found {sizes.width}")
        return sizes

    @property
    def group(self) -> int:
        """Value heads of a key head (R)."""
        return self.num_value_heads // self.num_key_heads

    @property
    def num_channels(self) -> int:
        """Channels of a key head (C), which the convolution sees: its query, its key, and its values."""
        return 2 * self.key_size + self.group * self.value_size
