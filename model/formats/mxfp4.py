"""MXFP4 checkpoints, as gpt-oss is published: experts of 4-bit floats, of which 32 inputs share a power of two."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from palladio.model.base.config_keys import Keys
from palladio.model.base.errors import CheckpointError
from palladio.model.formats.stored_format import (
    StoredFormat,
    StoredMatrix,
    Tensor,
    Tensors,
    expect,
    matches,
    module_of,
    names_in,
    required,
    scales_of,
)
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind

GROUP = 32
BIAS = 127  # of exponents
_NAN = 255  # among them
_KIND = WeightKind("float4_e2m1fn", GROUP)


STEPS: HostArray = np.asarray([0, 1, 2, 3, 4, 5, 6, 7, 0, -1, -2, -3, -4, -5, -6, -7], np.int8)
"""The step (see FLOAT4) of each 4 bits. -0 becomes 0."""


def _steps_of_pairs() -> HostArray:
    """Return the steps of the two floats in each byte, as two bytes."""
    byte = np.arange(256)
    return np.stack([STEPS[byte & 15], STEPS[byte >> 4]], axis=-1).view(np.uint16)[:, 0]


_PAIRS = _steps_of_pairs()


@dataclasses.dataclass(frozen=True)
class Mxfp4(StoredFormat):
    """`_blocks` u8[E, out, in / 32, 16], the even input of a pair in the low bits; `_scales` u8[E, out, in / 32].

    Attributes:
        ignored: modules that are stored plainly, besides all modules that are no experts.
    """

    ignored: tuple[str, ...] = ()

    title: ClassVar[str] = "MXFP4"
    flags: ClassVar[tuple[str, ...]] = ("mxfp4",)

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Read quantization_config."""
        return cls(names_in(keys, "modules_to_not_convert"))

    def kind(self, module: str) -> WeightKind | None:
        return _KIND if ".experts." in module and not matches(self.ignored, module) else None

    def find(self, name: str, tensors: Tensors, parts: Sequence[int] = ()) -> StoredMatrix | None:
        module = module_of(name)
        names = (f"{module}_blocks", f"{module}_scales")
        blocks = tensors.get(names[0])
        if blocks is None:
            return None
        sizes = blocks.shape[:-1] if len(blocks.shape) > 2 else (1, 1)
        expect(blocks, [(*sizes, GROUP // 2)], ["U8"], "MXFP4")
        scales = required(names[1:], tensors, blocks)
        expect(scales, [blocks.shape[:-1]], ["U8"], str(blocks))
        *lead, num_groups, _ = blocks.shape
        shape = (*lead, num_groups * GROUP)
        return StoredMatrix(names, (blocks, scales), shape, _KIND, lambda arrays: _unpack(scales, arrays))


def _unpack(scale: Tensor, arrays: Sequence[HostArray]) -> FileMatrix:
    blocks, exponents = arrays
    if exponents.max(initial=0) == _NAN:
        raise CheckpointError(f"{scale} has scales that are NaN (255): the checkpoint is damaged, download it again")
    values = _PAIRS[blocks].view(np.int8).reshape(*blocks.shape[:-2], -1)
    scales = scales_of(scale, np.ldexp(np.float32(1), exponents.astype(np.int32) - BIAS))
    return FileMatrix(values, scales, (1, GROUP), is_float4=True)
