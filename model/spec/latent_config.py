"""LatentConfig: sizes of latent attention, which makes keys and values of all heads from one row a token."""

import dataclasses
from typing import Self

from palladio.model.base.config_keys import Keys

MAX_SIZE = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Sizes that every layer has.

    Attributes:
        latent_size: size of the cached latent of keys and values (L).
        rotated_size: size of the rotated part of queries and keys; the cache keeps the key's (R).
        plain_size: size of the unrotated part of each head's queries and keys.
        value_size: size of each head's values.
        query_rank: numbers between the two projections that make queries; None: one projection makes them.
        has_pairs: the checkpoint stores the two numbers of a rotated pair next to each other; loading separates them,
            as in other checkpoints.
    """

    latent_size: int
    rotated_size: int
    plain_size: int
    value_size: int
    query_rank: int | None
    has_pairs: bool

    @classmethod
    def from_hf(cls, keys: Keys, rotated_size: int) -> Self:
        """Read config.json.

        Raises:
            ConfigError: a key is missing or does not fit; the message names it.
        """
        return cls(
            latent_size=keys.count("kv_lora_rank", most=MAX_SIZE),
            rotated_size=rotated_size,
            plain_size=keys.count("qk_nope_head_dim", most=MAX_SIZE),
            value_size=keys.count("v_head_dim", most=MAX_SIZE),
            query_rank=keys.optional_count("q_lora_rank", most=MAX_SIZE),
            has_pairs=keys.flag("rope_interleave", default=True),
        )

    @property
    def query_size(self) -> int:
        """Size of each head's query."""
        return self.plain_size + self.rotated_size

    @property
    def row_size(self) -> int:
        """Size of the cache row of a token, without padding."""
        return self.latent_size + self.rotated_size

    @property
    def rotated_order(self) -> tuple[int, ...]:
        """Place of each rotated number in the checkpoint: the first numbers of all pairs, then the second ones."""
        places = range(self.rotated_size)
        return (*places[::2], *places[1::2]) if self.has_pairs else tuple(places)
