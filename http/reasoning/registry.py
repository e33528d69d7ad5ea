"""The reasoning parsers by name: --reasoning-parser."""

import types
from collections.abc import Mapping

from palladio.http.reasoning.appended import AppendingFamily
from palladio.http.reasoning.family import EffortFamily, MessageFamily, ReasoningFamily, TagFamily
from palladio.http.reasoning.harmony import HarmonyFamily
from palladio.http.reasoning.muse import MuseFamily
from palladio.runtime.interface.errors import ConfigError

_HERMES_CALL = ("<tool_call>",)
_KIMI_CALLS = ("<|tool_calls_section_begin|>",)

FAMILIES: tuple[ReasoningFamily, ...] = (
    TagFamily("deepseek-r1", begins=True),
    TagFamily("deepseek-v3", toggle="thinking"),
    TagFamily("deepseek-v4", toggle="thinking", closers=("<｜DSML｜tool_calls>", "<｜DSML｜ calls>")),
    TagFamily("qwen3", toggle="enable_thinking", closers=_HERMES_CALL),
    TagFamily("qwen3-thinking", begins=True, closers=_HERMES_CALL),
    TagFamily("kimi", "◁think▷", "◁/think▷"),
    TagFamily("kimi_k2", toggle="thinking", closers=_KIMI_CALLS),
    HarmonyFamily("gpt-oss", efforts=("low", "medium", "high")),
    TagFamily("glm45", toggle="enable_thinking", closers=_HERMES_CALL),
    TagFamily("mistral", "[THINK]", "[/THINK]"),
    TagFamily("minimax", begins=True, closers=("<minimax:tool_call>",)),
    AppendingFamily("minimax-append-think", begins=True, closers=("<minimax:tool_call>",)),
    TagFamily("step3", begins=True),
    TagFamily("mimo", toggle="enable_thinking", closers=_HERMES_CALL),
    TagFamily("interns1", toggle="enable_thinking"),
    TagFamily("nemotron_3", toggle="enable_thinking", closers=_HERMES_CALL),
    TagFamily("granite", "Here is my thought process:", "Here is my response:", toggle="thinking"),
    TagFamily("granite_thinking_parser", toggle="thinking"),
    TagFamily("gemma4", "<|channel>thought\n", "<channel|>", toggle="enable_thinking", closers=("<|tool_call>",)),
    TagFamily(
        "cohere_command4",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    TagFamily("seed_oss", "<seed:think>", "</seed:think>", closers=("<seed:tool_call>",)),
    TagFamily("hunyuan", toggle="enable_thinking", closers=("<tool_calls>",), answer=("<answer>", "</answer>")),
    TagFamily("ernie45", begins=True, closers=_HERMES_CALL, answer=("<response>", "</response>")),
    TagFamily("gigachat35", toggle="reasoning", closers=("<｜GCML｜tool_calls>",)),
    TagFamily(
        "apertus2509",
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        toggle="enable_thinking",
        closers=("<|tools_prefix|>",),
        anywhere=True,
    ),
    TagFamily(
        "kimi_k3",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        toggle="thinking",
        closers=("<|open|>tools<|sep|>",),
        answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        anywhere=True,
        pieces=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    TagFamily(
        "minimax-m3",
        "<mm:think>",
        "</mm:think>",
        closers=("]<]minimax[>[<tool_call>",),
        pieces=("]<]minimax[>[",),
    ),
    EffortFamily(
        "k2_horizon",
        "<ifm|think>",
        "</ifm|think>",
        closers=("<ifm|tool_calls>", "<ifm|tool_call>"),
        others=(("<ifm|think_fast>", "</ifm|think_fast>"), ("<ifm|think_faster>", "</ifm|think_faster>")),
    ),
    TagFamily(
        "plamo3",
        "<|plamo:begin_think:plamo|>",
        "<|plamo:end_think:plamo|>",
        closers=("<|plamo:begin_tool_requests:plamo|>",),
        anywhere=True,
        pieces=("<|plamo:begin_", "<|plamo:end_", ":plamo|>"),
    ),
    MessageFamily(
        "inkling",
        "<|message_model|><|content_thinking|>",
        "<|end_message|>",
        answer=("<|message_model|><|content_text|>", "<|end_message|>"),
        pieces=("<|message_model|>", "<|content_thinking|>", "<|content_text|>"),
    ),
    MuseFamily("muse"),
)

TOGGLES = frozenset(family.toggle for family in FAMILIES if family.toggle is not None)

# Names that users of SGLang and vLLM know, for the same thing.
ALIASES: Mapping[str, str] = types.MappingProxyType(
    {
        "deepseek_r1": "deepseek-r1",
        "deepseek_v3": "deepseek-v3",
        "deepseek_v4": "deepseek-v4",
        "deepseek-v41": "deepseek-v4",
        "deepseek_v41": "deepseek-v4",
        "holo2": "deepseek-v3",
        "qwen3_thinking": "qwen3-thinking",
        "kimi-k2": "kimi_k2",
        "gpt_oss": "gpt-oss",
        "gptoss": "gpt-oss",
        "openai_gptoss": "gpt-oss",
        "glm4_moe": "glm45",
        "glm47": "glm45",
        "ling3": "glm45",
        "poolside_v1": "glm45",
        "dots": "qwen3",
        "iquest_q1": "qwen3",
        "minicpmv": "qwen3",
        "nanbeige": "qwen3",
        "hunyuan_a13b": "hunyuan",
        "hy_v3": "hunyuan",
        "hy_v4": "hunyuan",
        "cohere_command3": "cohere_command4",
        "minimax_m2": "minimax",
        "minimax_m2_append_think": "minimax-append-think",
        "minimax_m3": "minimax-m3",
        "muse_glimmer": "muse",
        "olmo3": "qwen3-thinking",
        "step3p5": "step3",
        "nemotron_v3": "nemotron_3",
        "nano_v3": "nemotron_3",
    }
)

REFUSED: Mapping[str, str] = types.MappingProxyType(
    {
        "beam": "no package has a chat template of Beam; a tokenizer with a response_template of its own is read by "
        "response_template"
    }
)

BY_TEMPLATE = ("response_template", "hf")  # the checkpoint says how it is read; the second one is vLLM's name for it
OFF = "none"
AUTO = "auto"

_BY_NAME: Mapping[str, ReasoningFamily] = types.MappingProxyType({family.name: family for family in FAMILIES})
NAMES = tuple(_BY_NAME)


def find_family(name: str) -> ReasoningFamily | None:
    """The family of this name, or of what it is another name for; None if there is none."""
    return _BY_NAME.get(ALIASES.get(name, name))


def check_name(name: str) -> None:
    """
    Raises:
        ConfigError: --reasoning-parser cannot be this.
    """
    if name in REFUSED:
        raise ConfigError(f"--reasoning-parser {name}: {REFUSED[name]}")
    if name not in (AUTO, OFF, *BY_TEMPLATE) and find_family(name) is None:
        available = ", ".join((AUTO, OFF, *NAMES, BY_TEMPLATE[0]))
        raise ConfigError(f"--reasoning-parser {name}: no such parser; available: {available}")
