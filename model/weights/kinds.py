"""WeightKind and WeightKinds: in which bits each weight of a model is kept, as plain values. Imports no jax."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Literal, Self

Storage = Literal["int8", "float8_e4m3fn", "int4", "float4_e2m1fn"]
"""Of numbers. Floats of 4 bits lie as jnp.int4, bit by bit: no compiler widens them inside products by itself."""

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
        storage: of the numbers.
        group: inputs that share a scale, for each output (the grain); None: one scale for each output channel.
        has_zeros: whole numbers, one beside each scale, are subtracted from the numbers before.
        has_real_zeros: those are any numbers, in float32.
        activation_bits: 16: activations stay as they are, and products are of the widened numbers (W8A16, W4A16).
            8: projections quantize each row of them, and multiply in 8 bits (W8A8); with groups, each group of a row,
            and only float8.
    """

    storage: Storage
    group: int | None = None
    has_zeros: bool = False
    activation_bits: Literal[8, 16] = 16
    has_real_zeros: bool = False

    @property
    def bits(self) -> int:
        """Of a number."""
        return 4 if self.is_float4 or self.storage == "int4" else 8

    @property
    def is_float4(self) -> bool:
        """Its numbers are floats of 4 bits."""
        return self.storage == "float4_e2m1fn"

    @property
    def dtype(self) -> str:
        """Of the array that holds the numbers."""
        return "int4" if self.is_float4 else self.storage

    @property
    def has_bytes(self) -> bool:
        """Its products on a CPU are those of byte_matmul, but for experts."""
        return self.storage == "int8" and self.group is None

    @property
    def counts_padding(self) -> bool:
        """Padding among the inputs must be 0: its values are 0, but a channel's zero point or a row's largest number
        takes in all inputs."""
        return self.group is None and (self.has_zeros or self.activation_bits == 8)

    @property
    def name(self) -> str:
        """As the log and the manifest of a converted checkpoint have it."""
        scales = "a scale per " + ("channel" if self.group is None else f"{self.group} inputs")
        zeros = f" and {'float32 ' * self.has_real_zeros}zero points" if self.has_zeros else ""
        return f"{_NAMES[self.storage]} W{self.bits}A{self.activation_bits}, {scales}{zeros}"

    @property
    def group_bytes(self) -> int:
        """What each group of an output has beside its numbers."""
        return SCALE_BYTES + (SCALE_BYTES if self.has_real_zeros else self.has_zeros)

    @property
    def zeros_dtype(self) -> str:
        """Of the array that holds zero points, if there are any."""
        return "float32" if self.has_real_zeros else "int8"

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
        return min(cuts, key=lambda cut: cut[0] * (self.bits / 8 + self.group_bytes / cut[1]))

    def group_on(self, size: int, num_parts: int) -> int:
        """Inputs of a group where so many, padding included, are split over devices: of each group, none has a part.

        Args:
            size: inputs with padding. num_parts: devices.
        """
        group = self.group or size
        return group if num_parts == 1 else math.gcd(group, size // num_parts)

    def head_group(self, head_size: int) -> int:
        """Inputs of a group where inputs are heads, which the layout moves, copies and pads one by one."""
        return math.gcd(self.group or head_size, head_size)


@dataclasses.dataclass(frozen=True, slots=True)
class WeightKinds:
    """Which kind each weight of a model is. `{layer}` in a name stands for every layer's number.

    Attributes:
        kind: of all weights but these; None: every weight is dense.
        dense: names of weights that are dense, in order.
        others: names of weights of another kind, and the kind, in order.
    """

    kind: WeightKind | None = None
    dense: tuple[str, ...] = ()
    others: tuple[tuple[str, WeightKind], ...] = ()

    def of(self, name: str) -> WeightKind | None:
        """Args: name: of a weight: its path in the model. Returns: None: it is dense."""
        for each in (name, _LAYER.sub("layers.{layer}.", name)):
            if each in self.dense:
                return None
            for other, kind in self.others:
                if each == other:
                    return kind
        return self.kind

    def with_activation_bits(self, bits: Literal[8, 16]) -> Self:
        """The same numbers, multiplied otherwise where there is such a product."""

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
    """To the next multiple."""
    return -(-number // multiple) * multiple
