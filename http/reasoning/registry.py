"""The reasoning parsers by name: --reasoning-parser."""

import types
from collections.abc import Mapping

from palladio.http.reasoning.appended import AppendingFamily
from palladio.http.reasoning.family import ReasoningFamily, TagFamily
from palladio.http.reasoning.harmony import HarmonyFamily
from palladio.runtime.interface.errors import ConfigError

_HERMES_CALL = ("<tool_call>",)
_KIMI_CALLS = ("<|tool_calls_section_begin|>",)

FAMILIES: tuple[ReasoningFamily, ...] = (
    TagFamily("deepseek-r1", begins=True),
    TagFamily("deepseek-v3", toggle="thinking"),
    TagFamily("deepseek-v4", toggle="thinking"),
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
    TagFamily("gemma4", "<|channel>thought\n", "<channel|>", toggle="enable_thinking"),
    TagFamily(
        "cohere_command4",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    TagFamily("seed_oss", "<seed:think>", "</seed:think>"),
)

TOGGLES = frozenset(family.toggle for family in FAMILIES if family.toggle is not None)

# Names that users of SGLang and vLLM know, for the same thing.
ALIASES: Mapping[str, str] = types.MappingProxyType(
    {
        "deepseek_r1": "deepseek-r1",
        "deepseek_v3": "deepseek-v3",
        "deepseek_v4": "deepseek-v4",
        "deepseek-v41": "deepseek-v4",
        "qwen3_thinking": "qwen3-thinking",
        "kimi-k2": "kimi_k2",
        "gpt_oss": "gpt-oss",
        "gptoss": "gpt-oss",
        "openai_gptoss": "gpt-oss",
        "glm4_moe": "glm45",
        "minimax_m2": "minimax",
        "minimax_m2_append_think": "minimax-append-think",
        "olmo3": "qwen3-thinking",
        "step3p5": "step3",
        "nemotron_v3": "nemotron_3",
        "nano_v3": "nemotron_3",
    }
)

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
    if name not in (AUTO, OFF) and find_family(name) is None:
        raise ConfigError(f"--reasoning-parser {name}: no such parser; available: {', '.join((AUTO, OFF, *NAMES))}")
