"""Chat templates: what transformers makes of them, and what bounds them."""

import datetime
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.interface.errors import InvalidRequestError, RenderLimitError
from palladio.runtime.text.templates import template_meter
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.cpu_time import least_cpu_seconds
from tests.tiny_tokenizer import build_tiny_tokenizer

ROOT = Path(__file__).resolve().parents[4]
BUILT_IN = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "http/prompts/templates").glob("*.jinja")}
CONSTRUCTS = {
    "its own": None,
    "generation": (
        "{% for m in messages %}{% generation %}{% set x = m.content %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}"
    ),
    "loop controls": (
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}/{{ loop.length }}"
        "{{ m.content }}{% if loop.index > 1 %}{% break %}{% endif %}{% else %}none{% endfor %}"
    ),
    "filtered loop": "{% for m in messages if m.role == 'user' %}{{ loop.index0 }}{{ m.content }}{% endfor %}",
    "namespace": (
        "{% set ns = namespace(n=0, text='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{% set ns.text = ns.text ~ m.content ~ ns.n %}{% endfor %}{{ ns.text }}"
    ),
    "macros": (
        "{% macro show(m, sep=': ') %}{{ m.role }}{{ sep }}{{ caller(m) if caller else m.content }}{% endmacro %}"
        "{% for m in messages %}{{ show(m) }}{% call(m) show(m, sep='=') %}[{{ m.content }}]{% endcall %}{% endfor %}"
    ),
    "recursion": (
        "{% for item in nested recursive %}{{ item.name }}{% if item.inner %}"
        "({{ loop(item.inner) }}){% endif %}{% endfor %}"
    ),
    "filters": (
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ messages | map(attribute='role') | join(', ') }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
        "{{ 'ab' | replace('a', 'xyz') | center(9) }}"
        "{{ 'a\nb' | indent(3, true) }}{{ 'a\n\nb' | indent('--', blank=true) }}{{ '%s-%d' | format('x', 3) }}"
        "{{ [1, 2, 3] | batch(2, 'z') | list }}{{ [3, 1] | sort | first }}{{ 'abc' | upper | trim | string | length }}"
        "{{ [1, 2] | join }}{{ messages[0] | items | list }}{{ none | default('d', true) }}{{ 'abcdef' | truncate(5) }}"
    ),
    "methods": (
        "{{ 'a,b'.split(',') | join('+') }}{{ '-'.join(['a', 'b']) }}{{ ' x '.strip() }}{{ 'ab'.replace('a', 'ccc') }}"
        "{{ '{} {x}'.format(1, x=2) }}{{ 'a'.ljust(4) }}|{{ 'ab'.startswith('a') }}{{ dict(a=1).items() | list }}"
        "{{ 'a b'.title() }}{{ messages[0].get('content') }}{{ messages[0]['role'] }}{{ dict.fromkeys(['k'], 1) }}"
    ),
    "operators": (
        "{{ 7 % 3 }}{{ 'a' * 3 }}{{ [1] * 2 + [2] }}{{ 2 ** 10 }}{{ 7 // 2 }}{{ '%05.1f' % 3.14 }}"
        "{{ -3 + 1.5 }}{{ 1 ~ none }}"
    ),
    "lists": (
        "{{ 'baAb' | unique | list }}{{ 'bac' | sort }}{{ messages | sort(attribute='content') | map(attribute='role') "
        "| list }}{{ {'b': 1, 'A': 2} | dictsort }}{{ 'abc' | max }}{{ [2, 1] | min }}{{ [] | max }}"
        "{{ 'ba' | batch(2) | list }}{{ [1, 2, 3] | slice(2) | list }}{{ 'ab' | reverse }}{{ [1, 2] | reverse | list }}"
        "{{ 'ab' | list }}"
        "{% for role, group in messages | groupby('role') %}{{ role }}{{ group | length }}{% endfor %}"
        "{{ [1, 2] | sum }}{{ [[1], [2]] | sum(start=[]) }}{{ [{'n': 2}, {'n': 3}] | sum('n', 1) }}{{ 'ab' | first }}"
        "{{ [1, 2] | last }}{{ absent | list }}{{ absent | sort }}{{ messages[1:] | length }}{{ 'abcd'[1:-1] }}"
        "{{ 'abc'[::-1] }}{{ dict([('a', 1)]) }}{{ dict({'a': 1}, b=2) }}{{ dict.fromkeys('ab') }}{{ '-'.join('abc') }}"
        "{% macro f() %}{{ varargs }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(*'ab') }}{{ '%s%s' | format(*'ab') }}"
    ),
    "words": (
        "{{ 'one two-three' | title }}{{ 'see http://a.bc/d' | urlize }}{{ 'a bc d' | wordwrap(3) }}"
        "{{ 'a b' | urlencode }}{{ '<b>x</b>' | striptags }}{{ {'a': [1]} | pprint }}{{ 'a b' | wordcount }}"
        "{{ {'a': 1} | xmlattr }}"
        "{{ ' a  b '.split() }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a\n\u2028b'.splitlines() }}"
        "{{ '{:>5}|{}'.format(1, [2]) }}{{ '{0[role]:<9}|{0[role]}'.format(messages[0]) }}"
        "{{ '%(a)3d%(a)s' % {'a': 1} }}"
    ),
    "blocks": (
        "{% set x %}  {{ messages | length }} {% endset %}{{ x }}{% filter upper %}a{{ x }}"
        "{% endfilter %}{% with y = 3 %}{{ y }}{% endwith %}"
    ),
    "variables": (
        "{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ documents }}|{{ add_generation_prompt }}"
        "|{{ absent }}|{{ enable_thinking }}"
    ),
    "space": "  {%- for m in messages -%}\n  {{ m.content }}\n  {%- endfor %}\n{% if true %}\n yes\n{% endif %}\nend\n",
    "reasoning": (
        "{% for m in messages %}{{ m.thinking }}{{ m.reasoning_content }}{{ m.content }}"
        "{{ m.name is defined }}{% endfor %}"
    ),
    "date": "{{ strftime_now('%Y-%m') }}",
    "escaping": (
        "{{ '<b>&' }}{{ '<b>' | e }}{{ ['<'] | tojson }}{{ 'é' | tojson }}"
        "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}"
    ),
}
MESSAGES = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi <b> ", "reasoning_content": "hm"},
    {"role": "user", "content": "wörld", "name": None},
]
VARIABLES = {"enable_thinking": True, "nested": [{"name": "a", "inner": [{"name": "b"}, {"name": "c"}]}, {"name": "d"}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize("name", [*BUILT_IN, *CONSTRUCTS])
def test_as_transformers_renders_it(tokenizer: Tokenizer, name: str) -> None:
    template = BUILT_IN[name] if name in BUILT_IN else CONSTRUCTS[name]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for settings in ({"add_generation_prompt": True}, {"add_generation_prompt": False, "tools": tools}):
        expected = tokenizer._hf.apply_chat_template(
            MESSAGES, chat_template=template, tokenize=False, **settings, **VARIABLES
        )
        assert tokenizer.render_chat(MESSAGES, template=template, **settings, **VARIABLES) == expected
    assert expected


@pytest.mark.parametrize(
    "content", ["Hi there", "Hi there  ", [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]]
)
@pytest.mark.parametrize("trims", [False, True])
def test_continuing_as_transformers_does(tokenizer: Tokenizer, content: object, trims: bool) -> None:
    shown = "(m.content if m.content is string else m.content | map(attribute='text') | join)" + ("| trim" * trims)
    template = "{% for m in messages %}<{{ m.role }}>{{ " + shown + " }}<end>{% endfor %}"
    messages: list[dict[str, Any]] = [MESSAGES[0], {"role": "assistant", "content": content}]
    settings = {"add_generation_prompt": False, "continue_final_message": True}
    expected = tokenizer._hf.apply_chat_template(messages, chat_template=template, tokenize=False, **settings)
    assert tokenizer.render_chat(messages, template=template, **settings) == expected
    assert messages[1]["content"] == content


def test_what_cannot_be_continued(tokenizer: Tokenizer) -> None:
    settings = {"add_generation_prompt": False, "continue_final_message": True}
    for template, content in (
        ("{{ messages[0].content }}", "x"),
        ("no text", "x"),
        ("{{ messages[1].content }}", None),
    ):
        messages = [MESSAGES[0], {"role": "assistant", "content": content}]
        with pytest.raises(InvalidRequestError):
            tokenizer.render_chat(messages, template=template, **settings)


FOREVER = {
    "loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}"
    ),
    "quadratic": "{% for i in range(99999) %}{{ range(99999) | select('gt', i) | list | length }}{% endfor %}",
    "filtered loop": "{% set l = range(99999) | list %}{% for i in range(99999) if i in l and 'x' in l %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for i in range(999) recursive %}{{ loop(range(999)) if loop.depth < 9 }}{% endfor %}",
    "map": "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
}
WORK_IN_ONE_CALL = {  # of jinja2's or Python's, which looks at no clock
    "unique": "{{ ('a' * 60000000) | unique | list | length }}",
    "batch": "{{ ('a' * 20000000) | batch(1) | list | length }}",
    "slice": "{{ ('a' * 20000000) | slice(2) | list | length }}",
    "max": "{{ ('a' * 60000000) | max }}",
    "sort": "{{ ('ab' * 20000000) | sort | length }}",
    "sort a list": "{{ (range(99999) | list * 300) | sort | length }}",
    "groupby": "{{ ('ab' * 10000000) | groupby('x') | length }}",
    "list": "{{ ('a' * 200000000) | list | length }}",
    "join": "{{ ''.join('a' * 200000000) | length }}",
    "map": "{% for x in ('a' * 60000000) | map(attribute='x') %}{{ loop.length }}{% endfor %}",
    "sum": "{{ ([range(99999) | list] * 9999) | sum(start=[]) | length }}",
    "fromkeys": "{{ dict.fromkeys('a' * 200000000) | length }}",
    "dict": "{{ dict(['ab'] * 30000000) | length }}",
    "arguments": "{% macro f() %}{% endmacro %}{{ f(*('a' * 200000000)) }}",
    "title": "{{ ('a-' * 20000000) | title | length }}",
    "urlize": "{{ ('a@b.c ' * 2000000) | urlize | length }}",
    "wordwrap": "{{ ('a' * 20000000) | wordwrap(1) | length }}",
    "striptags": "{{ ('<!---->' * 300000) | striptags | length }}",
    "split": "{{ ('ab ' * 40000000).split() | length }}",
    "padding": "{{ ('{0:>99999}' * 8000).format('x') | length }}",
    "padding by %": "{{ ('%99999s' * 8000) % ((1,) * 8000) }}",
    "many fields": "{{ ('{0}' * 8000).format('x' * 99999) }}",
    "many fields by %": "{{ ('%(x)s' * 8000) % {'x': 'x' * 99999} }}",
    "slices": "{% set x = 'x' * 9999999 %}{% for i in range(999) %}{{ x[i:] | length }}{% endfor %}",
    "date": "{{ strftime_now('%Y' * 5000000) | length }}",
    "values of a dictionary": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}"
        "{{ ns.x.values() }}"
    ),
}
HUGE = {
    "doubling": "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling without a loop": "{% set x = 'xxxxxxxxxxxxxxxx' %}" + "{% set x = x ~ x %}" * 40,
    "adding": "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "lists": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "multiplying": "{{ 'x' * 99999999999 }}",
    "multiplying lists": "{{ 99999999999 * [1] }}",
    "powers": "{{ 10 ** (10 ** 10) }}",
    "squares": "{% set ns = namespace(x=10) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "output": "{% set x = 'x' * 9999999 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "macro output": "{% macro f(x) %}{{ x }}{{ x }}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='x') %}"
    "{% for i in range(99) %}{% set ns.x = f(ns.x) %}{% endfor %}",
    "block": (
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}"
        "{% endset %}{% set ns.x = y %}{% endfor %}"
    ),
    "center": "{{ 'x' | center(99999999999) }}",
    "indent": "{{ ('\n' * 9999999) | indent(99999) }}",
    "indent by text": "{{ ('\n' * 999999) | indent('x' * 999999) }}",
    "tojson": "{{ [1] | tojson(indent=99999999999) }}",
    "ljust": "{{ 'x'.ljust(99999999999) }}",
    "zfill": "{{ '1'.zfill(99999999999) }}",
    "expandtabs": "{{ ('\t' * 9999999).expandtabs(99999) }}",
    "percent": "{{ '%099999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (99999999999, 1) }}",
    "format filter": "{{ '%099999999999d' | format(1) }}",
    "format": "{{ '{:>99999999999}'.format(1) }}",
    "format by value": "{{ '{:>{}}'.format(1, 99999999999) }}",
    "format_map": "{{ '{a:>99999999999}'.format_map({'a': 1}) }}",
    "replace": "{% set x = 'x' * 999999 %}{{ x.replace('x', x) }}",
    "replace filter": "{% set x = 'x' * 999999 %}{{ x | replace('x', x) }}",
    "replace nothing": "{% set x = 'x' * 999999 %}{{ x.replace('', x) }}",
    "join": "{% set x = 'x' * 999999 %}{{ ([x] * 99999) | join }}",
    "join method": "{% set x = 'x' * 999999 %}{{ ''.join([x] * 99999) }}",
    "separator": "{% set x = 'x' * 999999 %}{{ range(99999) | join(x) }}",
    "translate": "{% set x = 'x' * 999999 %}{{ x.translate({120: x}) }}",
    "batch": "{{ [1] | batch(99999999999, 'x') | list }}",
    "nested lists": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"
    ),
    "nested lists as JSON": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x | tojson }}"
    ),
    "nested lists as text": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
        "{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | string }}"
    ),
    "nested lists joined": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x ~ 'a' }}"
    ),
    "nested lists formatted": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ '%s' % (ns.x,) }}"
    ),
}


@pytest.mark.parametrize("name", FOREVER)
def test_templates_without_end_are_given_up(tokenizer: Tokenizer, name: str) -> None:
    begun = time.monotonic()
    with pytest.raises(RenderLimitError, match=r"takes longer than 0.3 seconds"):
        tokenizer.render_chat(MESSAGES, template=FOREVER[name], seconds=0.3)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("name", WORK_IN_ONE_CALL)
def test_what_one_call_may_do_is_bounded(tokenizer: Tokenizer, name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def render() -> None:
        with pytest.raises(InvalidRequestError, match="chat template"):
            tokenizer.render_chat(MESSAGES, template=WORK_IN_ONE_CALL[name], seconds=0.3)

    assert least_cpu_seconds(render, enough=1.5) < 1.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024  # KiB


def test_formats_are_read_in_time_that_is_proportional_to_them(tokenizer: Tokenizer) -> None:
    template = "{{ (':' * 90000).format(1) | length }} {{ ((':' * 900000) % ()) | length }}"

    def render() -> None:
        assert tokenizer.render_chat(MESSAGES, template=template) == "90000 900000"

    assert least_cpu_seconds(render, enough=3) < 3


def test_short_renderings_make_less_text(tokenizer: Tokenizer) -> None:
    template = "{{ ('x' * 4000000) | length }}"
    with pytest.raises(RenderLimitError, match="makes more than 2684354 characters"):
        tokenizer.render_chat(MESSAGES, template=template, seconds=0.02)
    assert tokenizer.render_chat(MESSAGES, template=template) == "4000000"


def test_a_namespace_does_not_show_what_it_holds(tokenizer: Tokenizer) -> None:
    doubling = "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    shown = tokenizer.render_chat(MESSAGES, template="{% set ns = namespace(x=[1]) %}" + doubling + "{{ ns }}")
    assert shown == "<Namespace>"


@pytest.mark.parametrize("name", HUGE)
def test_templates_that_make_too_much_are_given_up(
    tokenizer: Tokenizer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_meter, "MAX_CHARACTERS", 32 * 1024 * 1024)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    with pytest.raises(InvalidRequestError, match="chat template"):
        tokenizer.render_chat(MESSAGES, template=HUGE[name], seconds=2.0)
    assert time.monotonic() - begun < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024  # KiB


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ messages.__init__ }}",
        "{{ (messages | attr('__class__')) }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{{ namespace.__init__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ dict.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ environment.tick }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{{ range(10 ** 9) }}",
        "{{ 1 // 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_templates_must_not_reach(tokenizer: Tokenizer, template: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    try:
        text = tokenizer.render_chat(messages, template=template)
    except InvalidRequestError:
        text = ""
    assert text == ""  # nothing, or an undefined value
    assert messages == [{"role": "user", "content": "x"}]


def test_dates_are_those_of_today(tokenizer: Tokenizer) -> None:
    assert tokenizer.render_chat(MESSAGES, template="{{ strftime_now('%Y') }}") == str(datetime.date.today().year)
