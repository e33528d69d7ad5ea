"""KV cache of models some of whose layers have a window: how many requests one pool holds, and what prefix hits remain.

    python benchmarks/engine/cache_groups.py held    requests in the memory of an H200, of three loads; no device
    python benchmarks/engine/cache_groups.py hybrid  32 requests that share 2k of 8k tokens, on a tiny model of 8 layers

`held` compares one pool for all layers (what the server has) with masks (all layers keep all tokens) and with two pools
of fixed sizes, for the best split of each load and for splits made for another one.
`hybrid` runs the requests with windows, with masks in the same memory, and without a prefix cache.
"""

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from palladio.model.cache.groups import CacheGroup, CacheGroups
from palladio.model.config.config import ModelConfig
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.outputs.token_output import by_request
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.state.page_groups import PageGroups, WindowGroup

PAGE: Final = 16
LOADS: Final = {"all 512": (512,), "all 32k": (32768,), "half of each": (512, 32768)}
# Layers without a window, layers with one, the window, bytes of a token in one layer (bfloat16), GiB for the cache.
MODELS: Final = {
    "Gemma 3 4B": (5, 29, 1024, 2 * 2 * 4 * 256, 100),
    "Gemma 3 27B": (10, 52, 1024, 2 * 2 * 16 * 128, 70),
    "OLMo 3 32B": (16, 48, 4096, 2 * 2 * 8 * 128, 60),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Hybrid:
    """Sizes of a model's cache. num_pages: of one layer, that the memory holds."""

    num_full: int
    num_windowed: int
    window: int
    num_pages: int

    @property
    def groups(self) -> PageGroups:
        tables = tuple(range(1, 1 - -self.num_windowed // self.num_full))
        return PageGroups(PAGE, windows=(WindowGroup(self.window, PAGE, tables),))

    def in_one_pool(self, load: Sequence[int]) -> int:
        """Requests of a load that one pool holds while they decode: as many of each length."""
        need = sum(map(self.groups.num_held, load))
        return len(load) * (self.num_pages // self.num_full // need)

    def with_masks(self, load: Sequence[int]) -> int:
        need = sum(-(-length // PAGE) for length in load) * (self.num_full + self.num_windowed)
        return len(load) * (self.num_pages // need)

    def in_two_pools(self, load: Sequence[int], ratio: float) -> int:
        """Return how many requests of this load fit two separate pools.

        Args:
            ratio: tokens of the windowed pool for each token of the other one.
        """
        tokens = self.num_pages / (self.num_full + ratio * self.num_windowed)
        full = sum(-(-length // PAGE) for length in load)
        windowed = sum(min(-(-length // PAGE), self.groups.windows[0].most_pages(1)) for length in load)
        return len(load) * int(min(tokens / full, ratio * tokens / windowed))

    def best_ratio(self, load: Sequence[int]) -> float:
        return max((i / 1000 for i in range(1, 1001)), key=lambda ratio: self.in_two_pools(load, ratio))


def held() -> None:
    for name, (num_full, num_windowed, window, token, gibibytes) in MODELS.items():
        model = Hybrid(num_full, num_windowed, window, gibibytes * 2**30 // (PAGE * token))
        padding = num_full * model.groups.num_tables / (num_full + num_windowed) - 1
        print(
            f"{name}: {gibibytes} GiB, {model.groups.num_tables} block tables, {padding:.1%} of short requests padding"
        )
        ratios = {load: model.best_ratio(lengths) for load, lengths in LOADS.items()}
        fixed = [f"split for {load}" for load in LOADS]
        print(f"  {'requests held':<14} {'one pool':>9} {'masks':>7} {'best split':>11} {'0.8':>6} " + " ".join(fixed))
        for load, lengths in LOADS.items():
            best, one = model.in_two_pools(lengths, ratios[load]), model.in_one_pool(lengths)
            splits = [model.in_two_pools(lengths, ratio) for ratio in ratios.values()]
            cells = " ".join(f"{count:>{len(title)}}" for count, title in zip(splits, fixed, strict=True))
            usual = model.in_two_pools(lengths, 0.8)
            print(
                f"  {load:<14} {one:>9} {model.with_masks(lengths):>7} {best:>11} {usual:>6} {cells}  {one / best:.2f}"
            )


def make_model(folder: Path, context: int, window: int) -> Path:
    config: dict[str, Any] = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 512,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": window,
        "sliding_window_pattern": 4,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@dataclasses.dataclass(slots=True)
class Figures:
    """The figures of a run.

    Attributes:
        peaks: the most pages of each group that one request held, in prefill and in steady decoding.
    """

    tokens: dict[str, list[int]]
    hit_tokens: int
    most_running: int
    seconds: float
    num_retractions: int
    peaks: dict[str, list[int]]


def run(folder: Path, args: argparse.Namespace, num_tokens: int, *, is_cached: bool = True) -> Figures:
    flags: dict[str, Any] = {
        "model_path": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "random_seed": 0,
        "page_size": PAGE,
        "max_running_requests": args.requests,
        "max_total_tokens": num_tokens,
        "chunked_prefill_size": 512,
        "cuda_graph_bs": (args.requests,),
        "compile": "lazy",
        "disable_radix_cache": not is_cached,
        "schedule_conservativeness": 0.3,
    }
    core = EngineCore.create(EngineConfig.from_flags(flags), lambda progress: None)
    rng = np.random.default_rng(0)
    shared = rng.integers(3, 512, args.shared).tolist()
    for number in range(args.requests):
        own = rng.integers(3, 512, args.length - args.shared).tolist()
        params = SamplingParams(max_tokens=args.output, temperature=0.0, seed=0, ignore_eos=True)
        core.add(GenerationRequest(str(number), [*shared, *own], params, (), float(number), RequestOptions()))
    found = Figures({}, 0, 0, 0.0, 0, {"prefill": [], "decode": []})
    begin = time.perf_counter()
    while core.has_work:
        for output in by_request(core.step()):
            found.tokens.setdefault(output.request_id, []).extend(output.token_ids)
        running = list(core._scheduler.schedulers[0].running)
        found.most_running = max(found.most_running, len(running))
        for request in running:
            has_left_prefill = request.num_output_tokens > 2  # and given back what its last chunk saw
            peak = found.peaks["decode" if has_left_prefill else "prefill"]
            counts = [len(request.pages), *(window.num_pages for window in request.windows)]
            peak[:] = map(max, counts, peak or counts)
    total = core.stats().total
    found.seconds, found.hit_tokens, found.num_retractions = (
        time.perf_counter() - begin,
        total.num_hit_tokens,
        total.num_retractions,
    )
    core.close()
    return found


def hybrid(args: argparse.Namespace) -> None:
    groups_of = CacheGroups.of

    def one_group(config: ModelConfig) -> CacheGroups:
        return CacheGroups((CacheGroup(None, (tuple(range(config.num_layers)),)),))

    whole = args.requests * (args.length + args.output + PAGE)
    with tempfile.TemporaryDirectory() as name:
        folder = make_model(Path(name), args.length + args.output, args.window)
        expected = run(folder, args, whole, is_cached=False).tokens
        for title, num_tokens in (("pool not full", whole), ("pool full", whole // args.scarce)):
            CacheGroups.of = one_group  # type: ignore[method-assign]
            masks = run(folder, args, num_tokens)
            CacheGroups.of = groups_of  # type: ignore[method-assign]
            windows = run(folder, args, num_tokens)
            for kind, found in (("masks", masks), ("windows", windows)):
                print(
                    f"{title}, {kind}: {found.hit_tokens} tokens hit, {found.most_running} requests at once, "
                    f"{found.num_retractions} retractions, {found.seconds:.0f} s, pages held by one request "
                    f"{found.peaks}, tokens {'equal' if found.tokens == expected else 'DIFFER'}"
                )
            print(f"{title}: hits {windows.hit_tokens / masks.hit_tokens:.2f} of those with masks", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("held", "hybrid"))
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--length", type=int, default=8192, help="tokens of a prompt")
    parser.add_argument("--shared", type=int, default=2048, help="of them, those that all begin with")
    parser.add_argument("--output", type=int, default=256, help="with few, requests end before others begin")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--scarce", type=int, default=6, help="the full pool is so many times smaller")
    args = parser.parse_args()
    held() if args.what == "held" else hybrid(args)


if __name__ == "__main__":
    main()
