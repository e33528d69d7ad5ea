"""Loading holds the checkpoint once: host memory peaks under its size plus the largest tensor."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import tiny_config, weight_shapes, write_json

SLACK = 32 << 20  # jax's own: programs, threads, the runtime's buffers

LOAD = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.base.sharding import make_mesh
from palladio.model.loading.load_model import load_model
from palladio.model.loading.stored_config import agree_with_weights

path = Path(sys.argv[1])
config = ModelConfig.from_hf(*read_model_dir(path))
config = agree_with_weights(path, config, "auto", sys.argv[2] or None)
def peak():  # not ru_maxrss: that one is inherited from the process that started this one
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

mesh = make_mesh(1)
jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(3)))
before = peak()
model = load_model(path, config, dtype=jnp.float32, mesh=mesh)
jax.block_until_ready(model.embedding.table.values[...])
print(json.dumps(peak() - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize(("quantization", "share"), [("", 1.0), ("int8", 0.26), ("fp8", 0.26), ("int4", 0.29)])
def test_peak(quantization, share, tmp_path):
    """On a CPU the devices' memory is the host's, and 4 bits lie in a byte.

    Args:
        share: of the checkpoint's bytes that the weights take.
    """
    config = tiny_config(
        "llama3",
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=3,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=16384,
    )
    write_json(tmp_path / "config.json", config)
    tensors = {name: np.ones(shape, np.float32) for name, shape in weight_shapes(config).items()}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    sizes = [tensor.nbytes for tensor in tensors.values()]
    assert sum(sizes) > 300e6
    del tensors
    command = [sys.executable, "-c", LOAD, str(tmp_path), quantization]
    grown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(
        f"checkpoint {sum(sizes) / 2**20:.0f} MiB, largest {max(sizes) / 2**20:.0f} MiB, peak {grown / 2**20:.0f} MiB"
    )
    assert grown > 0.25 * sum(sizes)  # or nothing was measured
    made = 0.25 * max(sizes) if quantization else 0  # the largest tensor in 8 bits, before it is laid out
    assert grown < share * sum(sizes) + max(sizes) + made + SLACK
