"""ChatTemplate: which template a server or a request uses, what it reads, and the text that it makes of messages."""

import asyncio
import concurrent.futures
import difflib
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from palladio.http.prompts.chat_messages import MessageForms, continues_final_message, template_messages
from palladio.http.prompts.generic_tools import with_calls_as_text, with_tools
from palladio.http.prompts.template_calls import CallForms
from palladio.http.prompts.template_format import BuiltInTemplate, TemplateFacts, built_in_template, load_template
from palladio.http.prompts.tools import ToolPlan
from palladio.http.reasoning.registry import TOGGLES
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.http.wire.fields import WarningList
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.request.foreign_fields import find_misspelt
from palladio.runtime.text.templates.template_check import check_template
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_SECONDS = 10.0  # for one conversation, however long
NUM_THREADS = 2  # for what takes its time; those of everything else stay free

_OURS = ("self", "messages", "template", "seconds", "tools", "add_generation_prompt", "continue_final_message")
_HELPERS = ("raise_exception", "strftime_now")  # which templates call


class ChatTemplate:
    """The template that this server uses: --chat-template, or else the tokenizer's own, or its family's.

    Args:
        of_request: the template of one request in its place.
        threads: that render what takes its time; default: new ones.

    Attributes:
        is_of_request: it is the template of one request.

    Raises:
        ConfigError: --chat-template names neither a readable file nor a built-in template, or
            --default-chat-template-kwargs holds what the server sets.
    """

    def __init__(
        self,
        config: HttpConfig,
        of_request: str | None = None,
        threads: concurrent.futures.ThreadPoolExecutor | None = None,
    ) -> None:
        self._config = config
        self.is_of_request = of_request is not None
        self._override: str | dict[str, str] | None = of_request
        if of_request is None and config.chat_template:
            self._override = load_template(config.chat_template)
        self._default_kwargs = config.template_kwargs
        clash = sorted(set(_OURS) & self._default_kwargs.keys())
        if clash:
            raise ConfigError(f"--default-chat-template-kwargs must not hold {clash[0]!r}: the server sets it")
        self._facts: dict[str, TemplateFacts] = {}
        self._built_in: dict[BuiltInTemplate, str] = {}
        self._call_forms: dict[str, CallForms] = {}
        self._message_forms = MessageForms()
        self.threads = threads or concurrent.futures.ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="chat-template")

    async def for_request(self, template: str | None) -> "ChatTemplate":
        """The one that a request is rendered with. Its own is read and compiled off the event loop.

        Args:
            template: that it brings; None: this one.

        Raises:
            InvalidRequestError: requests may bring none here, or it is malformed.
        """
        if template is None:
            return self
        if not self._config.trust_request_chat_template:
            raise InvalidRequestError(
                "chat_template is only for servers that run with --trust-request-chat-template",
                param="chat_template",
                code="unsupported_parameter",
            )
        own = ChatTemplate(self._config, template, self.threads)
        try:
            await asyncio.get_running_loop().run_in_executor(self.threads, own._examine, template)
        except (TemplateError, SyntaxError, RecursionError, MemoryError) as error:
            message = "{param} is malformed: {why}"
            raise InvalidRequestError.of(message, param="chat_template", why=error) from None
        return own

    def _examine(self, template: str) -> None:
        check_template(template)
        self._read(template)

    def render(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        seconds: float = MAX_SECONDS,
    ) -> str:
        """The prompt as text.

        Args:
            kwargs: chat_template_kwargs.
            tools: what the template writes of tools; None: nothing.
            seconds: that rendering may take.

        Raises:
            InvalidRequestError: the messages are malformed, there is no template, it refuses them, or it does not read
                what it is given (kwargs).
            RenderLimitError: it takes too long for them.
        """
        calls = any(_has_calls(message) for message in messages)
        if tools is None and calls and not self._read(self._template(tokenizer, tools=False)).reads_calls:
            # Of two templates, the one that writes tools writes earlier calls too.
            tools = () if isinstance(self._override or tokenizer.chat_template, dict) else None
        template = self._template(tokenizer, tools=tools is not None)
        facts = self._read(template)
        continues = continues_final_message(messages, add_generation_prompt, continue_final_message)
        merged = self.settings(kwargs or {})
        clash = sorted(set(_OURS) & merged.keys())
        if clash:
            param = f"chat_template_kwargs.{clash[0]}"
            raise InvalidRequestError.of(
                "{param} is set by the server; it is not for chat_template_kwargs", param=param
            )
        prepared = template_messages(
            messages,
            facts.content_format,
            knows_developer=facts.knows_developer,
            call_forms=self._forms_of_calls(tokenizer, template) if calls and facts.reads_calls else CallForms(),
            tests_null=facts.tests_null,
            takes_one_text=facts.takes_one_text,
        )
        positions = list(range(len(prepared)))
        if "messages" in facts.variables:  # else it is malformed: rendering says what is wrong with it
            _check_is_read(facts, kwargs or {})
            if not facts.reads_calls:
                prepared, positions = with_calls_as_text(prepared, results_too=not facts.reads_results)
            if tools and "tools" not in facts.variables:
                count = len(prepared)
                prepared, tools = with_tools(prepared, tools), None
                positions = [0] * (len(prepared) - count) + positions

        def write(conversation: list[dict[str, Any]], is_continued: bool = False) -> str:
            return tokenizer.render_chat(
                conversation,
                template=facts.text,
                tools=None if tools is None else [dict(tool) for tool in tools],
                add_generation_prompt=False if continues else add_generation_prompt is not False,
                continue_final_message=is_continued,
                seconds=seconds,
                **merged,
            )

        fitting = self._message_forms.fit(prepared, positions, facts.text, write, has_tools=bool(tools))
        return write(fitting, continues)

    def settings(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """A request's variables of the template, with the server's."""
        return self._default_kwargs | dict(kwargs)

    def source(self, tokenizer: Tokenizer, *, tools: bool = False) -> str | None:
        """The template's text; None: the model has none.

        Args:
            tools: of several templates, take the one for requests with tools, if there is one.
        """
        template = self._override or tokenizer.chat_template or self._built_in_text(tokenizer)
        if not isinstance(template, dict):
            return template
        return (template.get("tool_use") if tools else None) or template.get("default")

    def _built_in_text(self, tokenizer: Tokenizer) -> str | None:
        """The template of a model that has none: read and logged once for each server."""
        found = built_in_template(tokenizer)
        if found is None:
            return None
        if found not in self._built_in:
            logger.info("The model has no chat template; the built-in one is used: %s", found.name)
            self._built_in[found] = found.read()
        return self._built_in[found]

    def variables(self, tokenizer: Tokenizer, *, tools: bool = False) -> frozenset[str]:
        """The names that the template reads, its own ones included. See `source`."""
        return self._read(self.source(tokenizer, tools=tools) or "").variables

    def read_kwargs(self, tokenizer: Tokenizer, kwargs: Mapping[str, Any], warnings: WarningList) -> dict[str, Any]:
        """Those of a request's chat_template_kwargs that the template reads, or must refuse.

        Args:
            warnings: gets one of each of the others.

        Raises:
            InvalidRequestError: one is not read, and may not pass or is misspelt.
        """
        if self.source(tokenizer) is None:
            return dict(kwargs)
        texts = (self.source(tokenizer), self.source(tokenizer, tools=True))
        known = frozenset(_OURS).union(TOGGLES, *(self._read(text).variables for text in texts if text))
        facts = self._read(texts[0] or "")
        for name in [name for name, value in kwargs.items() if value is not None and name not in known]:
            error = _unread(facts, name)
            if find_misspelt(name, facts.variables.difference(facts.own, _HELPERS) | TOGGLES, ()) is not None:
                raise error
            warnings.warn(error)
        return {name: value for name, value in kwargs.items() if name in known}

    def reads_tools(self, tokenizer: Tokenizer) -> bool:
        """Whether the template writes the tools of a request into its prompt."""
        return "tools" in self.variables(tokenizer, tools=True)

    def tools_to_write(self, tokenizer: Tokenizer, plan: ToolPlan) -> tuple[dict[str, Any], ...] | None:
        """What the prompt is to say of tools. Where a call is forced and the template writes none, it says nothing: the
        grammar is in their place."""
        is_written = not plan.is_forced or self.reads_tools(tokenizer)
        return plan.template_tools if is_written else None

    def warnings(self, tokenizer: Tokenizer, tool_format: ToolFormat) -> list[str]:
        """What of the server's settings has no effect with this template, a line each, for the log.

        Args:
            tool_format: in which tool calls are read.
        """
        found = []
        if tool_format.reads_free_text and not self.reads_tools(tokenizer):
            found.append(
                f"tool calls are read as {tool_format.name} writes them, but the chat template writes no tools into "
                "prompts: unless tool_choice forces a call, the tools stand in the prompt as plain text, and calls "
                "are read as JSON; give a --chat-template that writes them"
            )
        facts = self._read(self.source(tokenizer) or "")
        for name in sorted(self._default_kwargs.keys() - facts.variables - TOGGLES):
            hint = _names_to_give(facts, name)
            found.append(f"--default-chat-template-kwargs: the chat template does not read {name!r}; {hint}")
        return found

    def _template(self, tokenizer: Tokenizer, *, tools: bool) -> str:
        template = self.source(tokenizer, tools=tools)
        if not template:
            raise InvalidRequestError(
                "this model has no chat template: start the server with --chat-template FILE, or use /v1/completions",
                param="messages",
            )
        return template

    def _forms_of_calls(self, tokenizer: Tokenizer, template: str) -> CallForms:
        if template not in self._call_forms:
            render = functools.partial(tokenizer.render_chat, template=self._read(template).text)
            self._call_forms[template] = CallForms.of(render)
        return self._call_forms[template]

    def _read(self, template: str) -> TemplateFacts:
        if template not in self._facts:
            self._facts[template] = facts = TemplateFacts.of(template)
            if not self.is_of_request:
                logger.info("Detected chat template content format: %s", facts.content_format)
        return self._facts[template]


def _has_calls(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls") or message.get("function_call"))


def _check_is_read(facts: TemplateFacts, kwargs: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidRequestError: the prompt would lack what the request has.
    """
    for name, value in kwargs.items():
        if value is not None and name not in facts.variables and name not in TOGGLES:
            raise _unread(facts, name)


def _unread(facts: TemplateFacts, name: str) -> InvalidRequestError:
    return InvalidRequestError.of(
        "{param} has no effect: the chat template does not read it; {hint}",
        param=f"chat_template_kwargs.{name[:200]}",
        hint=_names_to_give(facts, name),
        code="unknown_parameter",
    )


def _names_to_give(facts: TemplateFacts, name: str) -> str:
    """What could be meant by a name that the template does not read."""
    readable = facts.variables.difference(facts.own, _OURS, _HELPERS)
    close = difflib.get_close_matches(name[:80], sorted(readable | TOGGLES), n=1)
    if close:
        return f"did you mean {close[0]}?"
    given = sorted(known for known in readable if not known.endswith("_token"))
    return f"it reads {', '.join(given)}" if given else "it reads no variables"
