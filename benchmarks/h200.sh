#!/usr/bin/env bash
# Everything that is measured on an H200, in one call of less than 8 minutes; arguments go to h200.py.
# Needs a Python ($PYTHON, else python3) with jax and its CUDA plugin, flax and transformers; torch for the peers. What
# else h200_wheels.sh has put into wheels/ is unpacked into a folder of its own.
# `palladio doctor --kernels` runs first, for 90 seconds at most, and its report lies beside the results.
#   benchmarks/h200.sh                     results under $OUT, else benchmarks/results; h200_plot.py draws them
#   benchmarks/h200.sh --only kernels      one part, or some; with --cache DIR (from the repository's root), a later
#                                          call finds what one has compiled
#   benchmarks/h200.sh smoke               instead, gpu_smoke.py: numerics, throughput, the host's share of a step
#   benchmarks/h200.sh flags               instead, what scheduling flags gain there (about 8 minutes more)
#   JAX_PLATFORMS=cpu benchmarks/h200.sh --tiny      tries the scripts themselves, without a GPU
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3} out=${OUT:-benchmarks/results}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if compgen -G 'wheels/*.whl' >/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  if "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" wheels/*.whl; then
    export PYTHONPATH="$PYTHONPATH:$site"  # last: what is installed there comes first
  fi
fi
# First whether the kernels are right there: figures of wrong ones are worth nothing.
mkdir -p "$out"
timeout 90 "$python" -m palladio doctor --kernels --report "$out/palladio-kernels.json" \
  || echo "doctor: something is wrong, or it took too long" >&2
case ${1-} in
  smoke) "$python" benchmarks/gpu/gpu_smoke.py --out "$out" "${@:2}" ;;
  flags) "$python" benchmarks/serving/compare_flags.py --model 0.5b --turns 2 --json "$out/flags.json" ;;
  *) "$python" benchmarks/gpu/h200.py --out "$out" --elapsed "$SECONDS" "$@" ;;
esac
