"""Vectors of texts as answers have them: numbers, base64, bits, sparse weights, a vector for each token."""

import base64
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import orjson
from fastapi import Response

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import EmbeddingSpec, Vectors, read_token_vectors, read_vectors
from palladio.runtime.interface.request.pooling_params import VectorKind

VectorForm = Literal["float", "base64", "binary", "ubinary", "sparse", "tokens"]

_KINDS: dict[VectorForm, VectorKind] = {"sparse": "sparse", "tokens": "tokens"}
_BITS = 8  # numbers in a byte of the binary forms


def kinds_of(forms: Sequence[VectorForm]) -> tuple[VectorKind, ...]:
    """What an engine has to make for these forms, each once."""
    return tuple(dict.fromkeys(_KINDS.get(form, "dense") for form in forms))


def check_forms(forms: Sequence[VectorForm], spec: EmbeddingSpec, dimensions: int | None, name: str) -> None:
    """Check that the model's vectors have these forms.

    Args:
        dimensions: numbers that are kept; None: all. name: what the client calls them.

    Raises:
        InvalidRequestError: the model makes no such vectors, or they do not fill whole bytes.
    """
    for kind in kinds_of(forms):
        if kind not in spec.kinds:
            known = ", ".join({"dense": "float", "sparse": "sparse", "tokens": "tokens"}[one] for one in spec.kinds)
            message = "{param}: this model makes no {kind} vectors; its embedding_types are {known}"
            raise InvalidRequestError.of(message, param="embedding_types", kind=kind, known=known)
    if {"binary", "ubinary"} & {*forms} and (dimensions or spec.size) % _BITS:
        message = "binary and ubinary need embeddings of a multiple of 8 numbers: give {param}"
        raise InvalidRequestError.of(message, param=name)


def vectors_of(outputs: Sequence[RequestOutput], dimensions: int | None, spec: EmbeddingSpec) -> Vectors:
    """The dense vectors f32[N, D] of N texts, see `read_vectors`."""
    return read_vectors([output.embedding or b"" for output in outputs], dimensions, spec)


def in_form(
    form: VectorForm, outputs: Sequence[RequestOutput], dimensions: int | None, spec: EmbeddingSpec
) -> list[Any]:
    """The texts' vectors in a form, as JSON has it. A bit of the binary forms says whether a number is not negative."""
    if form == "sparse":
        return [_sparse(output) for output in outputs]
    if form == "tokens":
        return [read_token_vectors(output.token_vectors or b"", spec) for output in outputs]
    vectors = vectors_of(outputs, dimensions, spec)
    match form:
        case "float":
            return list(vectors)
        case "base64":
            return as_base64(vectors)
        case "ubinary":
            return np.packbits(vectors >= 0, axis=-1).tolist()  # type: ignore[no-any-return]
        case "binary":
            return (np.packbits(vectors >= 0, axis=-1).astype(np.int16) - 128).tolist()  # type: ignore[no-any-return]


def as_base64(vectors: Any) -> list[str]:
    """Rows of little-endian float32."""
    return [base64.b64encode(np.ascontiguousarray(row, "<f4").tobytes()).decode() for row in vectors]


def _sparse(output: RequestOutput) -> dict[str, Any]:
    found = output.sparse
    return {"indices": [] if found is None else found.token_ids, "values": [] if found is None else found.weights}


def num_values(outputs: Sequence[RequestOutput], spec: EmbeddingSpec) -> int:
    """Numbers that an answer has, for `run_encoding`."""
    of_tokens = sum(len(output.token_vectors or b"") // 4 for output in outputs)
    return spec.size * len(outputs) + of_tokens


def json_response(content: object) -> Response:
    """An answer with arrays of numpy in it."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
