"""tpu-inference's kernel for latent attention (MLA v2), compiled and measured as `latent_schedule.py` measures ours.

    git clone https://github.com/vllm-project/tpu-inference /tmp/tpu-inference
    PYTHONPATH=.venv-aot python benchmarks/peers/latent_peer.py --clone /tmp/tpu-inference --chips v6e 7x --json o.json

Its files are read from a clone; nothing of vLLM is imported, and nothing of the clone is copied. Sizes: DeepSeek's, in
bfloat16. A row is one of its kernels with some of its settings: "d" and "bd" decode one request and several at a time,
"m" computes chunks. Its loop over blocks of keys has one piece that multiplies, masked always; of "bd", the bundles are
divided by the requests. "transposed": a cache that lies with tokens along the lanes.
"""

import argparse
import logging
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.aot import aot_targets  # isort: skip  # first: it tells jax where to run
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.aot.kernel_matrix import CHIPS
from benchmarks.support.report import write_rows
from benchmarks.support.tpu_dump import dump_to, read_schedule, spill_slots

L, R = 512, 64
NUM_PAGES, PAGES_EACH, VMEM = 2048, 64, 100 * 2**20
KEYS = {"d": 1024, "bd": 1024, "m": 512}  # of a block, as of our kernels
ROWS = 512  # of queries of a block of a chunk: tokens × heads


def load_kernel(clone: Path) -> Any:
    """The clone's module, with stand-ins for what it takes from vLLM."""
    package, envs, logger = (types.ModuleType(f"tpu_inference{name}") for name in ("", ".envs", ".logger"))
    package.__path__ = [str(clone / "tpu_inference")]
    vars(envs)["MLA_XPOSE_N_TILE_SIZE"] = 160  # its default
    vars(logger)["init_logger"] = logging.getLogger
    vars(package)["envs"] = envs
    sys.modules |= {module.__name__: module for module in (package, envs, logger)}
    from tpu_inference.kernels.mla.v2 import kernel  # type: ignore[import-not-found]

    return kernel


def compile_case(
    kernel: Any, chip: str, heads: int, page_size: int, batch: int, *, transposed: bool, schedules: Path
) -> Iterator[dict[str, Any]]:
    """Yield a row for each of its three kernels.

    Args:
        batch: requests that it decodes at once.
    """
    mesh = aot_targets.Target("tpu", CHIPS[chip], 0).mesh()
    whole = NamedSharding(mesh, PartitionSpec())
    T, B = 2048, 64

    def array(*sizes: int, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=whole)

    def attention(*args: jax.Array) -> Any:
        return kernel.mla_ragged_paged_attention(
            *args,
            sm_scale=192**-0.5,
            num_kv_pages_per_block=tuple(KEYS[name] // page_size for name in ("d", "m", "m")),
            num_queries_per_block=(1, 1, ROWS // heads),
            vmem_limit_bytes=VMEM,
            decode_batch_size=batch,
            transpose_kv_cache=transposed,
        )

    row = {"chip": chip, "heads": heads, "page_size": page_size, "batch": batch, "transposed": transposed}
    width = L + R if transposed else 640
    cache = kernel.get_kv_cache_shape(NUM_PAGES, page_size, width, jnp.bfloat16, transpose_kv_cache=transposed)
    numbers = (array(size, dtype=jnp.int32) for size in (B, B * PAGES_EACH, B + 1, 3))
    args = (array(heads, T, L), array(T, heads, R), array(T, L), array(T, R), array(*cache), *numbers)
    try:
        aot_targets.compile_for(mesh, jax.jit(attention, donate_argnums=4), args)
    except Exception as refusal:  # noqa: BLE001  # of a kernel that is not ours: whatever it says
        yield row | {"wrong": f"{type(refusal).__name__}: {str(refusal).strip()[:300]}"}
        return
    for name in ("d", "bd", "m"):
        loop = max(read_schedule(schedules, f"MLA-{name}-"), key=lambda one: one.units["MXU"])
        requests = batch if name == "bd" else 1
        yield row | {
            "kernel": name,
            "keys": KEYS[name],
            "bundles": round(loop.bundles / requests),
            "spills": sum(spill_slots(schedules, f"MLA-{name}-").values()),
        }
    for file in schedules.iterdir():
        file.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clone", type=Path, required=True, help="of github.com/vllm-project/tpu-inference")
    parser.add_argument("--chips", choices=CHIPS, nargs="+", required=True)
    parser.add_argument("--heads", type=int, nargs="+", default=(16, 128), help="of one device")
    parser.add_argument("--batches", type=int, nargs="+", default=(2, 4, 8))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        dump_to(Path(folder))
        kernel = load_kernel(args.clone)
        for chip in args.chips:
            for heads in args.heads:
                for batch in args.batches:
                    for transposed in (False, True):
                        case = compile_case(
                            kernel,
                            chip,
                            heads,
                            128 if transposed else 64,
                            batch,
                            transposed=transposed,
                            schedules=Path(folder),
                        )
                        for row in case:
                            rows.append(row)
                            print(row, flush=True)
    write_rows(rows, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
