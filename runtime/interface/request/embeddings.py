"""Embeddings as callers get them: what the engine is asked for, and its vectors, whole or shortened."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.pooling import EmbeddingSpec
from palladio.runtime.interface.request.sampling_params import SamplingParams

EMBEDDING_PARAMS = SamplingParams(max_tokens=0, temperature=0.0)  # of every request to an engine that makes embeddings
_TINY = 1e-12  # as in the pooler

Vectors = npt.NDArray[np.float32]


def check_dimensions(dimensions: int | None, spec: EmbeddingSpec) -> None:
    """
    Raises:
        InvalidRequestError: there are not so many.
    """
    if dimensions is None:
        return
    if spec.classes is not None:
        raise InvalidRequestError(
            "dimensions is a field for embeddings; this model classifies texts", param="dimensions"
        )
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= spec.size:
        raise InvalidRequestError(
            f"dimensions must be in 1 … {spec.size}, which is the size of this model's embeddings, got {dimensions!r}",
            param="dimensions",
        )


def embedded(output: RequestOutput) -> RequestOutput:
    """The output, which has an embedding.

    Raises:
        PalladioError: it has none, and why.
    """
    if output.embedding is None:
        finish = output.finish
        raise (finish or FinishReason("abort")).error("the request was aborted")
    return output


def read_vectors(embeddings: Sequence[bytes], dimensions: int | None, spec: EmbeddingSpec) -> Vectors:
    """The vectors f32[N, D] of N embeddings.

    Args:
        embeddings: see TokenOutput.
        dimensions: how many of a vector's first numbers are kept (Matryoshka); None: all. What had length 1 gets it
            again.
    """
    vectors: Any = np.frombuffer(b"".join(embeddings), "<f4").reshape(len(embeddings), spec.size)
    if dimensions is None or dimensions == spec.size:
        return vectors  # type: ignore[no-any-return]
    vectors = vectors[:, :dimensions].copy()
    if spec.normalized:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY)
    return vectors  # type: ignore[no-any-return]
