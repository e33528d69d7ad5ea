"""Which format a model writes its tool calls in: by the name that was asked for, else by its chat template and type."""

import logging
from collections.abc import Mapping

from palladio.http.tool_calls.formats import FORMATS, MISTRAL_COMPACT, PLAIN_JSON, ToolFormat
from palladio.http.tool_calls.registry import find_format
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# strings that a template for tools has to write → format; the first row of which all are there counts
_IN_TEMPLATE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<function=", "<parameter="), "qwen3_coder"),
    (("</arg_key><arg_value>",), "glm47"),
    (("<arg_key>", "<arg_value>"), "glm45"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseekv3"),
    (("<｜tool▁calls▁begin｜>",), "deepseekv31"),
    (("｜DSML｜",), "deepseekv32"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<|channel|>", "commentary"), "gpt-oss"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<minimax:tool_call>",), "minimax-m2"),
    (("<|action_start|>",), "internlm"),
    (("<steptml:invoke",), "step3"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|START_ACTION|>",), "cohere_command4"),
    (("<tool_calls>",), "hunyuan"),
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
}

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
    is_compact = found.name == MISTRAL_COMPACT.name and tokenizer.added_id("[ARGS]") is not None
    return MISTRAL_COMPACT if is_compact else found


def _detect(template: str, model_type: str, tokenizer: Tokenizer) -> ToolFormat:
    plain = template.replace('\\"', '"')
    by_template = next((name for strings, name in _IN_TEMPLATE if all(s in plain for s in strings)), None)
    by_token = (name for token, name in _BY_TOKEN.items() if tokenizer.added_id(token) is not None)
    name = by_template or _BY_MODEL_TYPE.get(model_type) or next(by_token, None)
    return PLAIN_JSON if name is None else FORMATS[name]
