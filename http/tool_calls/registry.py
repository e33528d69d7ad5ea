"""The names that --tool-call-parser takes, with those that other servers use."""

import difflib
from collections.abc import Mapping

from palladio.http.reasoning.registry import BY_TEMPLATE, REFUSED
from palladio.http.tool_calls.formats import FORMATS
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.runtime.interface.errors import ConfigError

_ALIASES_OF: Mapping[str, tuple[str, ...]] = {
    "qwen25": ("qwen", "qwen2", "qwen3", "qwen3_json", "trinity"),
    "llama3": ("llama3_json", "llama4_json"),
    "pythonic": ("llama4_pythonic", "llama4"),
    "deepseekv3": ("deepseek_v3",),
    "deepseekv31": ("deepseek_v31",),
    "deepseekv32": ("deepseek_v32",),
    "deepseekv4": ("deepseek_v4",),
    "deepseekv41": ("deepseek_v41",),
    "gpt-oss": ("gpt_oss", "openai", "openai_gptoss"),
    "glm45": ("glm", "glm4_moe", "poolside_v1"),
    "glm47": ("glm47_moe", "ling3"),
    "qwen3_coder": ("qwen3_xml", "mimo", "step3p5", "nanbeige"),
    "minimax-m2": ("minimax_m2", "minimax"),
    "minimax-m3": ("minimax_m3",),
    "muse": ("muse_glimmer",),
    "hunyuan": ("hunyuan_a13b",),
    "kimi_k2": ("kimi-k2",),
    "internlm": ("internlm2", "interns1"),
    "cohere_command4": ("cohere_command3",),
    "apertus2509": ("apertus",),
    "json": ("none",),
}
ALIASES: Mapping[str, str] = {alias: name for name, aliases in _ALIASES_OF.items() for alias in aliases}


def find_format(name: str, asked_by: str = "--tool-call-parser") -> ToolFormat:
    """
    Args:
        asked_by: the flag or field, for the error.

    Raises:
        ConfigError: there is none of this name.
    """
    found = FORMATS.get(ALIASES.get(name, name))
    if found is None and name in REFUSED:
        raise ConfigError(f"{asked_by} {name}: {REFUSED[name]}")
    if found is None:
        names = sorted([*FORMATS, *ALIASES])
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(
            f"{asked_by} {name}: no such parser{hint}; available: auto, {BY_TEMPLATE[0]}, {', '.join(names)}"
        )
    return found


def check_format(name: str) -> None:
    """
    Raises:
        ConfigError: neither auto, nor the name of a format, nor that of response templates.
    """
    if name not in ("auto", *BY_TEMPLATE):
        find_format(name)
