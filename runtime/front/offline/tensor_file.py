"""Tensors in memory as the bytes of a safetensors file."""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from palladio.runtime.interface.errors import InvalidRequestError

_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3"}
)


def to_safetensors(named_tensors: Iterable[tuple[str, Any]]) -> bytes:
    """
    Args:
        named_tensors: name and tensor: what numpy takes as an array, or torch's.

    Raises:
        InvalidRequestError: one is no tensor of floats, or a name comes twice.
    """
    header: dict[str, dict[str, Any]] = {}
    parts: list[bytes] = []
    end = 0
    for name, tensor in named_tensors:
        array = _array(name, tensor)
        dtype = _NAMES.get(array.dtype.name)
        if dtype is None:
            raise InvalidRequestError(
                f"tensor {name} has dtype {array.dtype}; supported: {', '.join(_NAMES)}", param="named_tensors"
            )
        if name in header:
            raise InvalidRequestError(f"tensor {name} is given twice", param="named_tensors")
        content = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + len(content)]}
        end += len(content)
        parts.append(content)
    head = json.dumps(header).encode()
    return b"".join((len(head).to_bytes(8, "little"), head, *parts))


def _array(name: str, tensor: Any) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return np.asarray(tensor)
    except (TypeError, RuntimeError):  # torch: on a GPU, with a gradient, or bfloat16, which float32 holds exactly
        try:
            return np.asarray(tensor.detach().cpu().float())
        except (AttributeError, TypeError, RuntimeError) as error:
            raise InvalidRequestError(f"tensor {name} is not a valid tensor: {error}", param="named_tensors") from error
