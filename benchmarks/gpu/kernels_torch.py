"""torch's attention on the workloads of kernels.py, with dense keys and values: a page table would only cost it more.

    python benchmarks/gpu/kernels_torch.py [--tiny] [--out FILE]

Only workloads whose requests are alike, in bfloat16, can be given to it. Times are medians of CUDA events.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.gpu.kernel_workloads import AttentionWorkload, attention_workloads
from benchmarks.support.report import write


def median_seconds(call: Callable[[], Any], tiny: bool) -> float:
    """Return the median seconds of a call on torch's current device."""
    import torch

    rounds, calls = (1, 1) if tiny else (9, 10)
    call()
    seconds = []
    for _ in range(rounds):
        if torch.cuda.is_available():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3 / calls)
        else:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            seconds.append((time.perf_counter() - start) / calls)
    return float(statistics.median(seconds))


def measure(workload: AttentionWorkload, tiny: bool, *, flex: bool) -> dict[str, float]:
    """Measure µs a layer, by implementation; implementations that refuse are left out.

    Args:
        flex: use FlexAttention, which torch compiles first, instead of SDPA.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    device = "cuda" if torch.cuda.is_available() else "cpu"
    before, new = workload.lengths[0]
    B, N, K, H = len(workload.lengths), workload.num_heads, workload.num_kv_heads, workload.head_size
    q = torch.randn(B, N, new, H, device=device, dtype=torch.bfloat16)
    caches = [
        torch.randn(2, B, K, before + new, H, device=device, dtype=torch.bfloat16) for _ in range(workload.num_layers)
    ]
    causal = not before and new > 1

    def layers(attend: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            out = q
            for k, v in caches:
                out = attend(out, k, v)
            return out

        return run

    found: dict[str, float] = {}
    if not flex and (new == 1 or causal):
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel(backend):
                run = layers(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True))
                try:
                    seconds = median_seconds(run, tiny)
                except RuntimeError as refusal:
                    print(f"{workload.name}: {backend.name}: {refusal}", file=sys.stderr)
                    continue
            found[f"SDPA {backend.name}"] = 1e6 * seconds / workload.num_layers
    if flex and device == "cuda":
        compiled = torch.compile(flex_attention, dynamic=False)
        mask = None
        if new > 1:
            mask = create_block_mask(
                lambda batch, head, query, key: query + before >= key, None, None, new, before + new, device=device
            )
        run = layers(lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=True))
        found["FlexAttention"] = 1e6 * median_seconds(run, tiny) / workload.num_layers
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script itself")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    args = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        figures: dict[str, Any] = {"error": "torch is not installed"}
    else:
        figures = {"torch": torch.__version__, "µs": {}}
        for flex in (False, True):
            for workload in attention_workloads(args.tiny):
                if len(set(workload.lengths)) == 1 and workload.kv_dtype == "bfloat16" and workload.page_size == 16:
                    found = measure(workload, args.tiny, flex=flex)
                    figures["µs"].setdefault(workload.name, {}).update(found)
                    write(figures, args.out)
    print(json.dumps(figures, indent=2))
    write(figures, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
