"""`input_embeds`: prompts given as rows of embeddings, in the forms in which callers write them."""

import base64
import binascii
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError
from palladio.runtime.interface.request.prompt_parts import Media, Rows

PARAM: Final = "input_embeds"
_ITEM_SIZES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2}
_FORMS: Final = "a list of rows of numbers, an object with data (base64), shape and dtype, or a list of such prompts"
_NO_NUMBERS: Final = frozenset((str, bytes, bool, dict, list, tuple, type(None)))
_Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class EmbedsSpec:
    """The rows that an engine takes in the place of token embeddings.

    Attributes:
        size: numbers of a row (D).
        largest: number that the activations' dtype holds.
    """

    size: int
    largest: float


class EmbeddedPrompts(NamedTuple):
    """What `read_embeds` has found: a medium for each prompt, and whether there is a list of them."""

    media: list[Media]
    is_list: bool


def read_embeds(value: Any, spec: EmbedsSpec | None, max_rows: int) -> EmbeddedPrompts:
    """
    Args:
        value: one prompt or several: lists, what numpy takes as an array, or objects with base64.
        spec: None: the engine takes none.
        max_rows: of a prompt.

    Raises:
        InvalidRequestError: it has another form; rows have another size than the model's, or numbers that are not
            finite. `param` says of which prompt.
        ContextLengthError: a prompt has too many rows.
    """
    if spec is None:
        message = "{param} needs a server that was started with --enable-input-embeds"
        raise InvalidRequestError.of(message, param=PARAM, code="unsupported_parameter")
    prompts = _prompts(value)
    if prompts is None:
        return EmbeddedPrompts([Media.of(_read(PARAM, value, spec, max_rows))], is_list=False)
    media = [Media.of(_read(f"{PARAM}.{i}", prompt, spec, max_rows)) for i, prompt in enumerate(prompts)]
    return EmbeddedPrompts(media, is_list=True)


def _prompts(value: Any) -> Sequence[Any] | None:
    """The prompts of a list of them; None: it is one."""
    if isinstance(value, list | tuple):
        if not value:
            raise InvalidRequestError.of("{param} must not be empty", param=PARAM)
        return value if isinstance(value[0], Mapping) or _depth(value[0]) >= 2 else None
    return value if not isinstance(value, Mapping) and _depth(value) == 3 else None


def _depth(value: Any) -> int:
    """Depth of nested lists, by the first entry of each."""
    if isinstance(value, list | tuple):
        return 1 + (_depth(value[0]) if value else 0)
    return np.ndim(value) if not isinstance(value, Mapping | str) else 0


def _read(path: str, value: Any, spec: EmbedsSpec, max_rows: int) -> Rows:
    rows = _decode(path, value, spec, max_rows) if isinstance(value, Mapping) else _array(path, value, max_rows)
    if rows.ndim != 2 or rows.dtype.kind not in "fiuV":
        raise _malformed(path)
    _check_shape(path, rows.shape, spec, max_rows)
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused below
            numbers = np.ascontiguousarray(rows, "<f4")
    except (TypeError, ValueError):
        raise _malformed(path) from None
    fits = (np.abs(numbers) <= spec.largest).all(axis=1)  # which no NaN does
    if not fits.all():
        message = "{param}: row {row} has a number that is not finite, or too large for the model's dtype"
        raise InvalidRequestError.of(message, param=path, row=int(fits.argmin()))
    return numbers


def _array(path: str, value: Any, max_rows: int) -> _Array:
    if isinstance(value, list | tuple):
        if len(value) > max_rows:
            raise _too_long(path, len(value), max_rows)
        lists = [row for row in value if isinstance(row, list | tuple)]
        # Before numpy makes an array: of one long text among them it would make each item as long.
        if not _NO_NUMBERS.isdisjoint(map(type, itertools.chain(*lists))) or _has_text(value):
            raise _malformed(path)
    try:
        array: _Array = np.asarray(value)
    except (TypeError, ValueError):
        if isinstance(value, list | tuple) and len({len(row) for row in value if isinstance(row, list | tuple)}) > 1:
            raise InvalidRequestError.of("{param}: rows have different lengths", param=path) from None
        raise _malformed(path) from None
    return array


def _has_text(rows: Sequence[Any]) -> bool:
    return any(isinstance(row, str | bytes) for row in rows)


def _decode(path: str, value: Mapping[str, Any], spec: EmbedsSpec, max_rows: int) -> _Array:
    """Decode an object with base64, after a check of its size."""
    data, shape, dtype = value.get("data"), value.get("shape"), value.get("dtype", "float32")
    if value.keys() - {"data", "shape", "dtype"} or not isinstance(data, str):
        raise _malformed(path)
    if dtype not in _ITEM_SIZES:
        message = "{param} must be one of {names}, little-endian, got {found!r}"
        names = ", ".join(_ITEM_SIZES)
        raise InvalidRequestError.of(message, param=f"{path}.dtype", names=names, found=dtype)
    if not isinstance(shape, list | tuple) or len(shape) != 2 or not all(type(size) is int for size in shape):
        message = "{param} must be two numbers, of rows and of their size, got {found!r}"
        raise InvalidRequestError.of(message, param=f"{path}.shape", found=shape)
    _check_shape(path, shape, spec, max_rows)
    num_bytes = shape[0] * shape[1] * _ITEM_SIZES[dtype]
    found = len(data) * 3 // 4 - data[-2:].count("=")
    if found != num_bytes:
        message = "{param} has {found} bytes; {rows} × {size} of {dtype} are {wanted}"
        num_rows, size = shape
        raise InvalidRequestError.of(
            message, param=f"{path}.data", found=found, rows=num_rows, size=size, dtype=dtype, wanted=num_bytes
        )
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError.of("{param} is not valid base64", param=f"{path}.data") from None
    if dtype == "float32":
        return np.frombuffer(raw, "<f4").reshape(shape)
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)


def _check_shape(path: str, shape: Sequence[int], spec: EmbedsSpec, max_rows: int) -> None:
    num_rows, size = shape
    if num_rows < 1:
        raise InvalidRequestError.of("{param} must not be empty", param=path)
    if num_rows > max_rows:
        raise _too_long(path, num_rows, max_rows)
    if size != spec.size:
        message = "{param}: rows have {size} numbers; this model's embeddings have {wanted}"
        raise InvalidRequestError.of(message, param=path, size=size, wanted=spec.size)


def _too_long(path: str, num_rows: int, max_rows: int) -> ContextLengthError:
    message = "{param} has {rows} rows; this server takes prompts of at most {most} tokens, one a row"
    return ContextLengthError.of(message, param=path, rows=num_rows, most=max_rows)


def _malformed(path: str) -> InvalidRequestError:
    return InvalidRequestError.of("{param} must be {forms}", param=path, forms=_FORMS)
