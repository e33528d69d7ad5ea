"""What each format of weights takes once it is loaded: bytes on the device, memory of the host, seconds, bytes on disk.

    python benchmarks/engine/loading_formats.py [--json FILE]

Checkpoints of Qwen3's shape, 64 million parameters (MXFP4 has gpt-oss's, with four experts in each of four layers),
written by the test suite's own writers of formats; each is loaded in a fresh process, and converted. "lines" are those
of the format's own file in model/formats. The device is the CPU, so its arrays are the host's memory: "beyond" is what
the peak is above them. "planned" is what the memory plan counts before anything is loaded.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


from benchmarks.engine.loading import forget
from benchmarks.support.report import report
from palladio.model import formats
from tests.model import quantized_checkpoints as stored
from tests.model.format_cases import MODELOPT, gpt_oss_checkpoint
from tests.model.gguf_files import as_gguf
from tests.runtime.text.tokenizers.test_gguf_tokenizer import metadata
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 8192,
}
GROUP = 128
CT_WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
CT_GROUP = {"group_0": {"targets": ["Linear"], "weights": CT_WEIGHTS}}
CT_INT8 = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}
FORMATS: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {  # the file that reads it, and its writer
    "FP8, a scale per channel": ("fp8", stored.float8, {"quant_method": "fbgemm_fp8"}),
    "FP8, blocks of 128 × 128": (
        "fp8",
        functools.partial(stored.float8, form="block", block=(GROUP, GROUP)),
        {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]},
    ),
    "ModelOpt FP8": ("modelopt", functools.partial(stored.float8, form="tensor", static=True), MODELOPT),
    "AWQ, groups of 128": (
        "awq",
        stored.awq,
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True},
    ),
    "GPTQ, groups of 128": (
        "gptq",
        functools.partial(stored.gptq, group=GROUP, sym=True),
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False},
    ),
    "compressed-tensors, 8 bits, a scale and a zero point per channel": (
        "compressed_tensors",
        stored.ct_int8,
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": CT_INT8}},
            "ignore": ["lm_head"],
        },
    ),
    "compressed-tensors, 4 bits, groups of 128": (
        "compressed_tensors",
        functools.partial(stored.ct_packed, group=GROUP),
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": CT_GROUP,
            "ignore": ["lm_head"],
        },
    ),
}
MADE = (None, "int8", "fp8", "int4")
GGUF_KINDS = ("Q8_0", "Q4_K", "Q6_K")
GPT_OSS: dict[str, Any] = SHAPE | {"intermediate_size": 1024, "num_local_experts": 4}

LOAD = """
import json, sys, time
from pathlib import Path
import jax, jax.numpy as jnp
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.functional import flatten_model
from palladio.model.base.sharding import make_mesh
from palladio.model.loading.load_model import abstract_model, load_model
from palladio.model.loading.stored_config import agree_with_weights
from palladio.runtime.execution.state.device_state import bytes_per_device

def number(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

path, mesh = Path(sys.argv[1]), make_mesh(1)
config = agree_with_weights(path, ModelConfig.from_hf(*read_model_dir(path)), "auto", sys.argv[2] or None)
planned = bytes_per_device(flatten_model(abstract_model(config, dtype=jnp.bfloat16, mesh=mesh))[1])
jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(3)))
open("/proc/self/clear_refs", "w").write("5")  # the peak so far
memory, start = number("VmRSS"), time.perf_counter()
_, weights = flatten_model(load_model(path, config, dtype=jnp.bfloat16, mesh=mesh))
jax.block_until_ready(weights)
seconds, peak = time.perf_counter() - start, number("VmHWM") - memory

def size(array):  # jax 0.10 counts a byte for a number of 4 bits; the memory of the process grows by half of that
    bits = jax.dtypes.itemsize_bits(array.dtype)
    return sum(shard.data.on_device_size_in_bytes() for shard in array.addressable_shards) // (2 if bits == 4 else 1)

measured = sum(map(size, weights))
print(json.dumps({"planned": planned, "measured": measured, "seconds": seconds, "beyond": peak - measured}))
"""


def load(path: Path, quantization: str | None) -> dict[str, float]:
    """In a process of its own, of files that are not in the page cache."""
    forget(path if path.is_dir() else path.parent)
    command = [sys.executable, "-c", LOAD, str(path), quantization or ""]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _made(make: Callable[..., Any], _: str, rng: Any, shape: tuple[int, ...]) -> Any:
    return make(rng, shape)


def _of_kind(kind: str, name: str) -> str:
    return kind


def size_of_weights(path: Path) -> int:
    return (path if path.is_file() else path / "model.safetensors").stat().st_size


def lines_of(name: str) -> int | None:
    """Return the lines of the file that reads a format; None: nothing is read but numbers."""
    first = name.partition(" ")[0]
    module = {"GGUF": "gguf", "MXFP4": "mxfp4"}.get(first) or FORMATS.get(name, ("",))[0]
    if not module:
        return None
    return len((Path(formats.__path__[0]) / f"{module}.py").read_text(encoding="utf-8").splitlines())


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def convert(path: Path, to: Path, quantization: str | None) -> int:
    """Bytes of the converted checkpoint."""
    flags = ["--quantization", quantization] if quantization else []
    command = [sys.executable, "-m", "palladio", "convert", str(path), str(to), "--dtype", "bfloat16", *flags]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return size_of(to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="checkpoints that have this in their name")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    stored.GROUP = GROUP
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        plain = make_checkpoint(Path(folder) / "plain", "qwen3", **SHAPE)
        cases: list[tuple[str, Path, str | None]] = [
            (f"float32, {kind or 'as bfloat16'}", plain, kind) for kind in MADE
        ]
        for number, (name, (_, make, quantization)) in enumerate(FORMATS.items()):
            path = make_checkpoint(Path(folder) / f"stored-{number}", "qwen3", **SHAPE)
            stored.rewrite(path, functools.partial(_made, make), quantization)
            cases.append((name, path, None))
        cases.append(("MXFP4 experts", gpt_oss_checkpoint(Path(folder) / "gpt-oss", **GPT_OSS), None))
        for form in GGUF_KINDS:
            path = make_checkpoint(Path(folder) / form, "qwen3", **SHAPE)
            tokenizer = metadata(build_tiny_tokenizer(path), model="gpt2", pre="gpt-2")  # which conversion needs
            more = {key: value for key, value in tokenizer.items() if key.startswith("tokenizer.")}
            cases.append((f"GGUF {form}", as_gguf(path, "qwen3", functools.partial(_of_kind, form), more), None))
        print("| MiB of | on disk | planned | on the device | host beyond | seconds | converted | lines |")
        chosen = [case for case in cases if args.only in case[0]]
        for number, (name, path, kind) in enumerate(chosen):
            loaded = load(path, kind)
            row: dict[str, Any] = {"checkpoint": name, "disk": size_of_weights(path), **loaded}
            row["lines"] = lines_of(name)
            row["converted"] = convert(path, Path(folder) / f"converted-{number}", kind)
            rows.append(row)
            sizes = (f"{row[key] / 2**20:.1f}" for key in ("disk", "planned", "measured", "beyond"))
            print(
                f"| {name} | {' | '.join(sizes)} | {row['seconds']:.2f} | {row['converted'] / 2**20:.1f} "
                f"| {row['lines'] or ''} |",
                flush=True,
            )
    report("engine/loading_formats.py", None, {"loads": rows}, args.json)


if __name__ == "__main__":
    main()
