"""FakeEngine's embeddings of prompts."""

from collections.abc import Sequence

import numpy as np


def fake_embedding(prompt_ids: Sequence[int], size: int) -> np.ndarray:
    """f32[size] of length 1, another one for each prompt; of one number, which would be 1 or -1, any length."""
    vector = np.random.default_rng(list(prompt_ids)).standard_normal(size).astype(np.float32)
    return vector / np.linalg.norm(vector) if size > 1 else vector
