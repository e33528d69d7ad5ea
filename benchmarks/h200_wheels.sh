#!/usr/bin/env bash
# Wheels for h200.sh on a host that reaches no package index: what the server needs beside jax, flax and transformers,
# for CPython 3.12 on Linux x86-64, into wheels/ (not kept in git). PYTHON_VERSION=3.13 fetches for another.
set -euo pipefail
cd "$(dirname "$0")/.."

platforms=()
for version in 2_17 2_24 2_27 2_28 2_31 2_34; do
  platforms+=(--platform "manylinux_${version}_x86_64")
done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
rm -rf wheels
"${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: \
  --python-version "${PYTHON_VERSION:-3.12}" --implementation cp "${platforms[@]}" -d wheels \
  'fastapi>=0.115' starlette pydantic pydantic-core typing-inspection annotated-types annotated-doc \
  'uvicorn>=0.34' 'python-multipart>=0.0.20' 'orjson>=3.10' 'prometheus_client>=0.21' 'msgspec>=0.19' 'pyzmq>=26' \
  'tyro>=0.9' 'llguidance>=1.9,<2' httptools websockets
du -sh wheels
