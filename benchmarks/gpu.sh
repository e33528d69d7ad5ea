#!/usr/bin/env bash
# Numerics and speed on this machine's GPU, in one command of less than 8 minutes; arguments go to gpu_smoke.py.
# Needs a Python ($PYTHON, else python3) with jax and its CUDA plugin, flax and transformers; nothing is installed.
#   benchmarks/gpu.sh                     results under $OUT, else benchmarks/results
#   JAX_PLATFORMS=cpu benchmarks/gpu.sh --tiny      tries the script itself, without a GPU
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" benchmarks/gpu_smoke.py --out "${OUT:-benchmarks/results}" "$@"
