"""Texts of models that call tools, in each family's format: shared by the tests of parsers and grammars."""

import dataclasses
from typing import Any

from palladio.http.tool_calls.reading.base import Function, Functions
from palladio.http.tool_calls.tool_format import ToolFormat

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "where": {"type": "object"},
        "hourly": {"type": "boolean"},
    },
    "required": ["city"],
}
FUNCTIONS = {"get_weather": Function("get_weather", WEATHER), "now": Function("now", {})}


Read = tuple[str, list[tuple[str, str]]]  # content, and name and arguments of each call


def read(form: ToolFormat, pieces: list[str], functions: Functions = FUNCTIONS, *, parallel: bool = True) -> Read:
    """Feeds a parser, and checks the order of what it gives."""
    parser = form.new_parser(functions, parallel=parallel)
    content, calls = "", []
    for piece in [*map(parser.feed, pieces), parser.finish()]:
        content += piece.content
        for delta in piece.calls:
            if delta.name is not None:
                assert (delta.index, delta.arguments) == (len(calls), "")
                assert delta.id
                calls.append([delta.name, ""])
            assert delta.index == len(calls) - 1
            calls[-1][1] += delta.arguments
    return content, [(name, arguments) for name, arguments in calls]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Attributes:
    text: two calls, the second one without arguments, in the exact format; `before` and `after` stand around it.
    arguments: of the first call.
    dropped: a mark that is no content where a text ends with it.
    """

    text: str
    arguments: dict[str, Any]
    before: str = ""
    after: str = ""
    names: tuple[str, ...] = ("get_weather", "now")
    dropped: str = ""


CITY = {"city": 'Zürich "{x}" </tool'}
JSON_CITY = r'{"city": "Zürich \"{x}\" </tool", "days": 3}'
BOTH = CITY | {"days": 3}
ALL = {"city": "Paris\n[1], (x)", "days": 3, "where": {"a": [1, None]}, "hourly": True}

SAMPLES = {
    "qwen25": Sample(
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON_CITY}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        BOTH,
        before="Let me see.\n",
    ),
    "hermes": Sample(
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON_CITY}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        BOTH,
        after="\nThat is all.",
    ),
    "llama3": Sample(
        f'{{"name": "get_weather", "parameters": {JSON_CITY}}}; {{"name": "now", "parameters": {{}}}}', BOTH
    ),
    "mistral": Sample(
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {JSON_CITY}}}, {{"name": "now", "arguments": {{}}}}]',
        BOTH,
    ),
    "pythonic": Sample(
        r'[get_weather(city="Paris\n[1], (x)", days=3, where={"a": [1, null]}, hourly=True), now()]', ALL
    ),
    "deepseekv3": Sample(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{JSON_CITY}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n"
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
        before="I look it up.",
    ),
    "deepseekv31": Sample(
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{JSON_CITY}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
    ),
    "kimi_k2": Sample(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{JSON_CITY}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        BOTH,
        before="Yes:\n",
    ),
    "internlm": Sample(
        f'<|action_start|><|plugin|>\n{{"name": "get_weather", "parameters": {JSON_CITY}}}<|action_end|>\n'
        '<|action_start|><|plugin|>\n{"name": "now", "parameters": {}}<|action_end|>',
        BOTH,
        before="I will look.",
    ),
    "gpt-oss": Sample(
        f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON_CITY}",
        BOTH,
        names=("get_weather",),
    ),
    "glm45": Sample(
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris\n[1], (x)</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>where</arg_key>\n"
        '<arg_value>{"a": [1, null]}</arg_value>\n<arg_key>hourly</arg_key>\n<arg_value>true</arg_value>\n'
        "</tool_call>\n<tool_call>now\n</tool_call>",
        ALL,
        before="\nI will look.\n",
    ),
    "glm47": Sample(
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris\n[1], (x)</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call>\n<tool_call>now</tool_call>",
        {"city": ALL["city"], "days": 3},
    ),
    "qwen3_coder": Sample(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n[1], (x)\n</parameter>\n<parameter=days>\n3\n"
        '</parameter>\n<parameter=where>\n{"a": [1, null]}\n</parameter>\n<parameter=hourly>\ntrue\n</parameter>\n'
        "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ALL,
        before="Now.\n",
    ),
    "minimax-m2": Sample(
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris\n[1], (x)</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        {"city": ALL["city"], "days": 3},
    ),
    "step3": Sample(
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">'
        '<steptml:parameter name="city">Paris</steptml:parameter></steptml:invoke><｜tool_call_end｜>'
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜>'
        "<｜tool_calls_end｜>",
        {"city": "Paris"},
    ),
    "deepseekv32": Sample(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        {"city": "Paris", "days": 3},
    ),
    "lfm2": Sample(
        '<|tool_call_start|>[get_weather(city="Paris", days=3), now()]<|tool_call_end|>', {"city": "Paris", "days": 3}
    ),
    "hunyuan": Sample(
        f'<tool_calls>[{{"name": "get_weather", "arguments": {JSON_CITY}}}, {{"name": "now", "arguments": {{}}}}]'
        "</tool_calls>",
        BOTH,
    ),
    "granite": Sample(
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {JSON_CITY}}}, {{"name": "now", "arguments": {{}}}}]',
        BOTH,
    ),
    "phi4_mini_json": Sample(
        f'functools[{{"name": "get_weather", "arguments": {JSON_CITY}}}, {{"name": "now", "arguments": {{}}}}]', BOTH
    ),
    "cohere_command4": Sample(
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {JSON_CITY}}},\n'
        '    {"tool_call_id": "0", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        BOTH,
    ),
    "json": Sample(
        f'[{{"name": "get_weather", "arguments": {JSON_CITY}}}, {{"name": "now", "arguments": {{}}}}]', BOTH
    ),
}

CITY_TAG = "Paris\n[1], (x)"
HERMES = SAMPLES["hermes"]
NS = "]<]minimax[>["
GEMMA_QUOTE = '<|"|>'
GEMMA = "call:get_weather{{city:{0}Paris\n[1], (x){0},days:3,where:{{a:[1,null]}},hourly:true}}"
KEYED = "<{0}arg_key>city</{0}arg_key>{1}<{0}arg_value>Paris\n[1], (x)</{0}arg_value>{2}"
DSML = (
    '<｜{0}｜{1}calls>\n<｜{0}｜{2}invoke name="get_weather">\n'
    '<｜{0}｜{2}parameter name="city" string="true">Paris</｜{0}｜{2}parameter>\n'
    '<｜{0}｜{2}parameter name="days" string="false">3</｜{0}｜{2}parameter>\n</｜{0}｜{2}invoke>\n'
    '<｜{0}｜{2}invoke name="now">\n</｜{0}｜{2}invoke>\n</｜{0}｜{1}calls>'
)
PARIS = {"city": "Paris", "days": 3}
ONLY_CITY = {"city": CITY_TAG}

_OLDER = frozenset(SAMPLES)
SAMPLES |= {
    "gemma4": Sample(
        f"<|tool_call>{GEMMA.format(GEMMA_QUOTE)}<tool_call|><|tool_call>call:now{{}}<tool_call|>",
        ALL,
        before="I look.\n",
    ),
    "functiongemma": Sample(
        f"<start_function_call>{GEMMA.format('<escape>')}<end_function_call><start_function_call>call:now{{}}"
        "<end_function_call>",
        ALL,
    ),
    "deepseekv4": Sample(DSML.format("DSML", "tool_", ""), PARIS, before="I look."),
    "deepseekv41": Sample(DSML.format("DSML", " ", " "), PARIS),
    "gigachat35": Sample(DSML.format("GCML", "tool_", ""), PARIS, before="I look.\n\n"),
    "gigachat3": Sample(
        f'<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "get_weather", "arguments": {JSON_CITY}}}',
        BOTH,
        before="I look.",
        names=("get_weather",),
        dropped="<|message_sep|>",
    ),
    "seed_oss": Sample(
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris\n[1], (x)</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        {"city": CITY_TAG, "days": 3},
        before="I look it up.\n",
    ),
    "olmo3": Sample(
        '<function_calls>get_weather(city="Paris\\n[1], (x)", days=3, where={"a": [1, null]}, hourly=true)\nnow()'
        "</function_calls>",
        ALL,
        before="I look.",
    ),
    "hy_v3": Sample(
        f"<tool_calls>\n<tool_call>get_weather<tool_sep>\n{KEYED.format('', chr(10), chr(10))}</tool_call>\n"
        "<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>",
        ONLY_CITY,
        before="I look.\n",
    ),
    "hy_v4": Sample(
        f"<tool_calls><tool_call>get_weather{KEYED.format('', '', '')}</tool_call><tool_call>now</tool_call>"
        "</tool_calls>",
        ONLY_CITY,
    ),
    "kimi_k3": Sample(
        '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris\n[1], (x)<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        '<|open|>argument key="where" type="object"<|sep|>{"a": [1, null]}<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        {key: value for key, value in ALL.items() if key != "hourly"},
        before="I look.",
    ),
    "minimax-m3": Sample(
        f'{NS}<tool_call>\n{NS}<invoke name="get_weather">\n{NS}<city>Paris\n[1], (x){NS}</city>\n'
        f'{NS}<days>3{NS}</days>\n{NS}</invoke>\n{NS}<invoke name="now">\n{NS}</invoke>\n{NS}</tool_call>',
        {"city": CITY_TAG, "days": 3},
        before="I look.\n",
    ),
    "minicpm5": Sample(
        '<function name="get_weather"><param name="city">Paris\n[1], (x)</param><param name="days">3</param></function>'
        '\n<function name="now"></function>',
        {"city": CITY_TAG, "days": 3},
        before="I look.\n",
    ),
    "dots": Sample(
        '<dots_function_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</dots_function_call>',
        PARIS,
    ),
    "muse": Sample(
        ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Paris\n[1], (x)</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n"
        '<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>',
        {"city": CITY_TAG, "days": 3},
    ),
    "k2_horizon": Sample(
        f"<ifm|tool_calls>\n<ifm|tool_call>get_weather\n{KEYED.format('ifm|', chr(10), chr(10))}</ifm|tool_call>\n"
        "<ifm|tool_call>now\n</ifm|tool_call>\n</ifm|tool_calls>",
        ONLY_CITY,
        before="I look.\n",
    ),
    "iquest_q1": Sample(
        f"<iquest_tool_call>get_weather{KEYED.format('', '', '')}</iquest_tool_call>\n"
        "<iquest_tool_call>now</iquest_tool_call>",
        ONLY_CITY,
    ),
    "spark25": Sample(
        f"<tool_call>get_weather\n{KEYED.format('', '', chr(10))}</tool_call>\n<tool_call>now\n</tool_call>", ONLY_CITY
    ),
    "longcat": Sample(
        f"<longcat_tool_call>get_weather\n{KEYED.format('longcat_', chr(10), chr(10))}</longcat_tool_call>\n"
        "<longcat_tool_call>now\n</longcat_tool_call>",
        ONLY_CITY,
        before="I look.\n",
    ),
    "apertus2509": Sample(
        f'<|tools_prefix|>[{{"get_weather": {JSON_CITY}}}, {{"now": {{}}}}]<|tools_suffix|>', BOTH, before="I look."
    ),
    "inkling": Sample(
        f'<|message_model|>get_weather<|content_invoke_tool_json|>{{"name":"get_weather","args":{JSON_CITY}}}'
        '<|end_message|><|message_model|>now<|content_invoke_tool_json|>{"name":"now","args":{}}<|end_message|>',
        BOTH,
    ),
    "plamo3": Sample(
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
        "<|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|>"
        f"<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{JSON_CITY}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:begin_tool_request:plamo|>"
        "<|plamo:begin_tool_name:plamo|>now<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
        BOTH,
        before="I look.",
    ),
    "ernie45": HERMES,
    "granite4": HERMES,
    "granite-20b-fc": Sample(
        f'<function_call> {{"name": "get_weather", "arguments": {JSON_CITY}}}'
        '<function_call> {"name": "now", "arguments": {}}',
        BOTH,
    ),
    "jamba": Sample(
        f'<tool_calls>[\n    {{"name": "get_weather", "arguments": {JSON_CITY}}},\n'
        '    {"name": "now", "arguments": {}}\n]</tool_calls>',
        BOTH,
    ),
    "xlam": SAMPLES["json"],
}
NEWEST = frozenset(SAMPLES) - _OLDER
_OWN_FORM = (
    *(
        "gemma4",
        "minimax-m3",
        "olmo3",
        "muse",
        "kimi_k3",
        "gigachat3",
        "inkling",
        "apertus2509",
        "plamo3",
        "k2_horizon",
    ),
)
LIKE_OLDER = NEWEST - frozenset(_OWN_FORM)  # of the form of an older one: much of their tests is in the slow tier
