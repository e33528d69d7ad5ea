"""Chat templates of families' assistant turns: reasoning, content and tool calls in the forms that their own templates
document. Only the parts of an answer; the rest of a prompt is short."""

import dataclasses
from typing import Any

from palladio.http.tool_calls.reading.base import Function

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}},
}
FUNCTIONS = {"get_weather": Function("get_weather", CITY), "now": Function("now", {"type": "object"})}
ARGUMENTS = {"city": 'Zürich "Süd"\n<b> [1]', "days": 3, "where": {"ids": [1, None], "是": "a}"}}


@dataclasses.dataclass(frozen=True)
class Family:
    """A family's template.

    Attributes:
        model_type: model_type of config.json.
        template: template of whole conversations.
        tools, reasoning: names of the parsers that are chosen automatically; None: nothing is separated.
        kwargs: variables of the template.
        num_calls: calls that an answer may have.
        has_reasoning, has_content: whether answers with calls have them.
        ends: text that ends a turn, which no server shows.
    """

    model_type: str
    template: str
    tools: str
    reasoning: str | None
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_calls: int = 2
    has_reasoning: bool = True
    has_content: bool = True
    ends: str = ""


def turns(user: str, assistant: str, prompt: str) -> str:
    """Make a template.

    Args:
        assistant: writes the message `m`.
        prompt: begins the assistant's turn.
    """
    return (
        "{%- for m in messages -%}{%- if m.role == 'user' -%}"
        + user
        + "{%- else -%}"
        + assistant
        + "{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}"
        + prompt
        + "{%- endif -%}"
    )


def each_call(text: str, before: str = "", after: str = "") -> str:
    """Make a loop over calls.

    Args:
        text: writes the function `f` of a call.
    """
    loop = "{%- for call in m.tool_calls -%}{%- set f = call.function -%}" + text + "{%- endfor -%}"
    return "{%- if m.tool_calls -%}" + before + loop + after + "{%- endif -%}"


def each_argument(text: str) -> str:
    """Make a loop over arguments.

    Args:
        text: writes the argument `k` with the value `v`, strings as they are.
    """
    value = "{%- set v = value if value is string else value | tojson -%}"
    return "{%- for k, value in f.arguments.items() -%}" + value + text + "{%- endfor -%}"


JSON = "{{- '{\"name\": ' + (f.name | tojson) + ', \"KEY\": ' + (f.arguments | tojson) + '}' -}}"
ARGUMENT_TEXT = "{{- f.arguments | tojson -}}"
CHATML = "{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' -}}"
CHATML_END = "{{- '<|im_end|>\n' -}}"
ASSISTANT = "{{- '<|im_start|>assistant\n' -}}"
HERMES = each_call(
    "{{- '' if loop.first and not m.content else '\n' -}}{{- '<tool_call>\n' -}}"
    + JSON.replace("KEY", "arguments")
    + "{{- '\n</tool_call>' -}}"
)
CODER = each_call(
    "{{- '\n<tool_call>\n<function=' + f.name + '>\n' -}}"
    + each_argument("{{- '<parameter=' + k + '>\n' + v + '\n</parameter>\n' -}}")
    + "{{- '</function>\n</tool_call>' -}}"
)
THINK = "{%- if m.reasoning_content -%}{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}{%- endif -%}"
DEEPSEEK_END = "<｜end▁of▁sentence｜>"
DEEPSEEK_CALLS = "{{- '<｜tool▁calls▁begin｜>' -}}", "{{- '<｜tool▁calls▁end｜>' -}}"

FAMILIES = {
    "Qwen3": Family(
        "qwen3_moe",
        turns(CHATML, ASSISTANT + THINK + "{{- m.content -}}" + HERMES + CHATML_END, ASSISTANT),
        "qwen25",
        "qwen3",
        ends="<|im_end|>\n",
    ),
    "Qwen3-Next-Instruct": Family(
        "qwen3_next",
        turns(CHATML, ASSISTANT + "{{- m.content -}}" + HERMES + CHATML_END, ASSISTANT),
        "qwen25",
        None,
        has_reasoning=False,
        ends="<|im_end|>\n",
    ),
    "Qwen3-Coder": Family(
        "qwen3_moe",
        turns(CHATML, ASSISTANT + "{{- m.content -}}" + CODER + CHATML_END, ASSISTANT),
        "qwen3_coder",
        None,
        has_reasoning=False,
        ends="<|im_end|>\n",
    ),
    "Qwen3.5": Family(
        "qwen3_5_moe",
        turns(
            CHATML,
            ASSISTANT
            + "{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' + m.content -}}"
            + CODER
            + CHATML_END,
            ASSISTANT + "{{- '<think>\n' if enable_thinking is not false else '<think>\n\n</think>\n\n' -}}",
        ),
        "qwen3_coder",
        "qwen3",
        ends="<|im_end|>\n",
    ),
    "Nemotron 3": Family(
        "nemotron_h",
        turns(
            CHATML,
            ASSISTANT + "{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n' + m.content -}}" + CODER,
            ASSISTANT + "{{- '<think></think>' if enable_thinking is false else '<think>\n' -}}",
        ),
        "qwen3_coder",
        "nemotron_3",
    ),
    "DeepSeek-R1-0528": Family(
        "deepseek_v3",
        turns(
            "{{- '<｜User｜>' + m.content -}}",
            "{{- '<｜Assistant｜>' -}}"
            "{{- '<think>\n' + m.reasoning_content + '\n</think>' if m.reasoning_content else '' -}}"
            "{{- m.content -}}"
            + each_call(
                "{{- '' if loop.first else '\n' -}}{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + f.name -}}"
                "{{- '\n```json\n' -}}" + ARGUMENT_TEXT + "{{- '\n```<｜tool▁call▁end｜>' -}}",
                *DEEPSEEK_CALLS,
            )
            + "{{- '"
            + DEEPSEEK_END
            + "' -}}",
            "{{- '<｜Assistant｜><think>\n' -}}",
        ),
        "deepseekv3",
        "deepseek-r1",
        ends=DEEPSEEK_END,
    ),
    "DeepSeek-V3.1": Family(
        "deepseek_v3",
        turns(
            "{{- '<｜User｜>' + m.content -}}",
            "{{- '<｜Assistant｜>' + ('<think>' + m.reasoning_content if m.reasoning_content else '') + '</think>' -}}"
            "{{- m.content -}}"
            + each_call(
                "{{- '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' -}}"
                + ARGUMENT_TEXT
                + "{{- '<｜tool▁call▁end｜>' -}}",
                *DEEPSEEK_CALLS,
            )
            + "{{- '"
            + DEEPSEEK_END
            + "' -}}",
            "{{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') -}}",
        ),
        "deepseekv31",
        "deepseek-v3",
        {"thinking": True},
        ends=DEEPSEEK_END,
    ),
    "Kimi-K2-Thinking": Family(
        "kimi_k2",
        turns(
            "{{- '<|im_user|>user<|im_middle|>' + m.content + '<|im_end|>' -}}",
            "{{- '<|im_assistant|>assistant<|im_middle|><think>' + (m.reasoning_content or '') + '</think>' -}}"
            "{{- m.content -}}"
            + each_call(
                "{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' -}}"
                + ARGUMENT_TEXT
                + "{{- '<|tool_call_end|>' -}}",
                "{{- '<|tool_calls_section_begin|>' -}}",
                "{{- '<|tool_calls_section_end|>' -}}",
            )
            + "{{- '<|im_end|>' -}}",
            "{{- '<|im_assistant|>assistant<|im_middle|>' -}}",
        ),
        "kimi_k2",
        "kimi_k2",
        ends="<|im_end|>",
    ),
    "GLM-4.5": Family(
        "glm4_moe",
        turns(
            "{{- '<|user|>\n' + m.content -}}",
            "{{- '<|assistant|>\n<think>' + (m.reasoning_content or '') + '</think>' -}}"
            "{{- '\n' + m.content if m.content else '' -}}"
            + each_call(
                "{{- '\n<tool_call>' + f.name + '\n' -}}"
                + each_argument("{{- '<arg_key>' + k + '</arg_key>\n<arg_value>' + v + '</arg_value>\n' -}}")
                + "{{- '</tool_call>' -}}"
            ),
            "{{- '<|assistant|>' + ('\n<think></think>' if enable_thinking is false else '') -}}",
        ),
        "glm45",
        "glm45",
    ),
    "GLM-4.7": Family(
        "glm4_moe",
        turns(
            "{{- '<|user|>' + m.content -}}",
            "{{- '<|assistant|>' + ('<think>' + m.reasoning_content if m.reasoning_content else '') + '</think>' -}}"
            "{{- m.content -}}"
            + each_call(
                "{{- '<tool_call>' + f.name -}}"
                + each_argument("{{- '<arg_key>' + k + '</arg_key><arg_value>' + v + '</arg_value>' -}}")
                + "{{- '</tool_call>' -}}"
            ),
            "{{- '<|assistant|>' + ('</think>' if enable_thinking is false else '<think>') -}}",
        ),
        "glm47",
        "glm45",
    ),
    "MiniMax-M2": Family(
        "minimax_m2",
        turns(
            "{{- ']~b]user\n' + m.content + '[e~[\n' -}}",
            "{{- ']~b]ai\n' + ('<think>\n' + m.reasoning_content + '\n</think>\n\n' if m.reasoning_content else '') -}}"
            "{{- m.content -}}"
            + each_call(
                "{{- '<invoke name=\"' + f.name + '\">\n' -}}"
                + each_argument("{{- '<parameter name=\"' + k + '\">' + v + '</parameter>\n' -}}")
                + "{{- '</invoke>\n' -}}",
                "{{- '\n<minimax:tool_call>\n' -}}",
                "{{- '</minimax:tool_call>' -}}",
            )
            + "{{- '[e~[\n' -}}",
            "{{- ']~b]ai\n<think>\n' -}}",
        ),
        "minimax-m2",
        "minimax",
        ends="[e~[\n",
    ),
    "InternLM 2.5": Family(
        "internlm2",
        turns(
            CHATML,
            ASSISTANT
            + "{{- m.content -}}"
            + each_call(
                "{{- '<|action_start|><|plugin|>\n' -}}"
                + JSON.replace("KEY", "parameters")
                + "{{- '<|action_end|>' -}}"
            )
            + CHATML_END,
            ASSISTANT,
        ),
        "internlm",
        None,
        num_calls=1,
        has_reasoning=False,
        ends="<|im_end|>\n",
    ),
    "Mistral 7B v0.3": Family(
        "mistral",
        turns(
            "{{- '[INST] ' + m.content + '[/INST]' -}}",
            "{{- ' ' + m.content if m.content else '' -}}"
            + each_call(
                "{{- '{\"name\": ' + (f.name | tojson) + ', \"arguments\": ' + (f.arguments | tojson) -}}"
                "{{- ', \"id\": ' + (call.id | tojson) + '}' + ('' if loop.last else ', ') -}}",
                "{{- '[TOOL_CALLS] [' -}}",
                "{{- ']' -}}",
            )
            + "{{- '</s>' -}}",
            "",
        ),
        "mistral",
        None,
        has_reasoning=False,
        has_content=False,
        ends="</s>",
    ),
    "Granite 3.3": Family(
        "granitemoe",
        turns(
            "{{- '<|start_of_role|>user<|end_of_role|>' + m.content + '<|end_of_text|>\n' -}}",
            "{{- '<|start_of_role|>assistant<|end_of_role|>' + m.content -}}"
            + each_call(
                JSON.replace("KEY", "arguments") + "{{- '' if loop.last else ', ' -}}",
                "{{- '<|tool_call|>[' -}}",
                "{{- ']' -}}",
            )
            + "{{- '<|end_of_text|>\n' -}}",
            "{{- '<|start_of_role|>assistant<|end_of_role|>' -}}",
        ),
        "granite",
        None,
        has_reasoning=False,
        ends="<|end_of_text|>\n",
    ),
    "Llama 3.1": Family(
        "llama",
        turns(
            "{{- '<|start_header_id|>user<|end_header_id|>\n\n' + m.content + '<|eot_id|>' -}}",
            "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' + m.content -}}"
            + each_call(
                "{{- '{\"name\": ' -}}{{- f.name | tojson -}}{{- ', \"parameters\": ' -}}"
                + ARGUMENT_TEXT
                + "{{- '}' -}}"
            )
            + "{{- '<|eot_id|>' -}}",
            "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}",
        ),
        "llama3",
        None,
        num_calls=1,
        has_reasoning=False,
        has_content=False,
        ends="<|eot_id|>",
    ),
}
