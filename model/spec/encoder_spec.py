"""Specs of what encoders have beside layers: embeddings, the bias of distances, the head that classifies."""

import dataclasses
from typing import Literal

from palladio.model.spec.norm_spec import NormSpec

TYPE_SHIFT = 24
"""A token's type is in the bits of its id from here on, in a step's token ids; no vocabulary has more ids below."""
MOST_TYPES = 127  # the highest type for which there are bits

HeadActivation = Literal["tanh", "relu", "silu", "gelu", "gelu_tanh"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistanceBias:
    """A bias of scores by the distance of key and query, in buckets that widen with it; all layers share one table.

    Attributes:
        num_buckets: rows of the table, half of them for keys after the query.
        max_distance: from here on all distances are in the last bucket.
    """

    num_buckets: int
    max_distance: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderHead:
    """The head of an encoder that classifies: of a text's pooled row, one more projection, then the labels' logits.

    Attributes:
        pooling: the row: that of the first token, or the mean of all.
        activation: follows the projection.
        bias: the projection has a bias.
        norm: follows the activation; None: there is none.
    """

    pooling: Literal["cls", "mean"] = "cls"
    activation: HeadActivation = "tanh"
    bias: bool = True
    norm: NormSpec | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """A model whose tokens see both ways, without a cache. Windows of its layers are tokens on each side.

    Attributes:
        first_position: row of the table of positions for a text's first token.
        num_types: rows of a table of token types; 0: there is none.
        embedding_norm: norm of embeddings; None: there is none.
        has_last_norm: a norm follows the last layer.
        distances: bias of scores; None: there is none.
        head: head of its form that classifies; None: it has none.
        reads_types: the second text of a pair has type 1; else all tokens have type 0.
    """

    first_position: int = 0
    num_types: int = 0
    embedding_norm: NormSpec | None = None
    has_last_norm: bool = False
    distances: DistanceBias | None = None
    head: EncoderHead | None = EncoderHead()
    reads_types: bool = False
