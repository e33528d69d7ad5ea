"""FakeEngine's embeddings of prompts."""

from collections.abc import Sequence

import numpy as np

from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import SparseVector
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.pooling_params import VectorKind


def fake_embedding(prompt_ids: Sequence[int], size: int) -> np.ndarray:
    """f32[size] of length 1, another one for each prompt; of one number, which would be 1 or -1, any length."""
    vector = np.random.default_rng(list(prompt_ids)).standard_normal(size).astype(np.float32)
    return vector / np.linalg.norm(vector) if size > 1 else vector


def fake_token_vectors(prompt_ids: Sequence[int], size: int) -> np.ndarray:
    """f32[T, size], each of length 1, and the same for the same token."""
    return np.stack([fake_embedding([token_id], size) for token_id in prompt_ids])


def fake_sparse(prompt_ids: Sequence[int]) -> SparseVector:
    """Each token once, with how often it occurs as its weight."""
    ids = sorted(set(prompt_ids))
    return SparseVector(ids, [float(list(prompt_ids).count(token_id)) for token_id in ids])


def add_vectors(
    output: RequestOutput, prompt_ids: Sequence[int], kinds: Sequence[VectorKind], spec: EmbeddingSpec | None
) -> None:
    """Gives an output the vectors that were asked for; none where the engine generates text."""
    if spec is None:
        return
    output.embedding = fake_embedding(prompt_ids, spec.size).tobytes() if "dense" in kinds else b""
    output.sparse = fake_sparse(prompt_ids) if "sparse" in kinds else None
    output.token_vectors = fake_token_vectors(prompt_ids, spec.token_size).tobytes() if "tokens" in kinds else None
