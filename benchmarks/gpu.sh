#!/usr/bin/env bash
# Numerics and speed on this machine's GPU, in one command of less than 8 minutes; arguments go to gpu_smoke.py.
# Needs a Python ($PYTHON, else python3) with jax and its CUDA plugin, flax and transformers; nothing is installed.
#   benchmarks/gpu.sh                     results under $OUT, else benchmarks/results
#   benchmarks/gpu.sh flags               instead, what scheduling flags gain there (about 8 minutes more)
#   benchmarks/gpu.sh kernels             instead, the kernels alone, beside torch where it is installed
#   JAX_PLATFORMS=cpu benchmarks/gpu.sh --tiny      tries the script itself, without a GPU
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if [[ ${1-} == flags ]]; then
    exec "${PYTHON:-python3}" benchmarks/compare_flags.py --model 0.5b --turns 2 --json "${OUT:-benchmarks/results}/flags.json"
fi
if [[ ${1-} == kernels ]]; then
    exec "${PYTHON:-python3}" benchmarks/kernels.py --out "${OUT:-benchmarks/results}/kernels.json" "${@:2}"
fi
exec "${PYTHON:-python3}" benchmarks/gpu_smoke.py --out "${OUT:-benchmarks/results}" "$@"
