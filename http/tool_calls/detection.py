"""Which format a model writes its tool calls in: by the name that was asked for, else by its chat template and type."""

import logging
import re
from collections.abc import Mapping

from palladio.http.tool_calls.formats import FORMATS
from palladio.http.tool_calls.json_formats import MISTRAL_COMPACT, PLAIN_JSON
from palladio.http.tool_calls.registry import find_format
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.http.tool_calls.value_formats import hunyuan
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# strings that a template for tools has to write → format; the first row of which all are there counts
_IN_TEMPLATE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<seed:tool_call>",), "seed_oss"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("<ifm|tool_call>",), "k2_horizon"),
    (("<iquest_tool_call>",), "iquest_q1"),
    (("<longcat_tool_call>",), "longcat"),
    (("<dots_function_call>",), "dots"),
    (("<atem:function_calls>",), "muse"),
    (("]<]minimax[>[",), "minimax-m3"),
    (("<|open|>", "<|close|>", "<|sep|>"), "kimi_k3"),
    (("<start_function_call>",), "functiongemma"),
    (("<|tool_call>", '<|"|>'), "gemma4"),
    (("<tool_calls", "<arg_key", "<tool_sep"), "hy_v3"),
    (("<tool_calls", "<arg_key"), "hy_v4"),
    (("</arg_key><arg_value>",), "glm47"),
    (("<arg_key>", "<arg_value>"), "glm45"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseekv3"),
    (("<｜tool▁calls▁begin｜>",), "deepseekv31"),
    (("｜DSML｜ calls",), "deepseekv41"),
    (("｜DSML｜tool_calls",), "deepseekv4"),
    (("｜DSML｜",), "deepseekv32"),
    (("｜GCML｜",), "gigachat35"),
    (("<|role_sep|>", "function call"), "gigachat3"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<|channel|>", "commentary"), "gpt-oss"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<minimax:tool_call>",), "minimax-m2"),
    (("<|action_start|>",), "internlm"),
    (("<steptml:invoke",), "step3"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|START_ACTION|>",), "cohere_command4"),
    (("<|tools_prefix|>",), "apertus2509"),
    (("<|content_invoke_tool_json|>",), "inkling"),
    (("plamo:begin_tool_request",), "plamo3"),
    (("<function_calls>",), "olmo3"),
    (("<function_call>",), "granite-20b-fc"),
    (("<function name=", "<param name="), "minicpm5"),
    (("xLAM", "arguments"), "xlam"),
    (("<tool_calls>",), "hunyuan"),
    (("<tool_call>", "<response>"), "ernie45"),
    (("<tool_call>",), "qwen25"),
    (("<|tool_call|>",), "granite"),
    (("<|python_start|>",), "pythonic"),
    (("<|python_tag|>",), "llama3"),
    (('"parameters":', '{"name":'), "llama3"),
)

_BY_MODEL_TYPE: Mapping[str, str] = {
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "qwen25"),
    "gpt_oss": "gpt-oss",
    "deepseek_v3": "deepseekv3",
    **dict.fromkeys(("internlm2", "internlm3"), "internlm"),
    **dict.fromkeys(("glm4_moe_lite",), "glm47"),
    "kimi_k2": "kimi_k2",
    "glm4_moe": "glm45",
    "minimax_m2": "minimax-m2",
    "llama4": "pythonic",
    "lfm2": "lfm2",
    "granite": "granite",
    "smollm3": "qwen25",
    "cohere2": "cohere_command4",
    "seed_oss": "seed_oss",
    "olmo3": "olmo3",
    "deepseek_v4": "deepseekv4",
    **dict.fromkeys(("gemma4", "gemma4_text", "gemma4_unified"), "gemma4"),
}

_HUNYUAN = ("hunyuan", "hy_v3", "hy_v4")  # which of the three, the tokenizer's marks tell
_find_suffix = re.compile(r"<arg_key(:[^>]+)?>").fullmatch

_BY_TOKEN: Mapping[str, str] = {"[TOOL_CALLS]": "mistral", "<|python_tag|>": "llama3"}


def choose_format(name: str, *, template: str | None, model_type: str, tokenizer: Tokenizer) -> ToolFormat:
    """
    Args:
        name: --tool-call-parser.
        template: the chat template that the server uses.
        model_type: of the checkpoint's config.

    Raises:
        ConfigError: there is no format of this name.
    """
    found = find_format(name) if name != "auto" else _detect(template or "", model_type, tokenizer)
    if name == "auto":
        what = "none recognised" if found is PLAIN_JSON else found.name
        logger.info("Detected tool call format: %s", what)
    if found.name in _HUNYUAN:
        return _hunyuan(found, tokenizer)
    is_compact = found.name == MISTRAL_COMPACT.name and tokenizer.added_id("[ARGS]") is not None
    return MISTRAL_COMPACT if is_compact else found


def _hunyuan(found: ToolFormat, tokenizer: Tokenizer) -> ToolFormat:
    """The format with the marks that the tokenizer has; the one that was found, if it has none of them."""
    suffixes = (mark[1] or "" for mark in map(_find_suffix, tokenizer.added_texts) if mark is not None)
    suffix = next(suffixes, None)
    if suffix is None or tokenizer.added_id(f"<tool_calls{suffix}>") is None:
        return found
    has_separator = tokenizer.added_id(f"<tool_sep{suffix}>") is not None
    return hunyuan("hy_v3" if has_separator else "hy_v4", suffix, has_separator=has_separator)


def _detect(template: str, model_type: str, tokenizer: Tokenizer) -> ToolFormat:
    plain = template.replace('\\"', '"')
    by_template = next((name for strings, name in _IN_TEMPLATE if all(s in plain for s in strings)), None)
    by_token = (name for token, name in _BY_TOKEN.items() if tokenizer.added_id(token) is not None)
    name = by_template or _BY_MODEL_TYPE.get(model_type) or next(by_token, None)
    return PLAIN_JSON if name is None else FORMATS[name]
