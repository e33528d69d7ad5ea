"""BERT: learned positions and token types, and norms of the residual sums."""

from palladio.model.config.bert_parts import EMBEDDINGS, LAYERS, POOLER_HEAD, UNUSED, bert_encoder, num_types
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.spec.encoder_spec import EncoderSpec
from palladio.model.spec.layer_spec import DecoderSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    types = num_types(hf, 2)
    return bert_encoder(hf, EncoderSpec(num_types=types, reads_types=types > 1))


FAMILIES = {
    "BertModel": Family(
        describe=_describe,
        weights=(*EMBEDDINGS, *LAYERS, *POOLER_HEAD),
        defaults={"max_position_embeddings": 512},
        ignored=UNUSED,
    )
}
