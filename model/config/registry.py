"""The family module of each architecture. A module is imported when a config names its architecture, not before."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import ConfigError
from palladio.model.config.family import Family

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "ApertusForCausalLM": "palladio.model.families.apertus",
        "ArceeForCausalLM": "palladio.model.families.arcee",
        "Cohere2ForCausalLM": "palladio.model.families.cohere",
        "CohereForCausalLM": "palladio.model.families.cohere",
        "DeepseekV2ForCausalLM": "palladio.model.families.deepseek",
        "DeepseekV3ForCausalLM": "palladio.model.families.deepseek",
        "Ernie4_5ForCausalLM": "palladio.model.families.ernie",
        "Exaone4ForCausalLM": "palladio.model.families.exaone4",
        "GPT2LMHeadModel": "palladio.model.families.gpt2",
        "GPTNeoXForCausalLM": "palladio.model.families.gpt_neox",
        "Gemma2ForCausalLM": "palladio.model.families.gemma2",
        "Gemma3ForCausalLM": "palladio.model.families.gemma3",
        "Gemma3ForConditionalGeneration": "palladio.model.families.gemma3",
        "GemmaForCausalLM": "palladio.model.families.gemma",
        "Glm4ForCausalLM": "palladio.model.families.glm4",
        "Glm4MoeLiteForCausalLM": "palladio.model.families.glm4_moe_lite",
        "Glm4MoeForCausalLM": "palladio.model.families.glm4_moe",
        "GlmForCausalLM": "palladio.model.families.glm4",
        "GptOssForCausalLM": "palladio.model.families.gpt_oss",
        "GraniteForCausalLM": "palladio.model.families.granite",
        "GraniteMoeForCausalLM": "palladio.model.families.granite",
        "HunYuanDenseV1ForCausalLM": "palladio.model.families.hunyuan",
        "InternLM2ForCausalLM": "palladio.model.families.internlm",
        "InternLM3ForCausalLM": "palladio.model.families.internlm",
        "LlamaForCausalLM": "palladio.model.families.llama",
        "MiMoForCausalLM": "palladio.model.families.qwen",
        "MiniMaxM2ForCausalLM": "palladio.model.families.minimax",
        "Ministral3ForCausalLM": "palladio.model.families.ministral",
        "MinistralForCausalLM": "palladio.model.families.ministral",
        "Mistral3ForConditionalGeneration": "palladio.model.families.ministral",
        "MistralForCausalLM": "palladio.model.families.mistral",
        "MixtralForCausalLM": "palladio.model.families.mistral",
        "NemotronForCausalLM": "palladio.model.families.nemotron",
        "Olmo2ForCausalLM": "palladio.model.families.olmo",
        "Olmo3ForCausalLM": "palladio.model.families.olmo",
        "OlmoeForCausalLM": "palladio.model.families.olmoe",
        "Phi3ForCausalLM": "palladio.model.families.phi3",
        "PhiForCausalLM": "palladio.model.families.phi",
        "Qwen2ForCausalLM": "palladio.model.families.qwen",
        "Qwen2MoeForCausalLM": "palladio.model.families.qwen_moe",
        "Qwen2VLForConditionalGeneration": "palladio.model.families.qwen",
        "Qwen2_5_VLForConditionalGeneration": "palladio.model.families.qwen",
        "Qwen3ForCausalLM": "palladio.model.families.qwen",
        "Qwen3MoeForCausalLM": "palladio.model.families.qwen_moe",
        "Qwen3NextForCausalLM": "palladio.model.families.qwen3_next",
        "Qwen3_5ForCausalLM": "palladio.model.families.qwen3_5",
        "Qwen3_5ForConditionalGeneration": "palladio.model.families.qwen3_5",
        "Qwen3_5MoeForCausalLM": "palladio.model.families.qwen3_5",
        "Qwen3_5MoeForConditionalGeneration": "palladio.model.families.qwen3_5",
        "Qwen3VLForConditionalGeneration": "palladio.model.families.qwen",
        "SeedOssForCausalLM": "palladio.model.families.seed_oss",
        "SmolLM3ForCausalLM": "palladio.model.families.smollm3",
        "StableLmForCausalLM": "palladio.model.families.stablelm",
        "Starcoder2ForCausalLM": "palladio.model.families.starcoder2",
    }
)

_TEXT_MODELS = {  # bases that transformers names otherwise, for the plain name is of the model that takes images
    "GPT2Model": "GPT2LMHeadModel",
    "Gemma3TextModel": "Gemma3ForCausalLM",
    "Qwen2VLTextModel": "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLTextModel": "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLTextModel": "Qwen3VLForConditionalGeneration",
    "Qwen3_5TextModel": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeTextModel": "Qwen3_5MoeForCausalLM",
}
BASE_MODELS: Mapping[str, str] = MappingProxyType(  # the same without a head: checkpoints that are made to embed
    {name.removesuffix("ForCausalLM") + "Model": name for name in ARCHITECTURES if name.endswith("ForCausalLM")}
    | _TEXT_MODELS
)

_ENDING = "ForSequenceClassification"
CLASSIFIERS: Mapping[str, str] = MappingProxyType(  # the same with a head that scores texts, or classifies them
    {name.removesuffix("ForCausalLM") + _ENDING: name for name in ARCHITECTURES if name.endswith("ForCausalLM")}
    | {f"Gemma3Text{_ENDING}": "Gemma3ForCausalLM", f"GPT2{_ENDING}": "GPT2LMHeadModel"}
)


_REASONS: Mapping[str, str] = MappingProxyType(  # architectures that people ask for: why not, and what to use instead
    {
        "BaiChuanForCausalLM": "converted to Llama's format it is served as LlamaForCausalLM",
        "BaichuanForCausalLM": "Baichuan 2 normalizes its head, and 13B has ALiBi; the 7B model converted to Llama's "
        "format, head included, is served as LlamaForCausalLM",
        "ChatGLMModel": "give GLM-4-0414 or a later GLM",
        "DeepseekV32ForCausalLM": "it has sparse attention; DeepSeek-V3.1 is supported",
        "QWenLMHeadModel": "it is Qwen 1; Qwen1.5 and later are supported",
        **dict.fromkeys(
            ("BertModel", "RobertaModel", "XLMRobertaModel", "BertForSequenceClassification"),
            "encoders are not served; for embeddings and scores there are Qwen3-Embedding and Qwen3-Reranker",
        ),
    }
)


def find_family(architecture: str) -> Family:
    """Find the family of an architecture that config.json names.

    Raises:
        ConfigError: the architecture is not supported; the message lists those that are.
    """
    name = CLASSIFIERS.get(architecture, BASE_MODELS.get(architecture, architecture))
    if name not in ARCHITECTURES:
        reason = f" ({_REASONS[name]})" if name in _REASONS else ""
        raise ConfigError(
            f"architectures: {shown(architecture)} is not supported{reason}; supported: "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
    families: Mapping[str, Family] = importlib.import_module(ARCHITECTURES[name]).FAMILIES
    return families[name]
