"""The text models of Qwen3.5: those of Qwen3-Next with other names, either without experts or with nothing else."""

import dataclasses

from palladio.model.config.weight_tables import SPLIT_DELTA_NET
from palladio.model.families.qwen3_next import DEFAULTS, HYBRID_WEIGHTS, QWEN3_NEXT, describe_hybrid

DENSE = dataclasses.replace(
    QWEN3_NEXT,
    describe=lambda hf: describe_hybrid(hf, are_sparse=(False,) * hf.num_layers),
    weights=(*HYBRID_WEIGHTS, *SPLIT_DELTA_NET),
    defaults={**DEFAULTS, "num_key_value_heads": 4},
)
SPARSE = dataclasses.replace(
    DENSE,
    describe=lambda hf: describe_hybrid(hf, are_sparse=(True,) * hf.num_layers),
    defaults={**DEFAULTS, "num_experts": 256, "num_experts_per_tok": 8, "intermediate_size": 512},  # of no layer
)

FAMILIES = {
    "Qwen3_5ForCausalLM": DENSE,
    "Qwen3_5MoeForCausalLM": SPARSE,
}
