"""Formats of the newest models: one call, parallel ones, none, nested values, text around; cut at every character."""

import dataclasses
import json
from typing import Any

import pytest

from palladio.http.tool_calls.formats import FORMATS
from palladio.http.tool_calls.registry import find_format
from tests.http.tool_calls.tool_texts import NS, SAMPLES, Read, read

PARIS = {"city": "Paris"}
NESTED = {"city": "a < b\n  {c}", "where": {"a": [1, None, {"b": True}]}, "hourly": False}
NESTED_JSON = json.dumps(NESTED)
WHERE = '{"a": [1, null, {"b": true}]}'
NO_CALL = "Nothing to call: 1 < 2, [x] {y}: (z) <b> to=me"


@dataclasses.dataclass(frozen=True)
class Texts:
    """Attributes:
    one: a call with a city.
    nested: one with NESTED.
    """

    one: str
    nested: str


def named(call: str, key: str, value_end: str, call_end: str) -> Texts:
    """Of a family that tags values. Args: call: its opening; key: the opening of a value, with {} for its name."""

    def written(values: dict[str, str]) -> str:
        return call + "".join(key.format(name) + value + value_end for name, value in values.items()) + call_end

    return Texts(written({"city": "Paris"}), written({"city": NESTED["city"], "where": WHERE, "hourly": "false"}))


def in_json(before: str, after: str) -> Texts:
    return Texts(f'{before}{{"city": "Paris"}}{after}', f"{before}{NESTED_JSON}{after}")


def elements(block: str, mark: str) -> Texts:
    begun = f'<{block}>\n<{mark}invoke name="get_weather">\n'
    one = f'<{mark}parameter name="city" string="true">Paris</{mark}parameter>\n'
    nested = (
        f'<{mark}parameter name="city" string="true">{NESTED["city"]}</{mark}parameter>\n'
        f'<{mark}parameter name="where" string="false">{WHERE}</{mark}parameter>\n'
        f'<{mark}parameter name="hourly" string="false">false</{mark}parameter>\n'
    )
    ended = f"</{mark}invoke>\n</{block}>"
    return Texts(begun + one + ended, begun + nested + ended)


GEMMA = (
    "call:get_weather{{city:{0}Paris{0}}}",
    "call:get_weather{{city:{0}a < b\n  {{c}}{0},where:{{a:[1,null,{{b:true}}]}},hourly:false}}",
)
JSON_CALL = '{"name": "get_weather", "arguments": '
K3_CALL = '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
K3_VALUE = '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'
K3_END = "<|close|>call<|sep|><|close|>tools<|sep|>"
M3_CALL = f'{NS}<tool_call>\n{NS}<invoke name="get_weather">\n'
M3_END = f"\n{NS}</invoke>\n{NS}</tool_call>"
M3_ITEM = f"{NS}<item>{{}}{NS}</item>"

TEXTS = {
    "gemma4": Texts(*(f"<|tool_call>{text}<tool_call|>".format('<|"|>') for text in GEMMA)),
    "functiongemma": Texts(*(f"<start_function_call>{text}<end_function_call>".format("<escape>") for text in GEMMA)),
    "deepseekv4": elements("｜DSML｜tool_calls", "｜DSML｜"),
    "deepseekv41": elements("｜DSML｜ calls", "｜DSML｜ "),
    "gigachat35": elements("｜GCML｜tool_calls", "｜GCML｜"),
    "gigachat3": in_json(f"function call<|role_sep|>\n{JSON_CALL}", "}<|message_sep|>"),
    "seed_oss": named(
        "<seed:tool_call>\n<function=get_weather>\n",
        "<parameter={}>",
        "</parameter>\n",
        "</function>\n</seed:tool_call>",
    ),
    "olmo3": Texts(
        "<function_calls>\nget_weather(city='Paris')\n</function_calls>",
        "<function_calls>\nget_weather(city='a < b\\n  {c}', where={'a': [1, None, {'b': True}]}, hourly=false)\n"
        "</function_calls>",
    ),
    "hy_v3": named(
        "<tool_calls>\n<tool_call>get_weather<tool_sep>\n",
        "<arg_key>{}</arg_key>\n<arg_value>",
        "</arg_value>\n",
        "</tool_call>\n</tool_calls>",
    ),
    "hy_v4": named(
        "<tool_calls><tool_call>get_weather",
        "<arg_key>{}</arg_key><arg_value>",
        "</arg_value>",
        "</tool_call></tool_calls>",
    ),
    "kimi_k3": Texts(
        K3_CALL + K3_VALUE.format("city", "string", "Paris") + K3_END,
        K3_CALL
        + K3_VALUE.format("city", "string", NESTED["city"])
        + K3_VALUE.format("where", "object", WHERE)
        + K3_VALUE.format("hourly", "boolean", "false")
        + K3_END,
    ),
    "minimax-m3": Texts(
        f"{M3_CALL}{NS}<city>Paris{NS}</city>{M3_END}",
        f"{M3_CALL}{NS}<city>{NESTED['city']}{NS}</city>\n{NS}<where>\n{NS}<a>{M3_ITEM.format(1)}{M3_ITEM.format('null')}"
        f"{NS}<item>{NS}<b>true{NS}</b>{NS}</item>{NS}</a>\n{NS}</where>\n{NS}<hourly>false{NS}</hourly>{M3_END}",
    ),
    "minicpm5": named('<function name="get_weather">', '<param name="{}"><![CDATA[', "]]></param>", "</function>"),
    "dots": named(
        '<dots_function_call>\n<invoke name="get_weather">\n',
        '<parameter name="{}">',
        "</parameter>\n",
        "</invoke>\n</dots_function_call>",
    ),
    "muse": named(
        '<|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n',
        '<atem:parameter name="{}">',
        "</atem:parameter>\n",
        "</atem:invoke>\n</atem:function_calls><|eot|>",
    ),
    "k2_horizon": named(
        "<ifm|tool_calls>\n<ifm|tool_call>get_weather\n",
        "<ifm|arg_key>{}</ifm|arg_key>\n<ifm|arg_value>",
        "</ifm|arg_value>\n",
        "</ifm|tool_call>\n</ifm|tool_calls>",
    ),
    "iquest_q1": named(
        "<iquest_tool_call>get_weather", "<arg_key>{}</arg_key><arg_value>", "</arg_value>", "</iquest_tool_call>"
    ),
    "spark25": named("<tool_call>get_weather\n", "<arg_key>{}</arg_key><arg_value>", "</arg_value>\n", "</tool_call>"),
    "longcat": named(
        "<longcat_tool_call>get_weather\n",
        "<longcat_arg_key>{}</longcat_arg_key>\n<longcat_arg_value>",
        "</longcat_arg_value>\n",
        "</longcat_tool_call>",
    ),
    "apertus2509": in_json('<|tools_prefix|>[{"get_weather": ', "}]<|tools_suffix|>"),
    "inkling": in_json(
        '<|message_model|>get_weather<|content_invoke_tool_json|>{"name":"get_weather","args":', "}<|end_message|>"
    ),
    "plamo3": in_json(
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>get_weather"
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:msg|>",
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
    ),
    "ernie45": in_json(f"<tool_call>\n{JSON_CALL}", "}\n</tool_call>"),
    "granite4": in_json(f"<tool_call>\n{JSON_CALL}", "}\n</tool_call>"),
    "granite-20b-fc": in_json(f"<function_call> {JSON_CALL}", "}"),
    "jamba": in_json(f"<tool_calls>[\n    {JSON_CALL}", "}\n]</tool_calls>"),
    "xlam": in_json(f"[{JSON_CALL}", "}]"),
}
by_name = pytest.mark.parametrize("name", TEXTS)


def read_cut_everywhere(name: str, text: str) -> Read:
    """In pieces of one character, and of a few."""
    form = FORMATS[name]
    whole = read(form, [text])
    for size in (1, 2, 3, 7):
        assert read(form, [text[at : at + size] for at in range(0, len(text), size)]) == whole, size
    return whole


def read_cut_once(name: str, text: str) -> Read:
    """Cut in two at every character."""
    form = FORMATS[name]
    whole = read(form, [text])
    for place in range(1, len(text)):
        assert read(form, [text[:place], text[place:]]) == whole, place
    return whole


def calls_of(found: Read) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    return found[0], [(name, json.loads(arguments)) for name, arguments in found[1]]


@by_name
def test_one_call(name: str) -> None:
    assert calls_of(read_cut_everywhere(name, TEXTS[name].one)) == ("", [("get_weather", PARIS)])


@by_name
def test_parallel_calls(name: str) -> None:
    sample = SAMPLES[name]
    expected = [("get_weather", sample.arguments), *((function, {}) for function in sample.names[1:])]
    assert calls_of(read_cut_everywhere(name, sample.text)) == ("", expected)


@by_name
def test_no_call(name: str) -> None:
    assert read_cut_everywhere(name, NO_CALL) == (NO_CALL, [])


@by_name
def test_nested_values(name: str) -> None:
    assert calls_of(read_cut_everywhere(name, TEXTS[name].nested)) == ("", [("get_weather", NESTED)])


@by_name
def test_text_before_and_after(name: str) -> None:
    text = f"Let me see.\n{TEXTS[name].one}\nThat is all."
    expected = ("Let me see.That is all.", [("get_weather", PARIS)])
    assert calls_of(read_cut_everywhere(name, text)) == expected
    assert calls_of(read_cut_once(name, text)) == expected


@by_name
def test_every_text_cut_in_two_at_every_character(name: str) -> None:
    for text in (TEXTS[name].one, TEXTS[name].nested, SAMPLES[name].text, NO_CALL):
        assert read_cut_once(name, text) == read_cut_everywhere(name, text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("dots", "<dots_function_call>\n<invoke name=now>\n</invoke>\n</dots_function_call>", {}),
        ("dots", '<dots_function_call>{"name": "now", "arguments": {"a": 1}}</dots_function_call>', {"a": 1}),
        ("deepseekv4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now"/>\n</｜DSML｜tool_calls>', {}),
        ("deepseekv4", '<｜DSML｜invoke name="now">\n{"a": [1]}\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', {"a": [1]}),
        ("minicpm5", '<function name="now"><param name="a"><![CDATA[\n<param> </function>\n]]></param></function>',
         {"a": "\n<param> </function>\n"}),
        ("minicpm5", "<function name='now'><param name='a'>2</param></function>", {"a": 2}),
        ("k2_horizon", '<ifm|tool_calls><ifm|tool_call>{"name": "now", "arguments": {"a": 1}}</ifm|tool_call>'
         "</ifm|tool_calls>", {"a": 1}),
        ("k2_horizon", "<ifm|tool_call>now<ifm|arg_key>a</ifm|arg_key><ifm|arg_type>string</ifm|arg_type>"
         "<ifm|arg_value>2</ifm|arg_value></ifm|tool_call>", {"a": "2"}),
        ("longcat", '<longcat_tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</longcat_tool_call>', {"a": 1}),
        ("gigachat3", '<|function_call|>{"name": "now", "arguments": {"a": 1}}', {"a": 1}),
        ("muse", '<atem:function_calls><atem:invoke name="now"><atem:parameter name="a">\nx \n</atem:parameter>'
         "</atem:invoke></atem:function_calls>", {"a": "\nx \n"}),
        ("gemma4", '<|tool_call>call:now{"a":[1,],<|"|>b<|"|>:"x\\n",c:d e,}<tool_call|>',
         {"a": [1], "b": "x\n", "c": "d e"}),
        ("olmo3", "<function_calls>[now(a=1)]</function_calls>", None),
        ("minimax-m3", f'{NS}<invoke name="now">{NS} <a>{NS}<b>1{NS}</b>{NS}<b2>x{NS}</b2>{NS}</a>{NS}</invoke>',
         {"a": {"b": 1, "b2": "x"}}),
    ],
)  # fmt: skip
def test_variations(name: str, text: str, expected: dict[str, Any] | None) -> None:
    """Expected None: no call, and all of it content."""
    wanted = (text, []) if expected is None else ("", [("now", expected)])
    assert calls_of(read_cut_everywhere(name, text)) == wanted


@pytest.mark.parametrize(
    ("name", "of"),
    [
        *(("trinity", "qwen25"), ("qwen3_json", "qwen25"), ("nanbeige", "qwen3_coder"), ("poolside_v1", "glm45")),
        *(
            ("ling3", "glm47"),
            ("cohere_command3", "cohere_command4"),
            ("muse_glimmer", "muse"),
            ("apertus", "apertus2509"),
        ),
        *(("minimax_m3", "minimax-m3"), ("deepseek_v4", "deepseekv4"), ("deepseek_v41", "deepseekv41")),
    ],
)
def test_names_for_the_same_format(name: str, of: str) -> None:
    assert find_format(name) is FORMATS[of]
