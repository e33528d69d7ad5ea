"""The trial of attention within packed segments."""

import dataclasses
import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from palladio.pallas_kernels.segment_attention import Segments, segment_attention
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.trials.case import Case, HostArray, Inputs, Work, flat, random

NUM_TOKENS: Final = 1024
BIAS_DISTANCE: Final = 128  # of a trial's bias
_PACKS: Final = (  # tokens of each text: at the ends of the kernels' blocks, over several of them, none
    ("ends of blocks", (1, 2, 63, 64, 65, 127, 128, 129, 200)),
    ("one long text", (NUM_TOKENS - 3,)),
    ("padding alone", ()),
)


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentLayer:
    """Sizes and options of a layer on one device.

    Attributes:
        num_heads, num_kv_heads, head_size: of the device.
        dtype: dtype of queries, keys and values.
        scale, window: see segment_attention.
        has_bias: scores have a bias by distance.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: DTypeLike
    scale: float
    window: int | None
    has_bias: bool = False

    def cases(self) -> list[Case]:
        """Return the program of a trial."""
        inputs = tuple(
            Inputs(name, functools.partial(self._make, lengths), _kept, self._work(lengths)) for name, lengths in _PACKS
        )
        window = "" if self.window is None else f"window {self.window}, "
        return [
            Case(
                name=f"pack of {NUM_TOKENS} tokens",
                call=self._call,
                expected=functools.partial(self._call, "reference", Target()),
                inputs=inputs,
                dtype=self.dtype,
                layer=str(self),
                options=f"{window}heads of {self.head_size}",
            )
        ]

    def _work(self, lengths: tuple[int, ...]) -> Work:
        most = NUM_TOKENS if self.window is None else 2 * self.window + 1
        products = sum(length * min(length, most) for length in lengths)
        heads = 2 * self.num_heads + 2 * self.num_kv_heads  # queries and results, keys and values
        size = jnp.dtype(self.dtype).itemsize
        return Work(sum(lengths) * heads * self.head_size * size, 4 * products * self.num_heads * self.head_size)

    def _make(self, lengths: tuple[int, ...]) -> tuple[Any, ...]:
        """Make queries, keys, values, the segments' starts and stops, and the bias."""
        rng, H = np.random.default_rng(len(lengths)), self.head_size
        starts, stops = np.zeros(NUM_TOKENS, np.int32), np.zeros(NUM_TOKENS, np.int32)
        end = 0
        for length in lengths:
            starts[end : end + length], stops[end : end + length] = end, end + length
            end += length
        q = random(rng, (NUM_TOKENS, self.num_heads, H), self.dtype)
        k, v = (random(rng, (NUM_TOKENS, self.num_kv_heads, H), self.dtype) for _ in range(2))
        bias = random(rng, (self.num_heads, 2 * BIAS_DISTANCE + 1)) if self.has_bias else None
        return q, k, v, starts, stops, bias

    def _call(
        self,
        backend: str,
        target: Target,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        starts: jax.Array,
        stops: jax.Array,
        bias: jax.Array | None,
    ) -> jax.Array:
        """Attend as a layer does."""
        segments = Segments(starts, stops)
        options: dict[str, Any] = {"scale": self.scale, "window": self.window, "bias": bias}
        return segment_attention(q, k, v, segments, **options, backend=backend, target=target)


def _kept(out: HostArray) -> list[HostArray]:
    """Return all rows: those of padding are 0."""
    return [flat(out)]
