"""Runs a function in a process that has several CPU devices: how many there are is fixed before jax starts."""

import json
import os
import subprocess
import sys
from typing import Any

CALL = """
import importlib, json, sys
module, name, *arguments = json.loads(sys.argv[1])
result = getattr(importlib.import_module(module), name)(*arguments)
print("RESULT", json.dumps(result))
"""


def call_with_devices(num_devices: int, module: str, name: str, *arguments: Any, timeout: float = 280) -> Any:
    """`module.name(*arguments)`; arguments and result are JSON."""
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={num_devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    command = [sys.executable, "-c", CALL, json.dumps([module, name, *arguments])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))
