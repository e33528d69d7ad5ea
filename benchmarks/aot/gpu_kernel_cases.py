"""The GPU kernels that aot_gpu_kernels.py compiles: each as a call, with its arguments' shapes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.pallas_kernels.block_matmul import block_matmul
from palladio.pallas_kernels.expert_routing import Groups, Routed, Routing, route_experts
from palladio.pallas_kernels.grouped_matmul import Scales, grouped_matmul
from palladio.pallas_kernels.latent_attention import latent_attention, latent_page_shape
from palladio.pallas_kernels.ragged_paged_attention import (
    AttentionMetadata,
    KVPages,
    ScaledPages,
    kv_page_shape,
    ragged_paged_attention,
    scale_page_shape,
)
from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_mosaic import HEAD_SIZES as MOSAIC_HEAD_SIZES
from palladio.pallas_kernels.segment_attention import Segments, segment_attention
from palladio.pallas_kernels.target import Target

ROUTED = ((2, 128), (16, 60), (16, 512), (1024, 8))  # tokens and experts


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    """A mixed step of 2,048 tokens, which has all three kernels."""

    head_size: int
    num_heads: int = 32
    num_kv_heads: int = 8
    page_size: int = 16
    num_pages: int = 8192
    dtype: DTypeLike = jnp.bfloat16
    kv_dtype: DTypeLike = jnp.bfloat16
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    scales: bool = False
    backend: str = "gpu_triton"

    def call(self, target: Target, shape: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
        """A jitted function, and its arguments' shapes."""
        T, B, N = 2048, 16, self.num_heads
        cache = kv_page_shape(self.num_pages, self.num_kv_heads, self.page_size, self.head_size)
        rows, scalar = shape((B,), jnp.int32), shape((), jnp.int32)
        metadata = AttentionMetadata(
            shape((B + 1,), jnp.int32), rows, shape((B, 4096 // self.page_size), jnp.int32), scalar, scalar, "prefill"
        )
        sinks = shape((N,), jnp.float32) if self.sinks else None
        k_scale = v_scale = shape((), jnp.float32) if self.scales else 1.0
        pages = shape(cache, self.kv_dtype)
        if self.kv_dtype == jnp.int8:
            beside = scale_page_shape(self.num_pages, self.num_kv_heads, self.page_size)
            pages = ScaledPages(pages, shape(beside, jnp.float32))

        @jax.jit
        def attend(
            q: jax.Array,
            kv_pages: KVPages,
            metadata: AttentionMetadata,
            sinks: jax.Array | None,
            k_scale: jax.Array | float,
            v_scale: jax.Array | float,
        ) -> jax.Array:
            return ragged_paged_attention(
                q,
                kv_pages,
                metadata,
                scale=self.head_size**-0.5,
                sliding_window=self.window,
                soft_cap=self.soft_cap,
                sinks=sinks,
                k_scale=k_scale,
                v_scale=v_scale,
                backend=self.backend,
                target=target,
            )

        q = shape((T, N, self.head_size), self.dtype)
        return attend, (q, pages, metadata, sinks, k_scale, v_scale)


@dataclasses.dataclass(frozen=True, slots=True)
class Latents:
    """A mixed step of 2,048 tokens over latents, of 512 if nothing else is said, and a rotated part of 64."""

    num_heads: int
    size: int = 512
    dtype: DTypeLike = jnp.bfloat16
    page_size: int = 16

    def call(self, target: Target, shape: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
        """A jitted function, and its arguments' shapes."""
        T, B, N = 2048, 16, self.num_heads
        rows, scalar = shape((B,), jnp.int32), shape((), jnp.int32)
        table = shape((B, 4096 // self.page_size), jnp.int32)
        metadata = AttentionMetadata(shape((B + 1,), jnp.int32), rows, table, scalar, scalar, "prefill")
        attend = functools.partial(latent_attention, scale=192**-0.5, backend="gpu_triton", target=target)
        pages = shape(latent_page_shape(8192, self.page_size, self.size, 64), self.dtype)
        queries = (shape((T, N, size), self.dtype) for size in (self.size, 64))
        return jax.jit(attend), (*queries, pages, metadata)


@dataclasses.dataclass(frozen=True, slots=True)
class PackedSegments:
    """Attention of 64 packed segments."""

    head_size: int
    num_tokens: int = 16_384
    num_heads: int = 16
    dtype: DTypeLike = jnp.bfloat16
    window: int | None = None

    def call(self, target: Target, shape: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
        """A jitted function, and its arguments' shapes."""

        @jax.jit
        def attend(q: jax.Array, k: jax.Array, v: jax.Array, ends: jax.Array) -> jax.Array:
            segments = Segments.of_ends(ends, self.num_tokens)
            options: dict[str, Any] = {"window": self.window, "backend": "gpu_triton", "target": target}
            return segment_attention(q, k, v, segments, scale=self.head_size**-0.5, **options)

        rows = shape((self.num_tokens, self.num_heads, self.head_size), self.dtype)
        return attend, (rows, rows, rows, shape((64,), jnp.int32))


@dataclasses.dataclass(frozen=True, slots=True)
class Routes:
    """From a router's logits to the order of rows."""

    num_tokens: int
    num_experts: int = 128
    dtype: DTypeLike = jnp.bfloat16
    is_deepseek: bool = False  # sigmoids, a bias of the choice, and the best of groups

    def call(self, target: Target, shape: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
        """A jitted function, and its arguments' shapes."""
        routing = Routing(8, self.num_experts, renormalize=True)
        if self.is_deepseek:
            groups = Groups(8, 4, best_two=True)
            routing = dataclasses.replace(routing, scale=2.5, score="sigmoid", has_bias=True, groups=groups)

        @jax.jit
        def route(logits: jax.Array, x: jax.Array, num_tokens: jax.Array, *bias: jax.Array) -> Routed:
            return route_experts(logits, x, num_tokens, 0, routing, bias=bias[0] if bias else None, target=target)

        logits = shape((self.num_tokens, self.num_experts), jnp.float32)
        bias = (shape((self.num_experts,), jnp.float32),) if self.is_deepseek else ()
        return route, (logits, shape((self.num_tokens, 2048), self.dtype), shape((), jnp.int32), *bias)


@dataclasses.dataclass(frozen=True, slots=True)
class Experts:
    """A product of grouped rows."""

    num_rows: int
    num_experts: int = 64
    inner: int = 2048
    columns: int = 768
    dtype: DTypeLike = jnp.bfloat16
    backend: str = "gpu_triton"

    def call(self, target: Target, shape: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
        """A jitted function, and its arguments' shapes."""

        @jax.jit
        def multiply(rows: jax.Array, matrices: jax.Array, group_sizes: jax.Array) -> jax.Array:
            return grouped_matmul(rows, matrices, group_sizes, backend=self.backend, target=target)

        return multiply, (
            shape((self.num_rows, self.inner), self.dtype),
            shape((self.num_experts, self.inner, self.columns), self.dtype),
            shape((self.num_experts,), jnp.int32),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ScaledExperts:
    """A product with one matrix of 4 or 8 bits, with a scale for each output of a group of inputs."""

    num_rows: int
    inner: int = 4096
    columns: int = 4096
    storage: str = "int4"
    group: int = 128
    has_zeros: bool = False
    is_float4: bool = False
    dtype: DTypeLike = jnp.bfloat16

    def call(self, target: Target, shape: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
        """A jitted function, and its arguments' shapes."""

        @jax.jit
        def multiply(rows: jax.Array, matrix: jax.Array, sizes: jax.Array, factors: tuple[jax.Array, ...]) -> jax.Array:
            zeros = factors[1] if self.has_zeros else None
            scales = Scales(factors[0], self.group, zeros, is_float4=self.is_float4)
            return grouped_matmul(rows, matrix, sizes, scales=scales, backend="gpu_triton", target=target)

        factors = shape((1, -(-self.inner // self.group), self.columns), jnp.float32)
        return multiply, (
            shape((self.num_rows, self.inner), self.dtype),
            shape((1, self.inner, self.columns), self.storage),
            shape((1,), jnp.int32),
            (factors, factors) if self.has_zeros else (factors,),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """A product of float8 and float8, with a scale for each block of 128 × 128."""

    num_rows: int
    inner: int = 4096
    columns: int = 14336
    backend: str = "gpu_mosaic"
    dtype: DTypeLike = jnp.bfloat16

    def call(self, target: Target, shape: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
        """A jitted function, and its arguments' shapes."""

        @jax.jit
        def multiply(rows: jax.Array, matrix: jax.Array, scales: jax.Array) -> jax.Array:
            options: dict[str, Any] = {"group": 128, "out_dtype": self.dtype, "backend": self.backend, "target": target}
            return block_matmul(rows, matrix, scales, **options)

        return multiply, (
            shape((self.num_rows, self.inner), self.dtype),
            shape((self.columns, self.inner), jnp.float8_e4m3fn),
            shape((self.inner // 128, self.columns), jnp.float32),
        )


Case = Attention | Latents | PackedSegments | Routes | Experts | ScaledExperts | Blocks


def cases(smoke: bool) -> dict[str, Case]:
    """By name."""
    everything: dict[str, Any] = {"window": 1024, "soft_cap": 30.0, "sinks": True}
    few: dict[str, Case] = {
        "attention H=128": Attention(128),
        "attention H=64 float8_e4m3fn, all features": Attention(
            64, kv_dtype=jnp.float8_e4m3fn, scales=True, **everything
        ),
        "attention H=128, mosaic": Attention(128, backend="gpu_mosaic"),
        "experts 512 rows": Experts(512),
        "routing of 64 tokens": Routes(64),
        "routing of 16 tokens, DeepSeek-V3": Routes(16, 256, is_deepseek=True),
    }
    if smoke:
        return few
    found = dict(few)
    for head_size in (64, 96, 128, 192, 256):
        for kv_dtype in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8):
            scales = jnp.dtype(kv_dtype).itemsize == 1
            name = f"attention H={head_size}{f' {jnp.dtype(kv_dtype).name}' if scales else ''}"
            found[name] = Attention(head_size, kv_dtype=kv_dtype, scales=scales)
        found[f"attention H={head_size}, all features"] = Attention(head_size, **everything)
        found[f"attention H={head_size} float32"] = Attention(head_size, dtype=jnp.float32, kv_dtype=jnp.float32)
    for num_rows in (16, 64, 2048):
        found |= {
            f"int4 groups of 128, {num_rows} rows": ScaledExperts(num_rows),
            f"int4 groups of 128 with zeros, {num_rows} rows": ScaledExperts(num_rows, has_zeros=True),
            f"MXFP4, {num_rows} rows": ScaledExperts(num_rows, group=32, is_float4=True),
            f"float8 blocks of 128, {num_rows} rows": ScaledExperts(num_rows, 14336, storage="float8_e4m3fn"),
        }
    for num_rows in (1, 64, 2048):
        found[f"float8 × float8 in blocks, {num_rows} rows"] = Blocks(num_rows, backend="gpu_triton")
    for num_rows, columns in ((64, 14336), (2048, 14336), (2048, 576)):
        found[f"float8 × float8 in blocks, {num_rows} rows, {columns} columns, mosaic"] = Blocks(
            num_rows, 4096, columns
        )
    for head_size in MOSAIC_HEAD_SIZES:
        name = f"attention H={head_size}, mosaic"
        found[name] = Attention(head_size, backend="gpu_mosaic")
        found[f"{name}, all features"] = Attention(head_size, backend="gpu_mosaic", **everything)
        found[f"{name}, window"] = Attention(head_size, backend="gpu_mosaic", window=1024)
        for page_size in (8, 64, 256):
            found[f"{name} S={page_size}"] = Attention(head_size, page_size=page_size, backend="gpu_mosaic")
    return found | {
        "attention H=64 G=7, mosaic": Attention(64, num_heads=14, num_kv_heads=2, backend="gpu_mosaic"),
        "attention H=128 G=1": Attention(128, num_heads=8),
        "attention H=64 G=7": Attention(64, num_heads=14, num_kv_heads=2),
        "attention H=128 G=16": Attention(128, num_heads=128),
        "attention H=128 S=1": Attention(128, page_size=1),
        "attention H=128 S=256": Attention(128, page_size=256),
        "attention H=128, cache of 18 GiB": Attention(128, num_pages=300_000),
        **{f"segments H={size}": PackedSegments(size) for size in (64, 72, 80, 128, 256)},
        **{f"segments H={size} float32": PackedSegments(size, dtype=jnp.float32) for size in (64, 72, 80, 256)},
        "segments H=64, window": PackedSegments(64, window=64),
        "segments H=64, 512 tokens": PackedSegments(64, num_tokens=512),
        **{f"latents N={number}": Latents(number) for number in (4, 16, 20, 128)},
        "latents N=16 of 128, float32": Latents(16, 128, jnp.float32),
        **{f"routing of {tokens} tokens, {experts} experts": Routes(tokens, experts) for tokens, experts in ROUTED},
        "routing of 2 tokens, DeepSeek-V3": Routes(2, 256, is_deepseek=True),
        "experts 4,096 rows": Experts(4096),
        "experts 65,536 rows": Experts(65536),
        "experts 4,096 rows, mosaic": Experts(4096, backend="gpu_mosaic"),
        "experts 65,536 rows, mosaic": Experts(65536, backend="gpu_mosaic"),
        "experts 65,536 rows of 2,880, mosaic": Experts(65536, inner=2880, columns=2880, backend="gpu_mosaic"),
        "experts 512 rows, odd sizes": Experts(512, inner=1000, columns=360),
        "experts 512 rows float32": Experts(512, dtype=jnp.float32),
    }
