"""The names of a checkpoint's tensors as a checkpoint of the text model alone has them."""

import re
from typing import Final

from palladio.model.loading.readers.checkpoint import Checkpoint
from palladio.model.loading.readers.safetensors_file import StoredTensor

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

OTHER_PARTS: Final = re.compile(
    r"(?:thinker\.)?(?:model\.)?(vision_tower|vision_model|visual|"
    r"multi_modal_projector|mm_projector|embed_vision|image_newline|audio_tower|talker|code2wav)(?:\.|$)"
)
"""Name prefixes of tensors that belong to no text model."""

_PREFIXES = (  # other than model.
    *("language_model.model.", "model.language_model.", "thinker.model.language_model.", "thinker.model."),
    *("transformer.", "gpt_neox.", "bert.", "roberta.", "distilbert.", "mpnet.", "nomic_bert.", "gte.", "new."),
    *("model.", ""),
)
_WORDS = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")  # of encoders
_TABLES = ("embed_tokens.weight", "wte.weight", "embed_in.weight", *_WORDS)  # names of EMBEDDING behind the prefix
_BLOCKS = re.compile(r"^blocks\.(\d+)\.")  # layers of Kimi-K2.5, as transformers writes them
_HEADS = ("lm_head.", "embed_out.", "score.")
_OLDER_NORMS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}


def by_name(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    """Return the text model's tensors, named as in a checkpoint of the text model alone, with its head. A checkpoint
    without a head leaves the prefix out; one of a model that takes images has the text model as one of its parts."""
    tensors = checkpoint.tensors
    places = ((prefix, table) for prefix in _PREFIXES for table in _TABLES if f"{prefix}{table}" in tensors)
    prefix, table = next(places, ("model.", ""))
    named: dict[str, StoredTensor] = {}
    for stored, tensor in tensors.items():
        name = _newer(stored)
        if name == f"{prefix}{table}":
            named[EMBEDDING] = tensor
        elif name.startswith(prefix) and not name.startswith(_HEADS):
            named["model." + _BLOCKS.sub(r"layers.\1.", name.removeprefix(prefix))] = tensor
        elif not OTHER_PARTS.match(name):
            plain = name.removeprefix("thinker.").removeprefix("language_model.")
            named[f"lm_head.{plain.removeprefix('embed_out.')}" if plain.startswith("embed_out.") else plain] = tensor
    return named


def _newer(name: str) -> str:
    """Return a tensor's name with the names that norms of encoders have today."""
    ending = next((old for old in _OLDER_NORMS if name.endswith(old)), None)
    return name if ending is None else name.removesuffix(ending) + _OLDER_NORMS[ending]
