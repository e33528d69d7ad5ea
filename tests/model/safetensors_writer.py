"""Writes safetensors with any dtype of ml_dtypes (the library's numpy writer refuses float8)."""

import json

import numpy as np

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3"}
NAMES |= {"int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8"}


def write_safetensors(path, tensors):
    header, start = {}, 0
    for name, value in tensors.items():
        stop = start + value.nbytes
        header[name] = {"dtype": NAMES[value.dtype.name], "shape": value.shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).tobytes())
