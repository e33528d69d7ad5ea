"""WeightKind and WeightKinds: the number format of each weight of a model, as plain values. Imports no jax."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Literal, Self

Storage = Literal["int8", "float8_e4m3fn", "int4", "float4_e2m1fn"]
"""Storage types. 4-bit floats are stored as jnp.int4, bit by bit: no compiler widens them inside products by itself."""

SCALE_BYTES = 4  # scales are float32
_NAMES: Mapping[Storage, str] = {
    "int8": "int8",
    "float8_e4m3fn": "fp8",
    "int4": "int4",
    "float4_e2m1fn": "fp4",
}
_LAYER = re.compile(r"\blayers\.\d+\.")


@dataclasses.dataclass(frozen=True, slots=True)
class WeightKind:
    """Numbers of 8 or 4 bits times scales.

    Attributes:
        storage: type of the numbers.
        group: inputs that share a scale, for each output (the grain); None: one scale for each output channel.
        has_zeros: each scale has a whole number that is subtracted from the numbers before scaling.
        has_real_zeros: these are any numbers, in float32.
        activation_bits: 16: activations stay as they are, and products use dequantized numbers (W8A16, W4A16). 8:
            projections quantize each row of activations, and multiply in 8 bits (W8A8); with groups, each group of a
            row, and only to float8.
    """

    storage: Storage
    group: int | None = None
    has_zeros: bool = False
    activation_bits: Literal[8, 16] = 16
    has_real_zeros: bool = False

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return 4 if self.is_float4 or self.storage == "int4" else 8

    @property
    def is_float4(self) -> bool:
        """Whether its numbers are 4-bit floats."""
        return self.storage == "float4_e2m1fn"

    @property
    def dtype(self) -> str:
        """Dtype of the array that holds the numbers."""
        return "int4" if self.is_float4 else self.storage

    @property
    def has_bytes(self) -> bool:
        """Whether its products on a CPU are those of byte_matmul, except for experts."""
        return self.storage == "int8" and self.group is None

    @property
    def counts_padding(self) -> bool:
        """Whether padding among the inputs must be 0: its values are 0, but a channel's zero point or a row's largest
        number covers all inputs."""
        return self.group is None and (self.has_zeros or self.activation_bits == 8)

    @property
    def name(self) -> str:
        """Name in the log and in the manifest of a converted checkpoint."""
        scales = "a scale per " + ("channel" if self.group is None else f"{self.group} inputs")
        zeros = f" and {'float32 ' * self.has_real_zeros}zero points" if self.has_zeros else ""
        return f"{_NAMES[self.storage]} W{self.bits}A{self.activation_bits}, {scales}{zeros}"

    @property
    def group_bytes(self) -> int:
        """Bytes of each group of an output in addition to its numbers."""
        return SCALE_BYTES + (SCALE_BYTES if self.has_real_zeros else self.has_zeros)

    @property
    def zeros_dtype(self) -> str:
        """Dtype of the array that holds zero points, if there are any."""
        return "float32" if self.has_real_zeros else "int8"

    def cut(self, size: int, num_parts: int) -> tuple[int, int]:
        """Split inputs over devices without splitting a group.

        A device's part is either padded to whole groups, or its groups are made smaller, each with the same scale as
        before: whichever takes fewer bytes.

        Args:
            size: inputs.
            num_parts: devices.

        Returns:
            Inputs with padding, and the inputs of a group.
        """
        if self.group is None or num_parts == 1:
            return round_up(size, num_parts), self.group or size
        groups = (group for group in range(self.group, 0, -1) if self.group % group == 0)
        cuts = ((round_up(size, num_parts * group), group) for group in groups)
        return min(cuts, key=lambda cut: cut[0] * (self.bits / 8 + self.group_bytes / cut[1]))

    def group_on(self, size: int, num_parts: int) -> int:
        """Return the inputs of a group when these inputs are split over devices: no device has part of a group.

        Args:
            size: inputs with padding.
            num_parts: devices.
        """
        group = self.group or size
        return group if num_parts == 1 else math.gcd(group, size // num_parts)

    def head_group(self, head_size: int) -> int:
        """Return the inputs of a group where inputs are heads, which the layout moves, copies and pads one by one."""
        return math.gcd(self.group or head_size, head_size)


@dataclasses.dataclass(frozen=True, slots=True)
class WeightKinds:
    """The kind of each weight of a model. `{layer}` in a name stands for every layer's number.

    Attributes:
        kind: kind of all weights not named below; None: every weight is dense.
        dense: names of weights that are dense, in order.
        others: pairs of a weight's name and its kind, in order.
    """

    kind: WeightKind | None = None
    dense: tuple[str, ...] = ()
    others: tuple[tuple[str, WeightKind], ...] = ()

    def of(self, name: str) -> WeightKind | None:
        """Return the kind of a weight; None: it is dense.

        Args:
            name: the weight's path in the model.
        """
        for each in (name, _LAYER.sub("layers.{layer}.", name)):
            if each in self.dense:
                return None
            for other, kind in self.others:
                if each == other:
                    return kind
        return self.kind

    def with_activation_bits(self, bits: Literal[8, 16]) -> Self:
        """Return the kinds with the same numbers, and other products where these exist."""

        def changed(kind: WeightKind) -> WeightKind:
            is_fit = kind.bits == 8 and (kind.group is None or kind.storage == "float8_e4m3fn")
            return dataclasses.replace(kind, activation_bits=bits) if is_fit else kind

        others = tuple((name, changed(kind)) for name, kind in self.others)
        return dataclasses.replace(self, kind=self.kind and changed(self.kind), others=others)

    @property
    def all(self) -> tuple[WeightKind, ...]:
        """Each kind once, that of most weights first."""
        return tuple(dict.fromkeys(kind for kind in (self.kind, *(kind for _, kind in self.others)) if kind))


def round_up(number: int, multiple: int) -> int:
    """Round up to the next multiple."""
    return -(-number // multiple) * multiple
