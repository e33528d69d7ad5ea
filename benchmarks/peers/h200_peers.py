"""torch beside the engine on the same GPU: transformers' continuous batching, and a decode step as one CUDA graph.

    python benchmarks/peers/h200_peers.py --out FILE
    python benchmarks/peers/h200_peers.py --tiny           # on a CPU: tries the script itself

The decode step is the least that a model of that shape can cost torch: its products, norms and attention over a fixed
cache, captured once and replayed, with no scheduler and no sampler beside it. Weights are random.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.gpu.h200_engine import SMALL
from benchmarks.gpu.kernels_torch import median_seconds
from benchmarks.support.checkpoints import HALF_BILLION, LLAMA_8B
from benchmarks.support.report import write

CONFIGS = {"qwen2.5-0.5b": HALF_BILLION, "llama-3.1-8b": LLAMA_8B}
CONTEXT = 1024
BATCHING_REQUESTS, BATCHING_TOKENS = {"qwen2.5-0.5b": 200, "llama-3.1-8b": 200}, 128


def decode_step(config: dict[str, Any], batch: int, device: str) -> Callable[[], Any]:
    """A forward pass of one token a request over CONTEXT tokens of cache, with the choice of the next."""
    import torch
    from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

    D, F, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    N, K = config["num_attention_heads"], config["num_key_value_heads"]
    H = D // N

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16) / shape[-1] ** 0.5

    layers = [
        {
            "qkv": random((N + 2 * K) * H, D),
            "o": random(D, N * H),
            "up": random(2 * F, D),
            "down": random(D, F),
            "cache": random(2, batch, K, CONTEXT, H),
        }
        for _ in range(config["num_hidden_layers"])
    ]
    vocab, one = random(V, D), torch.ones(D, device=device, dtype=torch.bfloat16)
    tokens = torch.zeros(batch, dtype=torch.long, device=device)

    def step() -> torch.Tensor:
        x = embedding(tokens, vocab)
        for layer in layers:
            q, k, v = linear(rms_norm(x, (D,), one), layer["qkv"]).split([N * H, K * H, K * H], dim=-1)
            cache = layer["cache"]
            cache[0, :, :, -1], cache[1, :, :, -1] = k.view(batch, K, H), v.view(batch, K, H)
            out = scaled_dot_product_attention(q.view(batch, N, 1, H), cache[0], cache[1], enable_gqa=True)
            x = x + linear(out.reshape(batch, N * H), layer["o"])
            gate, up = linear(rms_norm(x, (D,), one), layer["up"]).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, layer["down"])
        tokens.copy_(linear(rms_norm(x, (D,), one), vocab).argmax(-1))
        return tokens

    return step


def graph_figures(config: dict[str, Any], batch: int, tiny: bool) -> dict[str, float]:
    """ms a step, launched kernel by kernel and as one CUDA graph."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.inference_mode():
        step = decode_step(config, batch, device)
        found = {"eager ms": 1e3 * median_seconds(step, tiny)}
        if device == "cuda":
            graph = torch.cuda.CUDAGraph()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):  # a first pass outside of the graph, so that libraries are loaded
                step()
            side.synchronize()
            with torch.cuda.graph(graph):
                step()
            found["graph ms"] = 1e3 * median_seconds(graph.replay, tiny)
    return found


def continuous_batching(config: dict[str, Any], count: int, new_tokens: int) -> dict[str, float]:
    """Tokens per second of transformers' generate_batch, requests of 32 tokens at once."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    known = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config["model_type"], **known), dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 4000, (count, 32), generator=generator).tolist()
    options = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    model.generate_batch(prompts[:2], generation_config=options)
    begin = time.perf_counter()
    results = model.generate_batch(prompts, generation_config=options)
    seconds = time.perf_counter() - begin
    generated = sum(len(result.generated_tokens) for result in results.values())
    return {"requests": count, "tokens": generated, "seconds": seconds, "tokens/s": generated / seconds}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script itself")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    args = parser.parse_args(argv)
    figures: dict[str, Any] = {"graph": {}, "continuous batching": {}}

    def tell(kind: str, name: str, measure: Callable[[], dict[str, float]]) -> None:
        try:
            figures[kind][name] = measure()
        except (ImportError, RuntimeError, ValueError, TypeError, AttributeError) as error:  # a peer's, of any version
            figures[kind][name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(kind, name, figures[kind][name], flush=True)
        write(figures, args.out)

    configs = {name: config | (SMALL if args.tiny else {}) for name, config in CONFIGS.items()}
    for name, config in configs.items():
        for batch in (1, 4) if args.tiny else (1, 64):
            tell("graph", f"{name} batch {batch}", functools.partial(graph_figures, config, batch, args.tiny))
    for name, config in configs.items():
        count, tokens = (3, 4) if args.tiny else (BATCHING_REQUESTS[name], BATCHING_TOKENS)
        tell("continuous batching", name, functools.partial(continuous_batching, config, count, tokens))
    return 0


if __name__ == "__main__":
    sys.exit(main())
