"""The table of encoders that config.json may name: docs/models.md and `palladio list --architectures` show it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from palladio.model.config.architectures import Architecture

NOTHING: Final = "nothing"


def _row(module: str, models: str, notes: str = "") -> Architecture:
    return Architecture(module=f"palladio.model.families.{module}", models=models, cache=NOTHING, notes=notes)


ENCODERS: Mapping[str, Architecture] = MappingProxyType(
    {
        "BertModel": _row("bert", "BERT, all-MiniLM, BGE, E5, GTE (first generation), MiniLM cross-encoders"),
        "CamembertModel": _row("roberta", "CamemBERT"),
        "DistilBertModel": _row("distilbert", "DistilBERT, multi-qa-distilbert"),
        "GteModel": _row("gte", "gte-multilingual-base, gte-en-v1.5, as transformers has them", "rotation"),
        "MPNetModel": _row("mpnet", "all-mpnet-base-v2, multi-qa-mpnet", "a bias of distances; on XLA's attention"),
        "ModernBertModel": _row("modernbert", "ModernBERT, gte-modernbert, GTE rerankers", "rotation, windows"),
        "NomicBertModel": _row("nomic_bert", "nomic-embed-text v1, v1.5", "rotation"),
        "RobertaModel": _row("roberta", "RoBERTa, all-distilroberta"),
        "XLMRobertaModel": _row("roberta", "BGE-M3, multilingual-e5, bge-reranker v2"),
    }
)
"""Each is served as it is and with its head ForSequenceClassification. EmbeddingGemma is in the table of decoders, for
it is a Gemma 3 whose config.json has `use_bidirectional_attention`."""

_ENDINGS = ("Model", "ForSequenceClassification", "ForMaskedLM")
_GEMMA = ("Gemma3TextModel", "Gemma3ForCausalLM")


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is of an encoder, whatever else it says."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str):
        return False
    if name in _GEMMA:
        return config.get("use_bidirectional_attention") is True
    return any(name.endswith(end) and f"{name.removesuffix(end)}Model" in ENCODERS for end in _ENDINGS)
