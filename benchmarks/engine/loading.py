"""How a checkpoint of several files loads, on one host and on two: seconds, bytes from the disk, memory.

    python benchmarks/engine/loading.py [--layers 18] [--folder DIR] [--json FILE]

Makes a checkpoint of Llama's shape (2 GB in bfloat16 by default, in files of 512 MB), converts it, and loads both forms
in fresh processes whose files are not in the page cache. Hosts are processes on this machine, devices are the CPU's, so
the weights are in the hosts' memory: "beyond" is what the peak is above them.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from benchmarks.support.report import report

FILE_BYTES = 512 * 2**20
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

LOAD = """
import json, sys, time
from pathlib import Path
path, num_hosts, rank, address = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
import jax, jax.numpy as jnp
if num_hosts > 1:
    jax.distributed.initialize(address, num_hosts, rank, cluster_detection_method="deactivate")
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.functional import flatten_model
from palladio.model.base.sharding import make_mesh
from palladio.model.loading.load_model import load_model

def number(file, key, unit=1):
    return next(int(line.split()[1]) * unit for line in open(f"/proc/self/{file}") if line.startswith(key))

mesh = make_mesh(len(jax.devices()))
jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(3)))
open("/proc/self/clear_refs", "w").write("5")  # the peak so far
memory, read, start = number("status", "VmRSS", 1024), number("io", "read_bytes"), time.perf_counter()
model = load_model(path, ModelConfig.from_hf(*read_model_dir(path)), dtype=jnp.bfloat16, mesh=mesh)
_, weights = flatten_model(model)
jax.block_until_ready(weights)
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "read": number("io", "read_bytes") - read,
    "weights": sum(shard.data.nbytes for array in weights for shard in array.addressable_shards),
    "peak": number("status", "VmHWM", 1024) - memory,
}), flush=True)
if num_hosts > 1:
    jax.distributed.shutdown()
"""


def make(folder: Path, num_layers: int) -> Path:
    """The checkpoint, made if it is not there."""
    path = folder / f"llama-{num_layers}"
    if (path / "config.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    rng, width, ffw = np.random.default_rng(0), CONFIG["hidden_size"], CONFIG["intermediate_size"]
    keys = width // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]
    shapes = {"model.embed_tokens": (CONFIG["vocab_size"], width), "model.norm": (width,)}
    for layer in range(num_layers):
        for name, shape in {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (ffw, width),
            "mlp.up_proj": (ffw, width),
            "mlp.down_proj": (width, ffw),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }.items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["lm_head"] = (CONFIG["vocab_size"], width)
    files: list[dict[str, np.ndarray]] = [{}]
    for name, shape in shapes.items():
        if sum(tensor.nbytes for tensor in files[-1].values()) >= FILE_BYTES:
            files.append({})
        files[-1][f"{name}.weight"] = rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
    index: dict[str, str] = {}
    for number, tensors in enumerate(files):
        file = f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        save_file(tensors, path / file, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": num_layers}))
    return path


def forget(path: Path) -> None:
    """Drops a folder's files from the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def load(path: Path, num_hosts: int, num_devices: int) -> dict[str, Any]:
    """Load on `num_hosts` hosts of `num_devices` devices; return each host's figures."""
    forget(path)
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}",
    }
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, str(path), str(num_hosts), str(rank), address],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_hosts)
    ]
    found_by_host = [json.loads(host.communicate(timeout=600)[0].splitlines()[-1]) for host in hosts]
    return {
        "hosts": num_hosts,
        "devices": num_hosts * num_devices,
        "seconds": max(one["seconds"] for one in found_by_host),
        "read_mib": [one["read"] / 2**20 for one in found_by_host],
        "weights_mib": [one["weights"] / 2**20 for one in found_by_host],
        "beyond_mib": [(one["peak"] - one["weights"]) / 2**20 for one in found_by_host],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/palladio-loading"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    stored = make(args.folder, args.layers)
    size = sum(file.stat().st_size for file in stored.glob("*.safetensors"))
    converted = args.folder / f"{stored.name}-orbax"
    forget(stored)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "palladio", "convert", str(stored), str(converted), "--dtype", "bfloat16"], check=False
    )
    convert_seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(done.returncode)
    rows = []
    for num_hosts, num_devices in ((1, 1), (1, 8), (2, 4)):
        turns: dict[str, list[dict[str, Any]]] = {"safetensors": [], "orbax": []}
        for _ in range(args.turns):
            turns["safetensors"].append(load(stored, num_hosts, num_devices))
            turns["orbax"].append(load(converted, num_hosts, num_devices))
        for form, found in turns.items():
            seconds = [one["seconds"] for one in found]
            rows.append({"form": form, **found[-1], "seconds": statistics.median(seconds), "all_seconds": seconds})
            shown = {name: rows[-1][name] for name in ("hosts", "devices", "seconds", "read_mib", "beyond_mib")}
            print(f"{form:12}", shown, flush=True)
    report("engine/loading.py", None, {"bytes": size, "convert_seconds": convert_seconds, "loads": rows}, args.json)


if __name__ == "__main__":
    main()
