"""A conversation becomes a prompt: rendered, then tokenized and its grammar written."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from palladio.http.prompts.chat_messages import content_text, continues_final_message
from palladio.http.prompts.chat_template import MAX_SECONDS, ChatTemplate
from palladio.http.prompts.text_encoding import LONG_TEXT, TextEncoder, Truncation, run_encoding
from palladio.runtime.interface.errors import RenderLimitError
from palladio.runtime.interface.request.grammar_spec import Grammar

QUICK_SECONDS = 0.02  # on the event loop
MESSAGE_SIZE = 32  # characters that a message counts for, beside its own


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, and how it becomes a prompt.

    Attributes:
        add_special_tokens: default false: templates write the special tokens themselves.
        kwargs: chat_template_kwargs.
        tools: what the template writes of tools; None: nothing.
        truncation: of the prompt's token ids, where they are too many; its text is as rendered.
    """

    messages: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    kwargs: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    truncation: Truncation | None = None

    @property
    def size(self) -> int:
        """About how many characters there are to render."""
        values = [value for message in self.messages for value in message.values()]
        others = [value for value in values if not isinstance(value, str)]
        texts = sum(len(value) for value in values if isinstance(value, str))
        return texts + MESSAGE_SIZE * len(self.messages) + len(orjson.dumps((others, self.tools)))


@dataclasses.dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the model gets it.

    Attributes:
        text: as the template rendered it.
        token_ids: of that text.
        continued: the text of the message that is continued; None: a new one begins.
    """

    text: str
    token_ids: list[int]
    continued: str | None


WriteGrammar = Callable[[], Grammar | None]


async def encode_chat(
    template: ChatTemplate,
    encoder: TextEncoder,
    conversation: Conversation,
    write_grammar: WriteGrammar = lambda: None,
    size: int = 0,
) -> tuple[ChatPrompt, Grammar | None]:
    """The prompt of a conversation, and the grammar of its answer.

    What is short is done at once. What takes long to render goes to the template's few threads; tokenizing and the
    grammar, which have no time limit, never do: they would hold up other conversations.

    Args:
        size: what writing the grammar counts for, in characters.

    Raises:
        InvalidRequestError: the messages are malformed, there is no template, it refuses them, or it does not read what
            it is given (kwargs); or there is no such grammar.
        RenderLimitError: rendering takes too long.
    """
    given = conversation

    def render(seconds: float) -> str:
        settings = (given.add_generation_prompt, given.continue_final_message, given.kwargs, given.tools)
        return template.render(encoder.tokenizer, given.messages, *settings, seconds=seconds)

    def finish(text: str) -> tuple[ChatPrompt, Grammar | None]:
        token_ids = encoder.encode(text, bool(given.add_special_tokens), given.truncation)
        continues = continues_final_message(given.messages, given.add_generation_prompt, given.continue_final_message)
        continued = content_text(given.messages[-1]) if continues else None
        return ChatPrompt(text, token_ids, continued), write_grammar()

    text: str | None = None
    if given.size <= LONG_TEXT and not template.is_of_request:
        with contextlib.suppress(RenderLimitError):
            text = render(QUICK_SECONDS)
    if text is None:
        text = await asyncio.get_running_loop().run_in_executor(template.threads, render, MAX_SECONDS)
    rendered = text
    return await run_encoding(lambda: finish(rendered), max(len(rendered), size))
