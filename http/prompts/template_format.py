"""The source of chat templates: where it comes from, how it takes message content, and which variables it reads."""

import dataclasses
from pathlib import Path
from typing import Self

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols

from palladio.http.prompts.chat_messages import ContentFormat
from palladio.http.prompts.template_calls import takes_one_text, tests_null, without_nulls
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.templates.chat_renderer import GenerationTag
from palladio.runtime.text.templates.template_check import check_stored_template, read_template_file
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

_BUILT_IN = Path(__file__).parent / "templates"
_LEAST_TEKKEN = 7  # earlier versions write prompts otherwise; their checkpoints have templates
_THINKING = ("[THINK]", "[/THINK]")


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateFacts:
    """Facts about a template, read once from its source.

    Attributes:
        text: what is rendered in its place.
        content_format: how it takes message content.
        variables: the names that it reads, its own ones included; none, if it is malformed. (jinja2's own list of what
            is read from outside evaluates constants, without bounds.)
        own: the names that it gives itself: what it sets, loops over, and parameters of its macros.
        reads_calls: it writes the tool calls of earlier messages.
        reads_results: it knows the role of their results.
        tests_null, takes_one_text: see template_calls.
        knows_developer: it has a role of that name.
    """

    text: str
    content_format: ContentFormat
    variables: frozenset[str]
    own: frozenset[str]
    reads_calls: bool
    reads_results: bool
    tests_null: bool
    takes_one_text: bool
    knows_developer: bool

    @classmethod
    def of(cls, source: str) -> Self:
        tree = _parse(source)
        names = list(tree.find_all(nodes.Name))
        return cls(
            without_nulls(source),
            _content_format(tree),
            frozenset(name.name for name in names if name.ctx == "load"),
            frozenset(name.name for name in names if name.ctx != "load"),
            "tool_calls" in source,
            "'tool'" in source or '"tool"' in source,
            tests_null(source),
            takes_one_text(source),
            "developer" in source,
        )


def _content_format(tree: nodes.Template) -> ContentFormat:
    """openai if the template loops over a message's content."""
    names = _content_names(tree)
    loops = any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
    return "openai" if loops else "string"


def _parse(template: str) -> nodes.Template:
    """Nothing, for one that is malformed: rendering will say what is wrong."""
    try:
        return jinja2.Environment(extensions=[loopcontrols, "jinja2.ext.do", GenerationTag]).parse(template)
    except (jinja2.TemplateSyntaxError, RecursionError):
        return nodes.Template([], lineno=1)


def _content_names(tree: nodes.Template) -> set[str]:
    """Variables and macro parameters that hold a message's content."""
    names: set[str] = set()
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    before = -1
    while before < len(names):
        before = len(names)
        for assignment in tree.find_all(nodes.Assign):
            if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, names):
                names.add(assignment.target.name)
        for call in tree.find_all(nodes.Call):
            macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
            if macro is not None:
                pairs = zip(macro.args, call.args, strict=False)
                names |= {parameter.name for parameter, value in pairs if _is_content(value, names)}
    return names


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltInTemplate:
    """A template that Palladio brings, for a family whose checkpoints may have none.

    Attributes:
        name: of its file, without the suffix.
        settings: variables of the template that depend on the tokenizer, as statements that precede its text.
    """

    name: str
    settings: str = ""

    def read(self) -> str:
        return self.settings + (_BUILT_IN / f"{self.name}.jinja").read_text(encoding="utf-8")


def built_in_template(tokenizer: Tokenizer) -> BuiltInTemplate | None:
    """Return the template of the model's family, if the tokenizer's tokens show the family; None: they do not."""
    if tokenizer.is_harmony:
        return BuiltInTemplate("gpt-oss")
    version = tokenizer.tekken_version
    if version is None or version < _LEAST_TEKKEN:
        return None
    thinks = all(tokenizer.added_id(mark) is not None for mark in _THINKING)
    marks = f"{{%- set marks_of_thinking = {list(_THINKING)} -%}}" if thinks else ""
    return BuiltInTemplate("mistral-tekken", f"{{%- set tekken_version = {version} -%}}{marks}")


def load_template(name: str) -> str | dict[str, str]:
    """Reads --chat-template: a .jinja (or other text) file, a .json file with a "chat_template", or a built-in name.

    Returns:
        The template, or several by name: "default", and "tool_use" for requests with tools.

    Raises:
        ConfigError: none of these.
    """
    path = Path(name)
    if not path.is_file():
        built_in = {file.stem: file for file in _BUILT_IN.glob("*.jinja")}
        if name not in built_in:
            raise ConfigError(
                f"--chat-template {name}: no such file, and no such built-in template; "
                f"built in: {', '.join(sorted(built_in))}"
            )
        path = built_in[name]
    try:
        template = read_template_file(path)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"--chat-template {name}: cannot be read: {exc}") from exc
    if isinstance(template, list):  # Hugging Face's form of several templates
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        named = {name: source for name, source in template.items() if isinstance(source, str)}
        template = named if {"default", "tool_use"} <= named.keys() else named.get("default")
    check_stored_template(template, f"--chat-template {name}")
    if isinstance(template, dict):
        return template
    if not isinstance(template, str):
        raise ConfigError(f'--chat-template {name}: has no "chat_template" text')
    return template
