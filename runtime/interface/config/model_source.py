"""The flags of the model: weights, tokenizer, formats."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.config.field_checks import check_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Model, tokenizer and weights.

    Attributes:
        model_path: Hugging Face model directory, hub id or short name (smollm2); `palladio serve MODEL` is the same. An
            id or name is looked up in the local cache, then downloaded. `default` is the embedded model.
        tokenizer_path: Directory or hub id of the tokenizer. Default: --model-path.
        skip_tokenizer_init: Do not load a tokenizer: requests and answers are token ids only.
        load_format: How weights are read. auto: a converted (Orbax) checkpoint if `palladio convert` wrote one,
            otherwise `*.safetensors`. dummy: random weights made on the device.
        dtype: Data type of weights and activations. auto: bfloat16 on TPU and GPU, float32 on CPU, where weights stay
            bfloat16 if the checkpoint has that and the CPU multiplies it faster. bfloat16 is of weights only on a CPU.
        context_length: Maximum tokens of prompt and output together. Default: the model's limit. Lower it to save KV
            cache.
        trust_remote_code: Run the model repository's own code for the config and the tokenizer (never for the model).
        revision: Branch, tag or commit of a hub id.
        download_dir: Directory for hub downloads. Default: the hub cache.
        json_model_override_args: JSON object merged over config.json. It also replaces the same setting under its other
            name (rope_parameters and rope_scaling, dtype and torch_dtype).
        family_module: Python file with FAMILIES, for models that Palladio has no family for. It runs in the server's
            processes. Installed packages register theirs as entry points of `palladio.families`.
        quantization: Format of the weights in memory; a plain checkpoint is quantized while it loads. int8, fp8: a
            scale per output channel (W8A16). w8a8_int8, w8a8_fp8: projections also round activations. int4: a scale per
            128 inputs, in o_proj of one head (W4A16). Modules can have different formats:
            int4,lm_head=dense,down_proj=int8. awq, gptq and other checkpoint formats must match the checkpoint.
            dequantize: a quantized checkpoint becomes --dtype. Default: the format of the checkpoint.
        is_embedding: Compute embeddings of prompts instead of generating text, or scores and classes with a model that
            has a head for them. Pooling of embeddings is read from modules.json and 1_Pooling/config.json; if absent,
            last-token pooling with L2 normalization, and of encoders the mean. Encoders need no flag.
        enable_input_embeds: Accept `input_embeds` in /generate and `Engine.generate`: prompts of embeddings. Compiles a
            second program for each prefill size.
        weight_version: Name of the weights, which answers and /model_info show; an update of the weights changes it.
    """

    model_path: str
    tokenizer_path: str | None = None
    skip_tokenizer_init: bool = False
    load_format: Literal["auto", "safetensors", "orbax", "dummy"] = "auto"
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = "auto"
    context_length: int | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    download_dir: str | None = None
    json_model_override_args: str = "{}"
    family_module: str | None = None
    quantization: str | None = None
    is_embedding: bool = False
    enable_input_embeds: bool = False
    weight_version: str = "default"

    def __post_init__(self) -> None:
        check_fields(self)
