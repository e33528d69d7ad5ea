"""ModelConfig: the description of a model in our words. `from_hf` reads it from config.json, with the help of the
family."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from palladio.model.base.config_keys import MAX_INT, shown
from palladio.model.base.errors import ConfigError
from palladio.model.config.config_overrides import override
from palladio.model.config.hf_config import MAX_LAYERS, HfConfig
from palladio.model.config.nested_config import described_by, text_model
from palladio.model.config.quantization_config import (
    QUANT_FILES,
    kinds_by_config,
    separate_quantization_config,
    stored_format,
)
from palladio.model.config.quantization_flag import weight_kinds
from palladio.model.config.registry import BASE_MODELS, CLASSIFIERS, find_family, name_of_family
from palladio.model.files.folder_files import find_file
from palladio.model.files.small_files import read_json, read_object
from palladio.model.formats.stored_format import StoredFormat
from palladio.model.gguf.gguf_config import config_of_gguf
from palladio.model.gguf.gguf_file import is_gguf
from palladio.model.spec.classifier import Classifier
from palladio.model.spec.layer_spec import DecoderSpec, LayerSpec, SparseSpec
from palladio.model.weights.kinds import WeightKinds

DType = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")
_NAMES_OF_DTYPES: Mapping[str, DType] = {**{dtype: dtype for dtype in DTYPES}, "float": "float32", "half": "float16"}
"""Names of torch's dtypes; some files put `torch.` before them."""

# The most that config.json may ask for, as in model/config/hf_config.py.
MAX_INTERMEDIATE_SIZE = 1 << 28
MAX_VOCAB_SIZE = 1 << 24
MAX_EOS = 32  # published models have up to 10; a request adds its own, up to 64 together


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadCounts:
    """Heads of a padded layout that are the checkpoint's own. Means over all heads count those, each once.

    Attributes:
        num_heads: query heads of the checkpoint; padding makes queries of zeros.
        num_kv_heads: kv heads of the checkpoint.
        counts: for each kv head as laid out, whether it is neither padding nor a copy of an earlier one.
        is_query: for each query head as laid out, whether it is no padding.
    """

    num_heads: int
    num_kv_heads: int
    counts: tuple[bool, ...]
    is_query: tuple[bool, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(DecoderSpec):
    """A decoder-only transformer: what each layer computes, and all sizes. Pure data: the HTTP process reads it without
    jax.

    Attributes:
        architecture: the class name that config.json gives.
        family: name of the family that describes the decoder, as `find_family` takes it.
        model_type: the family name that config.json gives.
        vocab_size: rows of the embedding (V); may be more than the tokenizer knows.
        hidden_size: D.
        intermediate_size: F of the MLP.
        num_heads: query heads (N).
        num_kv_heads: key and value heads (K).
        head_size: H; in latent attention, the size of the rotated part.
        head_counts: the heads that count in a layout that pads or copies heads; None: every head counts.
        max_position_embeddings: tokens of context that the model is made for, rope scaling included.
        tie_word_embeddings: logits use the embedding's own table.
        eos_token_ids: tokens that end an answer, those of generation_config.json first.
        bos_token_id: token that begins a text; None: the model has none.
        dtype: dtype of the weights as published.
        quantization: format of the quantized weights in the checkpoint; None: it stores weights plainly.
        weight_kinds: kinds of the weights on the device.
        converted_dtype: dtype of unquantized weights in a converted checkpoint; None: it is not converted.
        stored_dtype: a dtype that holds all matrices of the files; None: no file was read.
        has_head: the model makes logits, so it can generate; else only hidden states.
        classifier: head of a model that classifies texts; None: the model does not.
        num_draft_layers: layers that the checkpoint has above those of the decoder, to predict tokens further ahead;
            they are not loaded.
    """

    architecture: str
    family: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    head_counts: HeadCounts | None = None
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    dtype: DType
    quantization: StoredFormat | None
    weight_kinds: WeightKinds = dataclasses.field(default_factory=WeightKinds)
    converted_dtype: DType | None = None
    stored_dtype: DType | None = None
    has_head: bool = True
    classifier: Classifier | None = None
    num_draft_layers: int = 0

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_attention_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_kv_heads}"
            )
        if self.latent is not None and self.num_heads != self.num_kv_heads:
            raise ConfigError(
                f"num_key_value_heads {self.num_kv_heads} must be num_attention_heads {self.num_heads}: latent "
                "attention has no groups"
            )
        if self.max_position_embeddings < 1:
            raise ConfigError("max_position_embeddings leaves no row of positions for a token")
        if self.classifier is not None and self.classifier.tokens and self.head_bias:
            raise ConfigError("classifier_from_token: this model's head has a bias, which labels do not take over")
        if self.head_size % 2:
            raise ConfigError(f"head_dim must be even (rotary embeddings rotate pairs), found {self.head_size}")

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any] | None = None,
        family_module: str | None = None,
    ) -> Self:
        """Read config.json (the styles of transformers 4 and 5) and generation_config.json.

        Args:
            family_module: a file of families, see `name_of_family`.

        Raises:
            ConfigError: a key is missing, or its value asks for something unsupported; the message names the key.
        """
        config = text_model(config)
        architecture = _architecture(config)
        family_name = name_of_family(described_by(config, architecture), family_module)
        family = find_family(family_name)
        config = family.usual_keys(config)
        hf = HfConfig(config, family.defaults)
        decoder = family.describe(hf)
        quantization = stored_format(config)
        return cls(
            **vars(decoder),
            architecture=architecture,
            family=family_name,
            model_type=str(config.get("model_type", "")),
            vocab_size=hf.count("vocab_size", most=MAX_VOCAB_SIZE),
            hidden_size=hf.hidden_size,
            intermediate_size=hf.count("intermediate_size", most=MAX_INTERMEDIATE_SIZE),
            num_heads=hf.num_heads,
            num_kv_heads=hf.num_kv_heads,
            head_size=hf.head_size,
            max_position_embeddings=_context_length(decoder, hf.max_position - _num_rows_before(decoder)),
            tie_word_embeddings=hf.flag("tie_word_embeddings", default=False),
            eos_token_ids=_eos_token_ids(config, generation_config or {}, family.defaults.get("eos_token_id")),
            bos_token_id=hf.optional_token("bos_token_id"),
            dtype=_dtype(config),
            quantization=quantization,
            weight_kinds=kinds_by_config(quantization, family.weights, hf.num_layers)
            if quantization
            else WeightKinds(),
            has_head=decoder.encoder is None and architecture not in BASE_MODELS and architecture not in CLASSIFIERS,
            classifier=_classifier(decoder, {**family.defaults, **config}) if architecture in CLASSIFIERS else None,
            num_draft_layers=hf.optional_count("num_nextn_predict_layers", least=0, most=MAX_LAYERS) or 0,
        )

    def for_context(self, length: int) -> Self:
        """Return the model for sequences of up to `length` tokens: rotary embeddings and windows depend on it."""

        def fitted(layer: LayerSpec) -> LayerSpec:
            return dataclasses.replace(layer, attention=layer.attention.for_context(length))

        return dataclasses.replace(self, layers=tuple(map(fitted, self.layers)))

    def with_quantization(self, quantization: str | None, of_checkpoint: WeightKinds | None = None) -> Self:
        """Return the model with the weights that --quantization asks for.

        Args:
            quantization: the flag; None: it was not given.
            of_checkpoint: kinds of the weights as they are stored; None: as config.json describes them.

        Raises:
            ConfigError: the flag does not fit the checkpoint.
        """
        found = self.weight_kinds if of_checkpoint is None else of_checkpoint
        rules = find_family(self.family).weights
        kinds = weight_kinds(quantization, self.quantization, found, rules, self.num_layers)
        return dataclasses.replace(self, weight_kinds=kinds)

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return len(self.layers)

    @property
    def num_sparse_layers(self) -> int:
        """Layers with a mixture of experts in place of the MLP."""
        return sum(isinstance(layer.mlp, SparseSpec) for layer in self.layers)


def read_model_dir(
    path: Path, overrides: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Read config.json, with `overrides` merged over it, and generation_config.json if present. Older tools wrote
    quantization_config into a file of its own. For a GGUF file, make both from its metadata.

    Raises:
        ConfigError: config.json is missing, or a file is not a JSON object.
    """
    if is_gguf(path):
        return override(config_of_gguf(path), overrides or {}), None
    if not path.is_dir():
        raise ConfigError(f"{path} is not a directory; a model path must contain config.json and *.safetensors")
    config = read_object(path, "config.json")
    if config is None:
        has_tokenizer = any(find_file(path, name) for name in ("tokenizer.json", "tokenizer.model"))
        hint = "it has only a tokenizer: download the whole model" if has_tokenizer else "give a Hugging Face model"
        raise ConfigError(f"no config.json in {path}; {hint}, with config.json and *.safetensors")
    if config.get("quantization_config") is None:
        files = {name: read_json(path, name) for name in QUANT_FILES}
        if (found := separate_quantization_config(files)) is not None:
            config["quantization_config"] = found
    return override(text_model(config), overrides or {}), read_object(path, "generation_config.json")


def read_config_file(path: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Read a config.json alone, with `overrides` merged over it.

    Raises:
        ConfigError: it is not a JSON object.
    """
    file = path.resolve()  # a named file may be a link
    return override(text_model(read_object(file.parent, file.name) or {}), overrides)


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError(f"architectures must be a list of one class name, found {shown(names)}")
    return names[0]


def _classifier(decoder: DecoderSpec, config: Mapping[str, Any]) -> Classifier:
    """Read the head. Of a decoder, the checkpoint's tensors say whether it has a bias; those of encoders have one."""
    found = Classifier.of(config)
    if decoder.encoder is None:
        return found
    if decoder.encoder.head is None:
        raise ConfigError("use_bidirectional_attention: heads that classify are served without it")
    if found.tokens:
        raise ConfigError("classifier_from_token: an encoder has no head for tokens; leave it out")
    return dataclasses.replace(found, has_bias=True, pad_token_id=None)


def _num_rows_before(decoder: DecoderSpec) -> int:
    """Return the rows of the table of positions before the one of a text's first token."""
    return 0 if decoder.encoder is None else decoder.encoder.first_position


def _context_length(decoder: DecoderSpec, max_position: int) -> int:
    return max((rope.context_length(max_position) for rope in decoder.ropes), default=max_position)


def _eos_token_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any], default: object) -> tuple[int, ...]:
    ids: list[int] = []
    for source in (generation_config, config):
        value = source.get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token <= MAX_INT for token in found):
            raise ConfigError(f"eos_token_id must be a token id or a list of them, found {shown(value)}")
        if (count := len({*ids, *found})) > MAX_EOS:
            raise ConfigError(f"eos_token_id must list at most {MAX_EOS} token ids, found {count} in all files")
        ids = list(dict.fromkeys([*ids, *(token for token in found if token >= 0)]))  # some files say -1 for none
    if not ids and "eos_token_id" not in config and default is not None:
        return _eos_token_ids({"eos_token_id": default}, {}, None)
    return tuple(ids)


def _dtype(config: Mapping[str, Any]) -> DType:
    name = config.get("torch_dtype") if config.get("dtype") is None else config["dtype"]
    if name is None:
        return "float32"
    if not isinstance(name, str) or (found := _NAMES_OF_DTYPES.get(name.removeprefix("torch."))) is None:
        raise ConfigError(f"dtype: {shown(name)} is not supported; supported: {', '.join(DTYPES)}")
    return found
