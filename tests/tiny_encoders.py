"""Tiny encoders: what config.json says of each, and folders of it with or without weights."""

import json
from pathlib import Path
from typing import Any

_BERT: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "hidden_act": "gelu",
    "max_position_embeddings": 520,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "torch_dtype": "float32",
}
_ROBERTA = {**_BERT, "max_position_embeddings": 522, "pad_token_id": 1, "type_vocab_size": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "BertModel": {**_BERT, "model_type": "bert"},
    "RobertaModel": {**_ROBERTA, "model_type": "roberta"},
    "XLMRobertaModel": {**_ROBERTA, "model_type": "xlm-roberta"},
    "CamembertModel": {**_ROBERTA, "model_type": "camembert"},
    "DistilBertModel": {
        "model_type": "distilbert",
        "vocab_size": 384,
        "dim": 48,
        "hidden_dim": 80,
        "n_layers": 2,
        "n_heads": 6,
        "activation": "gelu",
        "max_position_embeddings": 520,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    },
    "MPNetModel": {**_ROBERTA, "model_type": "mpnet"},
    "ModernBertModel": {
        **_BERT,
        "model_type": "modernbert",
        "num_hidden_layers": 4,
        "local_attention": 16,
        "global_attn_every_n_layers": 3,
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "classifier_bias": True,
        "cls_token_id": 3,
        "sep_token_id": 4,
    },
    "NomicBertModel": {**_BERT, "model_type": "nomic_bert", "hidden_act": "silu"},
    "GteModel": {**_BERT, "model_type": "gte"},
    "Gemma3TextModel": {
        "model_type": "gemma3_text",
        "vocab_size": 384,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "max_position_embeddings": 520,
        "use_bidirectional_attention": True,
        "bos_token_id": None,
        "torch_dtype": "float32",
    },
}
"""Of each architecture that makes embeddings."""


def classifier_of(architecture: str) -> str:
    """The same with a head that classifies."""
    return f"{architecture.removesuffix('Model')}ForSequenceClassification"


def config_of(architecture: str, **overrides: Any) -> dict[str, Any]:
    """What config.json says; of one that classifies, three labels."""
    base = f"{architecture.removesuffix('ForSequenceClassification').removesuffix('Model')}Model"
    labels = {} if architecture == base else {"id2label": {"0": "a", "1": "b", "2": "c"}}
    return {"architectures": [architecture], **CONFIGS[base], **labels, **overrides}


def make_folder(folder: Path, architecture: str = "BertModel", **overrides: Any) -> Path:
    """Writes config.json alone, for --load-format dummy. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(architecture, **overrides)), encoding="utf-8")
    return folder
