"""NormSpec: a norm over the last dimension, as a value."""

import dataclasses
from typing import Literal

NormScaling = Literal["rounded", "float32", "plus_one"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormSpec:
    """A norm over the last dimension; mean and mean of squares are in float32.

    Attributes:
        eps: added to the mean of squares.
        kind: rms: x / rms(x); layer: the mean is subtracted first.
        scaling: rounded: the normalized x is rounded to the dtype of activations, then multiplied by the scale;
            float32: multiplied, then rounded; plus_one: the same with 1 + scale.
        bias: one is added after the scale.
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    scaling: NormScaling = "rounded"
    bias: bool = False
