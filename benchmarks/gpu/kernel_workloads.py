"""What benchmarks/gpu/kernels.py and kernels_torch.py both compute, so that their figures can be set side by side."""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionWorkload:
    """A step of requests of (cached before, new) tokens each.

    Attributes:
        num_heads: N.
        num_kv_heads: K.
        head_size: H.
        kv_dtype: dtype of the cache; queries are bfloat16.
        num_layers: caches that are used in alternation, so that none is found in the device's own cache.
        page_size: S.
    """

    name: str
    lengths: tuple[tuple[int, int], ...]
    num_heads: int = 32
    num_kv_heads: int = 8
    head_size: int = 128
    kv_dtype: str = "bfloat16"
    num_layers: int = 4
    page_size: int = 16

    @property
    def decodes(self) -> bool:
        return all(new == 1 for _, new in self.lengths)

    @property
    def num_keys(self) -> int:
        return sum(before + new for before, new in self.lengths)

    def cache_bytes(self, itemsize: int) -> int:
        """Return the bytes of keys and values that a layer reads at least once."""
        return self.num_keys * self.num_kv_heads * self.head_size * 2 * itemsize

    @property
    def flops(self) -> int:
        """Operations of a layer's two products, for the keys that each query sees."""
        pairs = sum(new * before + new * (new + 1) // 2 for before, new in self.lengths)
        return 4 * pairs * self.num_heads * self.head_size


@dataclasses.dataclass(frozen=True, slots=True)
class ExpertsWorkload:
    """num_rows [M] rows of `inner`, spread over the experts, to `columns`."""

    name: str
    num_rows: int
    num_experts: int = 128
    inner: int = 2048
    columns: int = 768

    @property
    def flops(self) -> int:
        return 2 * self.num_rows * self.inner * self.columns

    @property
    def matrix_bytes(self) -> int:
        return self.num_experts * self.inner * self.columns * 2


def attention_workloads(tiny: bool) -> Sequence[AttentionWorkload]:
    """Decode, prefill and mixed steps; with `tiny`, small enough for an interpreter."""
    if tiny:
        small: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_size": 64, "num_layers": 2}
        return (
            AttentionWorkload("decode 3×40", ((39, 1),) * 3, **small),
            AttentionWorkload("decode 2×40, int8", ((39, 1),) * 2, kv_dtype="int8", **small),
            AttentionWorkload("prefill 2×20", ((0, 20),) * 2, **small),
        )
    qwen: dict[str, Any] = {"num_heads": 14, "num_kv_heads": 2, "head_size": 64}
    uneven = tuple((length - 1, 1) for length in (120_000, *(500 + 97 * n for n in range(63))))
    return (
        AttentionWorkload("decode 1×4,096", ((4095, 1),), num_layers=16),
        AttentionWorkload("decode 1×131,072", ((131_071, 1),)),
        AttentionWorkload("decode 16×4,096", ((4095, 1),) * 16),
        AttentionWorkload("decode 64×1,024", ((1023, 1),) * 64),
        AttentionWorkload("decode 64×4,096", ((4095, 1),) * 64),
        AttentionWorkload("decode 64×4,096, pages of 64", ((4095, 1),) * 64, page_size=64),
        AttentionWorkload("decode 64×4,096, pages of 128", ((4095, 1),) * 64, page_size=128),
        AttentionWorkload("decode 256×1,024", ((1023, 1),) * 256),
        AttentionWorkload("decode 64, 500 to 6,600 keys and one of 120,000", uneven),
        AttentionWorkload("decode 64×4,096, float8_e4m3fn", ((4095, 1),) * 64, kv_dtype="float8_e4m3fn"),
        AttentionWorkload("decode 64×4,096, int8", ((4095, 1),) * 64, kv_dtype="int8"),
        AttentionWorkload("decode 64×1,024, N=14 K=2 H=64", ((1023, 1),) * 64, num_layers=16, **qwen),
        AttentionWorkload("prefill 1×4,096", ((0, 4096),)),
        AttentionWorkload("prefill 4×2,048", ((0, 2048),) * 4),
        AttentionWorkload("prefill 8×4,096", ((0, 4096),) * 8),
        AttentionWorkload("prefill 2,048 after 16,384", ((16_384, 2048),)),
        AttentionWorkload("prefill 4×2,048, N=14 K=2 H=64", ((0, 2048),) * 4, **qwen),
        AttentionWorkload("mixed: 63×2,048 and 2,048 new", (*((2047, 1),) * 63, (0, 2048))),
    )


def experts_workloads(tiny: bool) -> Sequence[ExpertsWorkload]:
    """Few rows an expert, as in decode, to many."""
    if tiny:
        return (ExpertsWorkload("experts, 40 rows", 40, 4, 64, 64),)
    return (
        ExpertsWorkload("experts, 64 rows", 64),
        ExpertsWorkload("experts, 512 rows", 512),
        ExpertsWorkload("experts, 8,192 rows", 8192),
        ExpertsWorkload("experts, 65,536 rows", 65_536),
    )
