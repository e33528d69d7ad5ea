"""The process that `palladio doctor` starts, because jax may hang where another process holds the device: prints JSON.

python -m palladio.commands.doctor.doctor_worker
"""

from palladio.processes.early_signals import INTERRUPTED, end_at_once

if __name__ == "__main__":
    end_at_once(INTERRUPTED)  # before what takes seconds to import

import json
import sys
import time

import jax
import jax.numpy as jnp


def main() -> int:
    """Returns the exit code: 0, 1 if jax has no device that computes."""
    start = time.perf_counter()
    try:
        devices = jax.local_devices()
        total = float(jnp.arange(1000, dtype=jnp.float32).sum())
    except (RuntimeError, AssertionError, ValueError) as error:
        print(json.dumps({"error": " ".join(str(error).split())}))
        return 1
    found = [
        {
            "platform": device.platform,
            "kind": device.device_kind,
            "bytes": (device.memory_stats() or {}).get("bytes_limit"),
        }
        for device in devices
    ]
    print(json.dumps({"devices": found, "computes": total == 499500.0, "seconds": time.perf_counter() - start}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
