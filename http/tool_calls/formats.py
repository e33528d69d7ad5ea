"""The formats that model families write tool calls in, by the names of their parsers."""

from collections.abc import Mapping

from palladio.http.tool_calls.bare_values import BareMarks
from palladio.http.tool_calls.grammars.lark import quoted
from palladio.http.tool_calls.json_families import Tags
from palladio.http.tool_calls.json_formats import (
    PLAIN_JSON,
    apertus,
    deepseek,
    gigachat3,
    gpt_oss,
    inkling,
    internlm,
    kimi_k2,
    llama3,
    mistral,
    plamo3,
    tagged,
    xlam,
)
from palladio.http.tool_calls.pythonic import PythonTags
from palladio.http.tool_calls.tagged_families import KeyTags
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.http.tool_calls.value_formats import (
    bare,
    dsml,
    functions_in_tags,
    hunyuan,
    invoke,
    keyed,
    kimi_k3,
    minicpm5,
    minimax_m3,
    muse,
    olmo3,
    pythonic,
)

_HERMES_TAGS = Tags("<tool_call>", "</tool_call>")
_GLM_TAGS = KeyTags("<tool_call>", "</tool_call>")
_COHERE_ANSWER = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
_IFM_TAGS = KeyTags(
    "<ifm|tool_call>",
    "</ifm|tool_call>",
    *("<ifm|arg_key>", "</ifm|arg_key>", "<ifm|arg_value>", "</ifm|arg_value>"),
    before="<ifm|tool_calls>",
    after="</ifm|tool_calls>",
    type="<ifm|arg_type>",
    type_end="</ifm|arg_type>",
)

FORMATS: Mapping[str, ToolFormat] = {
    found.name: found
    for found in (
        tagged("qwen25", _HERMES_TAGS, gap="\n"),
        tagged("hermes", _HERMES_TAGS, gap="\n"),
        llama3(),
        mistral("mistral", compact=False),
        pythonic("pythonic", PythonTags(), written=False),
        deepseek("deepseekv3", fenced=True),
        deepseek("deepseekv31", fenced=False),
        kimi_k2(),
        internlm(),
        gpt_oss(),
        keyed("glm45", _GLM_TAGS, gap="\n"),
        keyed("glm47", _GLM_TAGS, gap=""),
        functions_in_tags("qwen3_coder", "<tool_call>", "</tool_call>", gap="\n"),
        invoke("minimax-m2", ("<minimax:tool_call>",), "", ("</minimax:tool_call>",), gap="\n"),
        invoke(
            "step3",
            ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "function<｜tool_sep｜>"),
            "steptml:",
            ("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
            gap="",
        ),
        dsml("deepseekv32", "｜DSML｜function_calls", "｜DSML｜"),
        pythonic("lfm2", PythonTags("<|tool_call_start|>", "<|tool_call_end|>"), written=True),
        tagged("hunyuan", Tags("<tool_calls>", "</tool_calls>"), is_list=True),
        tagged("granite", Tags("<|tool_call|>", ""), is_list=True),
        tagged("phi4_mini_json", Tags("functools", ""), is_list=True),
        tagged(
            "cohere_command4",
            Tags("<|START_ACTION|>", "<|END_ACTION|>", answer=_COHERE_ANSWER),
            is_list=True,
            indent="\n    ",
            begin=lambda name: f'{{"tool_call_id": "0", "tool_name": {quoted(name)}, "parameters": ',
        ),
        bare("gemma4", BareMarks("<|tool_call>", "<tool_call|>", '<|"|>')),
        bare("functiongemma", BareMarks("<start_function_call>", "<end_function_call>", "<escape>")),
        dsml("deepseekv4", "｜DSML｜tool_calls", "｜DSML｜"),
        dsml("deepseekv41", "｜DSML｜ calls", "｜DSML｜ "),
        dsml("gigachat35", "｜GCML｜tool_calls", "｜GCML｜"),
        gigachat3(),
        functions_in_tags("seed_oss", "<seed:tool_call>", "</seed:tool_call>", gap=""),
        olmo3(),
        hunyuan("hy_v3", has_separator=True),
        hunyuan("hy_v4", has_separator=False),
        kimi_k3(),
        minimax_m3(),
        minicpm5(),
        invoke("dots", ("<dots_function_call>",), "", ("</dots_function_call>",), gap="\n"),
        muse(),
        keyed("k2_horizon", _IFM_TAGS, gap="\n"),
        keyed("iquest_q1", KeyTags("<iquest_tool_call>", "</iquest_tool_call>"), gap=""),
        keyed("spark25", _GLM_TAGS, gap="\n", inner=""),
        keyed(
            "longcat",
            KeyTags(
                "<longcat_tool_call>",
                "</longcat_tool_call>",
                *("<longcat_arg_key>", "</longcat_arg_key>", "<longcat_arg_value>", "</longcat_arg_value>"),
            ),
            gap="\n",
        ),
        apertus(),
        inkling(),
        plamo3(),
        tagged("ernie45", Tags("<tool_call>", "</tool_call>", answer=("<response>", "</response>")), gap="\n"),
        tagged("granite4", _HERMES_TAGS, gap="\n"),
        tagged("granite-20b-fc", Tags("<function_call>", ""), gap=" ", between=""),
        tagged("jamba", Tags("<tool_calls>", "</tool_calls>"), is_list=True, indent="\n    "),
        xlam(),
        PLAIN_JSON,
    )
}
