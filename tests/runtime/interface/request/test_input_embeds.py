"""input_embeds, as callers write them: what is read of each form, and what is wrong with others."""

import base64
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError
from palladio.runtime.interface.request.input_embeds import EmbedsSpec, read_embeds
from palladio.runtime.interface.request.prompt_parts import Media

SPEC = EmbedsSpec(size=3, largest=65504.0)
ROWS = np.array([[1.5, -2.25, 3.0], [0.0, 4.0, 65504.0]], np.float32)


def encoded(rows: np.ndarray = ROWS, dtype: str = "float32", **changes: Any) -> dict[str, Any]:
    stored = rows.astype({"float32": "<f4", "bfloat16": ml_dtypes.bfloat16}[dtype])
    data = base64.b64encode(stored.tobytes()).decode()
    return {"data": data, "shape": list(rows.shape), "dtype": dtype, **changes}


def of(media: Media) -> np.ndarray:
    return np.frombuffer(media.content, "<f4").reshape(media.length, media.width)


@pytest.mark.parametrize(
    "value",
    [ROWS, ROWS.tolist(), [[1.5, -2.25, 3], [0, 4, 65504]], list(ROWS), ROWS.astype(np.float64), encoded(),
     ROWS.astype(np.float16), tuple(map(tuple, ROWS.tolist()))],
    ids=["array", "lists", "with integers", "rows", "float64", "base64", "float16", "tuples"],
)  # fmt: skip
def test_forms_of_a_prompt(value: Any) -> None:
    for given, is_list in ((value, False), ([value, value], True), ([value], True)):
        found = read_embeds(given, SPEC, 2)
        assert found.is_list == is_list
        for media in found.media:
            np.testing.assert_array_equal(of(media), ROWS)
            assert media.digest == Media.of(ROWS).digest, "equal rows are equal media, whatever their form"
            assert (media.length, media.width) == (2, 3)


def test_arrays_of_several_prompts_and_bfloat16() -> None:
    assert [of(media)[0, 0] for media in read_embeds(np.stack([ROWS, 2 * ROWS / 3]), SPEC, 2).media] == [1.5, 1.0]
    coarse = ROWS.astype(ml_dtypes.bfloat16).astype(np.float32).clip(-1e4, 1e4)
    for value in (encoded(coarse, "bfloat16"), coarse.astype(ml_dtypes.bfloat16)):
        (media,) = read_embeds(value, SPEC, 2).media
        np.testing.assert_array_equal(of(media), coarse.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_other_rows_are_other_media() -> None:
    assert Media.of(ROWS).digest != Media.of(-ROWS).digest


NAN, INF = float("nan"), float("inf")
WRONG: dict[str, tuple[Any, str, str]] = {
    "nothing": ([], "input_embeds", "must not be empty"),
    "no row": ([[]], "input_embeds", "rows have 0 numbers; this model's embeddings have 3"),
    "no prompt's row": ([[[1, 2, 3]], []], "input_embeds.1", "must be a list of rows"),
    "a row": ([1.0, 2.0, 3.0], "input_embeds", "must be a list of rows of numbers, an object with data"),
    "text": ([["1", "2", "3"]], "input_embeds", "must be a list of rows of numbers"),
    "true": ([[True, False, True]], "input_embeds", "must be a list of rows of numbers"),
    "null": ([[1, None, 3]], "input_embeds", "must be a list of rows of numbers"),
    "too deep": ([[[[1, 2, 3]]]], "input_embeds.0", "must be a list of rows of numbers"),
    "ragged": ([[1, 2, 3], [1, 2]], "input_embeds", "rows have different lengths"),
    "another size": ([[1, 2, 3, 4]], "input_embeds", "rows have 4 numbers; this model's embeddings have 3"),
    "size of one": ([[[1, 2, 3]], [[1, 2]]], "input_embeds.1", "rows have 2 numbers; this model's embeddings have 3"),
    "NaN": (np.array([[1, 2, 3], [1, NAN, 3]]), "input_embeds", "row 1 has a number that is not finite"),
    "infinity": ([[1, 2, 3], [1, 2, 3], [1, 2, -INF]], "input_embeds", "row 2 has a number that is not finite"),
    "over float16": ([[1, 2, 1e5]], "input_embeds", "row 0 .* or too large for the model's dtype"),
    "over float32": ([[1, 2, 1e300]], "input_embeds", "row 0 .* or too large"),
    "NaN in base64": (encoded(ROWS * NAN), "input_embeds", "row 0 has a number that is not finite"),
    "no data": ({"shape": [2, 3]}, "input_embeds", "must be a list of rows"),
    "unknown key": (encoded(order="C"), "input_embeds", "must be a list of rows"),
    "dtype": (encoded() | {"dtype": "float16"}, "input_embeds.dtype", "one of float32, bfloat16, little-endian"),
    "shape": (encoded(shape=[6]), "input_embeds.shape", "two numbers, of rows and of their size"),
    "shape of truth": (encoded(shape=[True, 3]), "input_embeds.shape", "two numbers"),
    "size in base64": (encoded(shape=[3, 2]), "input_embeds", "rows have 2 numbers"),
    "no rows in base64": (encoded(shape=[0, 3], data=""), "input_embeds", "must not be empty"),
    "negative": (encoded(shape=[-1, 3]), "input_embeds", "must not be empty"),
    "length": (encoded(shape=[3, 3]), "input_embeds.data", "has 24 bytes; 3 × 3 of float32 are 36"),
    "no base64": (encoded(data="*" * 32), "input_embeds.data", "is not valid base64"),
    "of a list": ([encoded(), encoded(data="*" * 32)], "input_embeds.1.data", "is not valid base64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong(case: str) -> None:
    value, param, words = WRONG[case]
    with pytest.raises(InvalidRequestError, match=words) as caught:
        read_embeds(value, SPEC, 3)
    assert caught.value.param == param


@pytest.mark.parametrize("form", [lambda text: [[text, *[0.5] * 999]] * 2, lambda text: [text, *[[0.5] * 3] * 999]])
def test_one_long_text_takes_no_memory_for_all_numbers(form: Callable[[str], Any]) -> None:
    value = form("x" * 1_000_000)
    tracemalloc.start()
    with pytest.raises(InvalidRequestError, match="must be a list of rows"):
        read_embeds(value, SPEC, 1000)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("value", [ROWS, ROWS.tolist(), encoded(data="")], ids=["array", "lists", "base64"])
def test_too_many_rows(value: Any) -> None:
    with pytest.raises(ContextLengthError, match="has 2 rows; this server takes prompts of at most 1 tokens") as caught:
        read_embeds(value, SPEC, 1)
    assert caught.value.param == "input_embeds"


def test_an_engine_that_takes_none() -> None:
    with pytest.raises(InvalidRequestError, match="--enable-input-embeds"):
        read_embeds(ROWS, None, 8)
