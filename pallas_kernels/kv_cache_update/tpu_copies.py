"""The order in which TPU kernels of single tiles read, change and write: a block of tiles a grid step.

A tile is small and memory is far away. So the tiles of a whole block are copied at once, while the block before is
written and the one after it is read.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
from jax.experimental import pallas as pl

NUM_BUFFERS = 3  # one is read, one changed, one written
Act = Literal["start", "wait"]


@dataclasses.dataclass(frozen=True, slots=True)
class BlockCopies:
    """Copies of a grid step's tiles.

    Attributes:
        read, write: start or await the copies of a grid step's tiles, between the cache and buffer number step mod
            NUM_BUFFERS.
    """

    read: Callable[[Act, jax.Array], None]
    write: Callable[[Act, jax.Array], None]

    def begin(self, step: jax.Array, num_steps: jax.Array) -> None:
        """Wait until a step's tiles have arrived, and start reading those of the next step."""
        oldest = NUM_BUFFERS - 1
        pl.when(step == 0)(lambda: self.read("start", step))
        pl.when(step >= oldest)(lambda: self.write("wait", step - oldest))  # of the buffer that the next reads go to
        pl.when(step + 1 < num_steps)(lambda: self.read("start", step + 1))
        self.read("wait", step)

    def end(self, step: jax.Array, num_steps: jax.Array) -> None:
        """Start writing a step's tiles, after they are changed. The last step waits for all writes."""
        self.write("start", step)
        for age in reversed(range(NUM_BUFFERS - 1)):
            pl.when((step + 1 == num_steps) & (step >= age))(functools.partial(self.write, "wait", step - age))
