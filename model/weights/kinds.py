"""WeightKind and WeightKinds: in which bits each weight of a model is kept, as plain values. Imports no jax."""

import dataclasses
import math
import re
from typing import Literal

Storage = Literal["int8", "float8_e4m3fn"]

SCALE_BYTES = 4  # scales are float32
_LAYER = re.compile(r"\blayers\.\d+\.")


@dataclasses.dataclass(frozen=True, slots=True)
class WeightKind:
    """Numbers of 8 bits times scales. Activations stay as they are, and products are of the widened numbers (W8A16).

    Attributes:
        storage: of the numbers.
        group: inputs that share a scale, for each output (the grain); None: one scale for each output channel.
    """

    storage: Storage
    group: int | None = None

    @property
    def name(self) -> str:
        """As the log and the manifest of a converted checkpoint have it."""
        number = "int8" if self.storage == "int8" else "fp8"
        return f"{number} W8A16, a scale " + ("per channel" if self.group is None else f"per {self.group} inputs")

    def cut(self, size: int, num_parts: int) -> tuple[int, int]:
        """How inputs are split over devices, so that none has part of a group.

        A device's part is either padded to whole groups, or its groups are made smaller, each with the same scale as
        before: whatever takes fewer bytes.

        Args:
            size: inputs. num_parts: devices.

        Returns:
            Inputs with padding, and the inputs of a group.
        """
        if self.group is None or num_parts == 1:
            return round_up(size, num_parts), self.group or size
        groups = (group for group in range(self.group, 0, -1) if self.group % group == 0)
        cuts = ((round_up(size, num_parts * group), group) for group in groups)
        return min(cuts, key=lambda cut: cut[0] * (1 + SCALE_BYTES / cut[1]))

    def head_group(self, head_size: int) -> int:
        """Inputs of a group where inputs are heads, which the layout moves, copies and pads one by one."""
        return math.gcd(self.group or head_size, head_size)


@dataclasses.dataclass(frozen=True, slots=True)
class WeightKinds:
    """Which kind each weight of a model is.

    Attributes:
        kind: of all weights but these; None: every weight is dense.
        dense: names of weights that are dense, in order; `{layer}` in a name stands for every layer's number.
    """

    kind: WeightKind | None = None
    dense: tuple[str, ...] = ()

    def of(self, name: str) -> WeightKind | None:
        """Args: name: of a weight: its path in the model. Returns: None: it is dense."""
        if name in self.dense or _LAYER.sub("layers.{layer}.", name) in self.dense:
            return None
        return self.kind


def round_up(number: int, multiple: int) -> int:
    """To the next multiple."""
    return -(-number // multiple) * multiple
