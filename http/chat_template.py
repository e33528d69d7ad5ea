"""Messages → prompt: which chat template, and rendering it."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palladio.http.chat_messages import ContentFormat, continues_final_message, template_messages
from palladio.http.config import HttpConfig
from palladio.http.template_format import detect_content_format
from palladio.http.text_encoder import TextEncoder, run_encoding
from palladio.runtime.errors import ConfigError, InvalidRequestError
from palladio.runtime.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_BUILT_IN = Path(__file__).parent / "templates"
_OURS = ("messages", "template", "tools", "add_generation_prompt", "continue_final_message")


class ChatTemplate:
    """The template that this server uses: --chat-template, or else the tokenizer's own.

    Raises:
        ConfigError: --chat-template names neither a readable file nor a built-in template.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._override = load_template(config.chat_template) if config.chat_template else None
        self._default_kwargs = config.template_kwargs
        self._formats: dict[str, ContentFormat] = {}

    async def encode(
        self,
        encoder: TextEncoder,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool | None,
        continue_final_message: bool | None,
        add_special_tokens: bool | None,
        kwargs: Mapping[str, Any] | None,
    ) -> list[int]:
        """Token ids of a conversation.

        Args:
            add_special_tokens: default false: templates write the special tokens themselves.
            kwargs: chat_template_kwargs.

        Raises:
            InvalidRequestError: the messages are malformed, there is no template, or it refuses them.
        """

        def run() -> list[int]:
            text = self.render(encoder.tokenizer, messages, add_generation_prompt, continue_final_message, kwargs)
            return encoder.encode(text, add_special_tokens=bool(add_special_tokens))

        size = sum(len(content) for m in messages if isinstance(content := m.get("content"), str | list))
        parts = (part for m in messages if isinstance(content := m.get("content"), list) for part in content)
        size += sum(len(text) for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str))
        return await run_encoding(run, size)

    def render(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. See `encode`."""
        template = self._template(tokenizer)
        continues = continues_final_message(messages, add_generation_prompt, continue_final_message)
        merged = self._default_kwargs | dict(kwargs or {})
        clash = sorted(set(_OURS) & merged.keys())
        if clash:
            param = f"chat_template_kwargs.{clash[0]}"
            raise InvalidRequestError(f"{param} is set by the server; it is not for chat_template_kwargs", param=param)
        prepared = template_messages(messages, self._format(template), knows_developer="developer" in template)
        return tokenizer.render_chat(
            prepared,
            template=template,
            tools=None,
            add_generation_prompt=False if continues else add_generation_prompt is not False,
            continue_final_message=continues,
            **merged,
        )

    def _template(self, tokenizer: Tokenizer) -> str:
        template = self._override or tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        if not template:
            raise InvalidRequestError(
                "this model has no chat template: start the server with --chat-template FILE, or use /v1/completions",
                param="messages",
            )
        return template

    def _format(self, template: str) -> ContentFormat:
        found = self._formats.get(template)
        if found is None:
            found = self._formats[template] = detect_content_format(template)
            logger.info("Detected chat template content format: %s", found)
        return found


def load_template(name: str) -> str:
    """Reads --chat-template: a .jinja (or other text) file, a .json file with a "chat_template", or a built-in name.

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
        source = path.read_text(encoding="utf-8")
        template = json.loads(source).get("chat_template") if path.suffix == ".json" else source
    except (OSError, ValueError, AttributeError) as exc:
        raise ConfigError(f"--chat-template {name}: cannot be read: {exc}") from exc
    if isinstance(template, list):  # Hugging Face's form of several templates
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise ConfigError(f'--chat-template {name}: has no "chat_template" text')
    return template
