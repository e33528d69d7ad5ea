"""MPNet: BERT whose scores have a bias of distances, beside learned positions."""

from palladio.model.config.bert_parts import EMBEDDINGS, OUTPUTS, UNUSED, bert_encoder, head_rules
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.spec.encoder_spec import DistanceBias, EncoderSpec
from palladio.model.spec.layer_spec import DecoderSpec

_BUCKETS = 32  # transformers computes these, whatever config.json says


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.require("relative_attention_num_buckets", _BUCKETS, default=_BUCKETS)
    distances = DistanceBias(num_buckets=_BUCKETS, max_distance=128)
    return bert_encoder(hf, EncoderSpec(first_position=2, distances=distances))


_ATTENTION = layer_rules(
    "attention.",
    "",
    ("attn.q.weight", "attention.qkv.kernel", "query"),
    ("attn.k.weight", "attention.qkv.kernel", "key"),
    ("attn.v.weight", "attention.qkv.kernel", "value"),
    ("attn.q.bias", "attention.qkv.bias", "query_bias"),
    ("attn.k.bias", "attention.qkv.bias", "key_bias"),
    ("attn.v.bias", "attention.qkv.bias", "value_bias"),
    ("attn.o.weight", "attention.output.kernel", "output"),
    ("attn.o.bias", "attention.output.bias", "vector"),
    ("LayerNorm.weight", "attention_output_norm.scale", "vector"),
    ("LayerNorm.bias", "attention_output_norm.bias", "vector"),
    layers="encoder.layer",
)
_DISTANCES = WeightRule("model.encoder.relative_attention_bias.weight", "distances.table", "head_columns")

FAMILIES = {
    "MPNetModel": Family(
        describe=_describe,
        weights=(
            *(EMBEDDINGS[:2] + EMBEDDINGS[3:]),
            *_ATTENTION,
            *OUTPUTS,
            _DISTANCES,
            *head_rules("classifier.dense", "classifier.out_proj"),
        ),
        defaults={
            "max_position_embeddings": 512,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        ignored=UNUSED,
    )
}
