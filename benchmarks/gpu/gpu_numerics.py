"""The numerics stage of gpu_smoke.py: attention beside its reference, and draws of the sampler beside the CPU's.

Kernels alone, interpreted on a CPU (no speed, but every index and mask):

    JAX_PLATFORMS=cpu python benchmarks/gpu/gpu_numerics.py --json FILE

Products have the sizes of --tiny there. What does not fit into --seconds is left out, and told.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from palladio.pallas_kernels.target import Target

Figures = dict[str, Any]

AttentionCase = tuple[Literal["decode", "prefill"], tuple[tuple[int, int], ...], int, int, int, int | None]
ATTENTION_CASES: Sequence[AttentionCase] = (  # kind, (cached before, new) of each request, N, K, H, sliding window
    ("prefill", ((0, 150), (40, 60), (0, 33), (200, 3)), 14, 2, 64, None),
    ("prefill", ((0, 300), (77, 129)), 32, 8, 128, None),
    ("prefill", ((0, 100), (150, 40), (0, 3)), 8, 4, 128, 20),
    ("decode", ((0, 1), (15, 1), (16, 1), (129, 1), (1000, 1)), 14, 2, 64, None),
    ("decode", ((1, 1), (700, 1), (300, 1)), 32, 8, 128, None),
    ("decode", ((9, 1), (500, 1)), 8, 4, 128, 30),
)
GROUPED_PRODUCTS = (  # name, storage, group, zero points, whether the 4 bits are floats
    ("float8 blocks of 128", "float8_e4m3fn", 128, False, False),
    ("int4 groups of 128", "int4", 128, False, False),
    ("int4 groups of 32 with zero points", "int4", 32, True, False),
    ("MXFP4", "int4", 32, False, True),
)
TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-2}  # largest difference from the reference, of outputs of about 1


def attention_numerics(
    tiny: bool, target: Target | None = None, backend: str = "auto", seconds: float = float("inf")
) -> Figures:
    """The largest error of a backend against the reference, both on this device.

    Args:
        target: default: this device.
        seconds: after which no further case begins.
    """
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np

    from palladio.pallas_kernels.ragged_paged_attention import (
        AttentionMetadata,
        ScaledPages,
        kv_page_shape,
        ragged_paged_attention,
        scale_page_shape,
    )

    rng, page_size = np.random.default_rng(0), 16
    target = target or Target.of(jax.devices()[0])
    errors: dict[str, float] = {}
    cases = ATTENTION_CASES[::3] if tiny else ATTENTION_CASES
    start, num_left = time.monotonic(), len(cases)
    for kind, lengths, N, K, H, window in cases:
        if time.monotonic() - start > seconds:
            break
        num_left -= 1
        totals = np.array([before + new for before, new in lengths], np.int32)
        starts = np.cumsum([0, *(new for _, new in lengths)]).astype(np.int32)
        width = int(-(-totals.max() // page_size))
        num_pages = 1 + width * len(lengths)
        table = 1 + rng.permutation(num_pages - 1).reshape(len(lengths), width).astype(np.int32)
        metadata = AttentionMetadata(
            jnp.asarray(starts),
            jnp.asarray(totals),
            jnp.asarray(table),
            jnp.int32(len(lengths)),
            jnp.int32(len(lengths) if kind == "decode" else 0),
            kind,
        )
        q = rng.normal(size=(starts[-1], N, H)).astype(np.float32)
        pages = rng.normal(size=kv_page_shape(num_pages, K, page_size, H)).astype(np.float32)
        scales = rng.uniform(0.02, 0.03, scale_page_shape(num_pages, K, page_size)).astype(np.float32)
        whole = ScaledPages(jnp.asarray(np.clip(pages * 40, -127, 127), jnp.int8), jnp.asarray(scales))
        caches = {name: (name, jnp.asarray(pages, name)) for name in TOLERANCES} | {
            "bfloat16, int8 KV": ("bfloat16", whole)
        }
        for label, (dtype, cache) in caches.items():
            arrays = jnp.asarray(q, dtype), cache
            outputs = []
            for name in (backend, "reference"):
                options = {"scale": H**-0.5, "sliding_window": window, "backend": name, "target": target}
                call = functools.partial(ragged_paged_attention, **options)
                with jax.default_matmul_precision("highest"):  # else a GPU rounds float32 factors to 10 bits
                    outputs.append(np.asarray(jax.jit(call)(*arrays, metadata), np.float32))
            error = float(np.abs(outputs[0] - outputs[1]).max())
            errors[f"{kind} {label}"] = max(error, errors.get(f"{kind} {label}", 0.0))
    return {
        "max error": errors,
        "cases left out": num_left,
        "ok": all(error <= TOLERANCES[name.split()[1].strip(",")] for name, error in errors.items()),
    }


def product_numerics(tiny: bool, target: Target | None = None, backend: str = "auto") -> Figures:
    """The largest error of products with one matrix of 4 or 8 bits and scales, as a share of the largest number."""
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np

    from palladio.pallas_kernels.block_matmul import block_matmul
    from palladio.pallas_kernels.grouped_matmul import Scales, grouped_matmul

    rng, target = np.random.default_rng(0), target or Target.of(jax.devices()[0])
    D, F = (384, 128) if tiny else (4096, 1024)
    errors: dict[str, float] = {}
    for name, storage, group, has_zeros, is_float4 in GROUPED_PRODUCTS:
        values = jnp.asarray(np.clip(rng.normal(size=(1, D, F)) * 3, -7, 7), storage)
        factors = jnp.asarray(rng.uniform(0.01, 0.02, (1, D // group, F)), jnp.float32)
        zeros = jnp.asarray(rng.integers(-8, 8, factors.shape), jnp.float32) if has_zeros else None
        scales = Scales(factors, group, zeros, is_float4=is_float4)
        for num_rows in (2, 64) if tiny else (2, 16, 64, 300):
            rows, sizes = jnp.asarray(rng.normal(size=(num_rows, D)), jnp.bfloat16), jnp.array([num_rows], jnp.int32)
            ours, exact = (
                np.asarray(
                    jax.jit(functools.partial(grouped_matmul, scales=scales, backend=one, target=target))(
                        rows, values, sizes
                    ),
                    np.float32,
                )
                for one in (backend, "reference")
            )
            error = float(np.abs(ours - exact).max() / np.abs(exact).max())
            errors[name] = max(error, errors.get(name, 0.0))
    name = "float8 × float8, blocks of 128"
    matrix = jnp.asarray(np.clip(rng.normal(size=(F, D)) * 100, -448, 448), jnp.float8_e4m3fn)
    factors = jnp.asarray(rng.uniform(0.01, 0.02, (D // 128, F)), jnp.float32)
    for num_rows in (2, 64) if tiny else (2, 64, 300):
        rows = jnp.asarray(rng.normal(size=(num_rows, D)), jnp.bfloat16)
        options: Figures = {"group": 128, "out_dtype": jnp.bfloat16, "target": target}
        calls = (functools.partial(block_matmul, backend=one, **options) for one in (backend, "reference"))
        ours, exact = (np.asarray(jax.jit(call)(rows, matrix, factors), np.float32) for call in calls)
        errors[name] = max(float(np.abs(ours - exact).max() / np.abs(exact).max()), errors.get(name, 0.0))
    return {"max error": errors, "ok": all(error <= TOLERANCES["bfloat16"] for error in errors.values())}


def sampler_numerics(tiny: bool) -> Figures:
    """Return how many of this device's sampled tokens the CPU samples too, by tier."""
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np

    from palladio.runtime.execution.sampling.sampler import SamplingBatch, sample
    from palladio.runtime.execution.sampling.sampler_state import SamplerState

    B, V, steps = (16, 4096, 3) if tiny else (64, 151936, 8)
    rng = np.random.default_rng(0)

    def floats(low: float, high: float) -> jax.Array:
        return jnp.asarray(rng.uniform(low, high, B), jnp.float32)

    def penalty(strength: float) -> jax.Array:
        return floats(0, strength) * jnp.asarray(rng.random(B) < 0.5)

    batch = SamplingBatch(
        slot_ids=jnp.arange(1, B + 1, dtype=jnp.int32),
        positions=jnp.arange(B, dtype=jnp.int32),
        seeds=jnp.asarray(rng.integers(0, 2**32, (B, 2), np.uint32)),
        temperature=floats(0.3, 1.5),
        top_p=floats(0.5, 1.0),
        top_k=jnp.asarray(rng.choice([-1, 1, 20, 1000], B), jnp.int32),
        min_p=floats(0, 0.1),
        frequency_penalty=penalty(1.0),
        presence_penalty=penalty(1.0),
        repetition_penalty=1 + penalty(0.5),
        min_position=jnp.zeros(B, jnp.int32),
        has_bias=jnp.zeros(B, jnp.bool_),
    )
    logits = [rng.normal(scale=3.0, size=(B, V)).astype(np.float32) for _ in range(steps)]
    equal: dict[str, str] = {}
    num_different = 0
    for tier in ("greedy", "random", "full"):
        tokens = []
        for device in (jax.devices()[0], jax.devices("cpu")[0]):
            state, columns = jax.device_put((SamplerState.allocate(B + 1, V), batch), device)
            step = jax.jit(functools.partial(sample, tier=tier), donate_argnums=(1,))
            drawn = []
            for row in logits:
                output, state = step(jax.device_put(row, device), state, columns)
                drawn.append(np.asarray(output.token_ids))
            tokens.append(np.array(drawn))
        different = int((tokens[0] != tokens[1]).sum())
        num_different += different
        equal[tier] = f"{tokens[0].size - different}/{tokens[0].size}"
    # exp and log differ in their last bits between devices, so a draw that is all but a tie may differ.
    return {"equal": equal, "ok": num_different <= max(1, 3 * B * steps // 500)}


def numerics(tiny: bool, folder: Path) -> Figures:
    return {
        "attention": attention_numerics(tiny),
        "products": product_numerics(tiny),
        "sampler": sampler_numerics(tiny),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if an error is too large, or a case was left out."""
    import jax

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="gpu_triton", help="gpu_mosaic needs JAX 0.11 or later")
    parser.add_argument("--seconds", type=float, default=420.0, help="of attention; products take some 20 beside")
    parser.add_argument("--tiny", action="store_true", help="two of the six cases of attention")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    target, start = Target("gpu", "9.0", interpret="plain"), time.monotonic()
    attention = attention_numerics(args.tiny, target, args.backend, args.seconds)
    products = product_numerics(True, target, args.backend)
    found = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": " ".join(sys.argv),
        "jax": jax.__version__,
        "device": "interpreted on a CPU",
        "attention": attention,
        "products": products,
        "seconds": time.monotonic() - start,
    }
    print(json.dumps(found, indent=2))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return int(not (attention["ok"] and products["ok"]) or attention["cases left out"] > 0)


if __name__ == "__main__":
    sys.exit(main())
