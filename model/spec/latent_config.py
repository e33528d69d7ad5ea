"""LatentConfig: sizes of latent attention, of which keys and values of all heads are made from one row a token."""

import dataclasses
from typing import Self

from palladio.model.base.config_keys import Keys

MAX_SIZE = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Sizes that every layer has.

    Attributes:
        latent_size: of what the cache keeps of keys and values (L).
        rotated_size: of the part of queries and keys that is rotated; the cache keeps that of the key (R).
        plain_size: of the part of each head's queries and keys that is not.
        value_size: of each head's values.
        query_rank: queries are made by two projections, with so many numbers between them; None: by one.
        has_pairs: the checkpoint has the two numbers that are rotated together side by side; they are taken apart, as
            others have them, while it loads.
    """

    latent_size: int
    rotated_size: int
    plain_size: int
    value_size: int
    query_rank: int | None
    has_pairs: bool

    @classmethod
    def from_hf(cls, keys: Keys, rotated_size: int) -> Self:
        """Reads config.json.

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
        """Of each head's query."""
        return self.plain_size + self.rotated_size

    @property
    def row_size(self) -> int:
        """Of what the cache keeps of a token, without padding."""
        return self.latent_size + self.rotated_size

    @property
    def rotated_order(self) -> tuple[int, ...]:
        """Of each rotated number, its place in the checkpoint: the first ones of all pairs, then the second ones."""
        places = range(self.rotated_size)
        return (*places[::2], *places[1::2]) if self.has_pairs else tuple(places)
