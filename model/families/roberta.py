"""RoBERTa and its relatives: BERT whose positions begin after the row of padding."""

from palladio.model.base.errors import ConfigError
from palladio.model.config.bert_parts import EMBEDDINGS, LAYERS, UNUSED, bert_encoder, head_rules, num_types
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.spec.encoder_spec import EncoderSpec
from palladio.model.spec.layer_spec import DecoderSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    padding = hf.optional_token("pad_token_id")
    if padding is None:
        raise ConfigError("pad_token_id must be a token id: positions begin after it")
    return bert_encoder(hf, EncoderSpec(first_position=padding + 1, num_types=num_types(hf, 2)))


_ROBERTA = Family(
    describe=_describe,
    weights=(*EMBEDDINGS, *LAYERS, *head_rules("classifier.dense", "classifier.out_proj")),
    defaults={
        "max_position_embeddings": 512,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    ignored=UNUSED,
)

FAMILIES = dict.fromkeys(("RobertaModel", "XLMRobertaModel", "CamembertModel"), _ROBERTA)
