"""`palladio plan` of encoders: weights alone, and nothing for each token of a sequence."""

import numpy as np

from palladio.model.config.config import ModelConfig
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.planning.deployment import Deployment
from palladio.runtime.planning.hardware import find_slice
from tests.tiny_encoders import config_of

HIDDEN, FFW, LAYERS = 384, 1536, 6
MINILM = config_of(
    "BertModel",
    vocab_size=30522,
    hidden_size=HIDDEN,
    intermediate_size=FFW,
    num_hidden_layers=LAYERS,
    num_attention_heads=12,
    max_position_embeddings=512,
    type_vocab_size=2,
)


def test_an_encoder_has_no_cache() -> None:
    config = EngineConfig.from_flags({"model_path": "m", "is_embedding": True, "dtype": "bfloat16"})
    found = Deployment.of(config, ModelConfig.from_hf(MINILM), find_slice("v6e-1"))
    layer = 4 * HIDDEN * (HIDDEN + 1) + 2 * HIDDEN * FFW + HIDDEN + FFW + 4 * HIDDEN
    tables = (30522 + 512 + 2) * HIDDEN + 2 * HIDDEN
    assert found.num_parameters == LAYERS * layer + tables
    assert found.bytes_per_token == 0
    assert np.isclose(found.weight_bytes, 2 * found.num_parameters, rtol=0.01)
