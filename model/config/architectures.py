"""The table of architectures that config.json may name: docs/models.md and `palladio list --architectures` show it."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_NO_DRAFTS: Final = "layers that predict further tokens are not used"
PAGES, WINDOWS, LATENTS, STATES = "pages", "pages, windows", "latents", "pages, states"
OWN: Final = ""  # the architecture itself has a family
TRANSFORMERS: Final = "transformers"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture.

    Attributes:
        module: module of its family; "": the architectures of `texts` have families.
        models: published models, as people search for them.
        cache: what its layers keep of a sequence: pages of keys and values, which layers with windows may have of the
            newest tokens only, pages of latents, or states of a fixed size beside pages; "": as its text model.
        notes: what is special.
        compared: what its results are compared with.
        texts: of a model with a text model as one of its parts, the architecture whose family reads it, by
            `text_config.model_type`; OWN: this one. The first is that of files that name none.
    """

    module: str
    models: str
    cache: str
    notes: str = ""
    compared: str = TRANSFORMERS
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _row(module: str, models: str, cache: str, notes: str = "", compared: str = TRANSFORMERS) -> Architecture:
    module = f"palladio.model.families.{module}"
    return Architecture(module=module, models=models, cache=cache, notes=notes, compared=compared)


def _with_text(
    texts: Mapping[str, str], models: str, own: Architecture | None = None, compared: str = TRANSFORMERS
) -> Architecture:
    """Return an architecture whose text model is served, and nothing else of it.

    Args:
        own: its own family, if it has one.
    """
    if own is not None:
        return dataclasses.replace(own, models=models, texts=texts)
    return Architecture(module="", models=models, cache="", texts=texts, compared=compared)


DECODERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
        "mixtral": "MixtralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
        "gemma": "GemmaForCausalLM",
        "phi3": "Phi3ForCausalLM",
        "gpt_oss": "GptOssForCausalLM",
        "olmo2": "Olmo2ForCausalLM",
        "smollm3": "SmolLM3ForCausalLM",
    }
)
"""Text models of wrappers that take any, by their model_type: those whose logits are neither scaled nor capped, for the
wrappers of transformers have heads of their own, which do neither."""

_MISTRAL = {"mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM"}
_KIMI = {"deepseek_v3": "DeepseekV3ForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM"}

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "ApertusForCausalLM": _row("apertus", "Apertus 8B, 70B", PAGES, "MLP with a learned activation"),
        "ArceeForCausalLM": _row("arcee", "AFM-4.5B", PAGES),
        "Cohere2ForCausalLM": _row(
            "cohere", "Command R7B, Command A", WINDOWS, "layers with full attention have no rotary embedding"
        ),
        "Cohere2VisionForConditionalGeneration": _with_text(
            {"cohere2": OWN},
            "Command A Vision",
            _row("cohere", "", WINDOWS, "logits are not scaled, as in transformers"),
        ),
        "CohereForCausalLM": _row("cohere", "Command R, Command R+", PAGES),
        "DeepseekV2ForCausalLM": _row("deepseek", "DeepSeek-V2, V2-Lite", LATENTS, "mixture of experts"),
        "DeepseekV3ForCausalLM": _row(
            "deepseek", "DeepSeek-V3, V3.1, R1, Kimi-K2, Kimi-K2-Thinking", LATENTS, f"mixture of experts; {_NO_DRAFTS}"
        ),
        "Ernie4_5ForCausalLM": _row("ernie", "ERNIE 4.5 0.3B", PAGES),
        "Ernie4_5_MoeForCausalLM": _row(
            "ernie", "ERNIE 4.5 21B-A3B, 300B-A47B", PAGES, f"mixture of experts; {_NO_DRAFTS}"
        ),
        "Exaone4ForCausalLM": _row(
            "exaone4", "EXAONE 4.0 1.2B, 32B", WINDOWS, "layers with full attention have no rotary embedding in 32B"
        ),
        "GPT2LMHeadModel": _row(
            "gpt2", "GPT-2, DistilGPT-2", PAGES, "learned positions: no context beyond n_positions"
        ),
        "GPTNeoXForCausalLM": _row("gpt_neox", "Pythia, GPT-NeoX-20B, Dolly v2, RedPajama-INCITE", PAGES),
        "Gemma2ForCausalLM": _row("gemma2", "Gemma 2", WINDOWS),
        "Gemma3ForCausalLM": _row("gemma3", "Gemma 3 270M and 1B", WINDOWS),
        "Gemma3ForConditionalGeneration": _with_text({"gemma3_text": "Gemma3ForCausalLM"}, "Gemma 3 4B to 27B"),
        "GemmaForCausalLM": _row("gemma", "Gemma 2B, 7B, CodeGemma", PAGES),
        "Glm4ForCausalLM": _row("glm4", "GLM-4-0414", PAGES),
        "Glm4MoeForCausalLM": _row(
            "glm4_moe", "GLM-4.5, GLM-4.5-Air, GLM-4.6, GLM-4.7", PAGES, f"mixture of experts; {_NO_DRAFTS}"
        ),
        "Glm4MoeLiteForCausalLM": _row("glm4_moe_lite", "GLM-4.7-Flash", LATENTS, "mixture of experts"),
        "Glm4vForConditionalGeneration": _with_text(
            {"glm4v_text": OWN, "glm4v": OWN}, "GLM-4.1V-9B, GLM-4.6V-Flash", _row("glm4", "", PAGES)
        ),
        "Glm4vMoeForConditionalGeneration": _with_text(
            {"glm4v_moe_text": OWN, "glm4v_moe": OWN},
            "GLM-4.5V, GLM-4.6V",
            _row("glm4_moe", "", PAGES, "mixture of experts"),
        ),
        "GlmForCausalLM": _row("glm4", "GLM-4-9B (-hf), GLM-Edge", PAGES),
        "GptOssForCausalLM": _row(
            "gpt_oss", "gpt-oss-20b, gpt-oss-120b", WINDOWS, "mixture of experts; [more](#gpt-oss)"
        ),
        "GraniteForCausalLM": _row("granite", "Granite 3 (dense)", PAGES),
        "GraniteMoeForCausalLM": _row(
            "granite", "Granite 3 (1B-A400M, 3B-A800M), PowerMoE", PAGES, "mixture of experts"
        ),
        "HunYuanDenseV1ForCausalLM": _row("hunyuan", "Hunyuan 0.5B to 7B (dense), Hunyuan-MT", PAGES),
        "InternLM2ForCausalLM": _row(
            "internlm",
            "InternLM 2, 2.5",
            PAGES,
            "no context beyond `max_position_embeddings`",
            compared="Llama, in other tensors",
        ),
        "InternLM3ForCausalLM": _row("internlm", "InternLM 3", PAGES, "no context beyond `max_position_embeddings`"),
        "InternVLForConditionalGeneration": _with_text(
            {"qwen2": "Qwen2ForCausalLM", **DECODERS}, "InternVL 3, 3.5 (-HF)"
        ),
        "KimiK25ForConditionalGeneration": _with_text(_KIMI, "Kimi-K2.5, Kimi-K2.6", compared="as the next row"),
        "Kimi_K25ForConditionalGeneration": _with_text(_KIMI, "Kimi-K2.5, as transformers writes it"),
        "LlamaForCausalLM": _row("llama", "Llama 1 to 3.3, DeepSeek-R1 distills, Falcon 3, SmolLM2", PAGES),
        "LlavaForConditionalGeneration": _with_text(DECODERS, "LLaVA 1.5, Pixtral-12B (as transformers has it)"),
        "LlavaNextForConditionalGeneration": _with_text(DECODERS, "LLaVA-NeXT 1.6"),
        "LlavaOnevisionForConditionalGeneration": _with_text(
            {"qwen2": "Qwen2ForCausalLM", **DECODERS}, "LLaVA-OneVision"
        ),
        "MiMoForCausalLM": _row("qwen", "MiMo-7B", WINDOWS, _NO_DRAFTS, compared="Qwen 2, with more tensors"),
        "MiniMaxM2ForCausalLM": _row("minimax", "MiniMax-M2, MiniMax-M2.1, MiniMax-M2.5", PAGES, "mixture of experts"),
        "Ministral3ForCausalLM": _row("ministral", "Ministral 3 (text models by themselves)", WINDOWS),
        "MinistralForCausalLM": _row("ministral", "Ministral 8B", WINDOWS),
        "Mistral3ForConditionalGeneration": _with_text(
            _MISTRAL | {"mistral4": "Mistral4ForCausalLM"}, "Mistral Small 3.1, 3.2 and 4, Ministral 3"
        ),
        "Mistral4ForCausalLM": _row(
            "mistral4", "Mistral Small 4 (text models by themselves)", LATENTS, "mixture of experts"
        ),
        "MistralForCausalLM": _row("mistral", "Mistral 7B", WINDOWS),
        "MixtralForCausalLM": _row("mistral", "Mixtral 8x7B, 8x22B", WINDOWS, "mixture of experts"),
        "NemotronForCausalLM": _row("nemotron", "Nemotron 3 and 4, Minitron", PAGES),
        "Olmo2ForCausalLM": _row("olmo", "OLMo 2", PAGES),
        "Olmo3ForCausalLM": _row("olmo", "OLMo 3", WINDOWS),
        "OlmoeForCausalLM": _row("olmoe", "OLMoE-1B-7B", PAGES, "mixture of experts"),
        "Phi3ForCausalLM": _row("phi3", "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini", WINDOWS, "LongRoPE, see below"),
        "PhiForCausalLM": _row("phi", "Phi-1, Phi-1.5, Phi-2", PAGES),
        "Qwen2ForCausalLM": _row("qwen", "Qwen2, Qwen2.5, DeepSeek-R1 distills", WINDOWS),
        "Qwen2MoeForCausalLM": _row("qwen_moe", "Qwen1.5-MoE, Qwen2-57B-A14B", PAGES, "mixture of experts"),
        "Qwen2VLForConditionalGeneration": _with_text(
            {"qwen2_vl_text": OWN, "qwen2_vl": OWN, "qwen2": OWN}, "Qwen2-VL", _row("qwen", "", WINDOWS)
        ),
        "Qwen2_5_VLForConditionalGeneration": _with_text(
            {"qwen2_5_vl_text": OWN, "qwen2_5_vl": OWN, "qwen2": OWN}, "Qwen2.5-VL", _row("qwen", "", WINDOWS)
        ),
        "Qwen3ForCausalLM": _row("qwen", "Qwen3 (dense)", WINDOWS),
        "Qwen3MoeForCausalLM": _row("qwen_moe", "Qwen3-30B-A3B, Qwen3-235B-A22B", PAGES, "mixture of experts"),
        "Qwen3NextForCausalLM": _row("qwen3_next", "Qwen3-Next-80B-A3B", STATES, f"mixture of experts; {_NO_DRAFTS}"),
        "Qwen3OmniMoeForConditionalGeneration": _with_text(
            {"qwen3_omni_moe_text": OWN}, "Qwen3-Omni (its thinker)", _row("qwen_moe", "", PAGES, "mixture of experts")
        ),
        "Qwen3VLForConditionalGeneration": _with_text(
            {"qwen3_vl_text": OWN, "qwen3_vl": OWN, "qwen3": OWN}, "Qwen3-VL (dense)", _row("qwen", "", WINDOWS)
        ),
        "Qwen3VLMoeForConditionalGeneration": _with_text(
            {"qwen3_vl_moe_text": OWN, "qwen3_vl_moe": OWN},
            "Qwen3-VL-30B-A3B, Qwen3-VL-235B-A22B",
            _row("qwen_moe", "", PAGES, "mixture of experts"),
        ),
        "Qwen3_5ForCausalLM": _row("qwen3_5", "Qwen3.5, Qwen3.6 (dense, text models by themselves)", STATES),
        "Qwen3_5ForConditionalGeneration": _with_text(
            {"qwen3_5_text": "Qwen3_5ForCausalLM"}, "Qwen3.5, Qwen3.6 (dense)"
        ),
        "Qwen3_5MoeForCausalLM": _row(
            "qwen3_5", "Qwen3.5, Qwen3.6 (mixtures, text models by themselves)", STATES, "mixture of experts"
        ),
        "Qwen3_5MoeForConditionalGeneration": _with_text(
            {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"}, "Qwen3.5, Qwen3.6 (mixtures)"
        ),
        "SeedOssForCausalLM": _row("seed_oss", "Seed-OSS-36B", PAGES),
        "SmolLM3ForCausalLM": _row("smollm3", "SmolLM3", WINDOWS, "every fourth layer has no rotary embedding"),
        "StableLmForCausalLM": _row(
            "stablelm", "StableLM 3B, StableLM 2 1.6B, Stable Code 3B", PAGES, "12B (`qk_layernorm`) is refused"
        ),
        "Starcoder2ForCausalLM": _row("starcoder2", "StarCoder2", WINDOWS),
    }
)
