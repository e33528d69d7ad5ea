"""Whether a chat template can be compiled, asked before a request needs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from palladio.model.files.small_files import MAX_SETTINGS_BYTES, parse_json
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.templates.chat_renderer import MAX_SECONDS, compile_template
from palladio.runtime.text.templates.template_limits import TemplateTooLargeError, check_size
from palladio.runtime.text.templates.template_meter import Meter, current_meter


def check_template(template: str) -> None:
    """Raises TemplateError, SyntaxError, RecursionError or MemoryError: it is malformed, or too much to compile."""
    token = current_meter.set(Meter(MAX_SECONDS))
    try:
        compile_template(template)
    finally:
        current_meter.reset(token)


def check_stored_template(template: object, what: str) -> None:
    """Check the template of a checkpoint or of a flag. A merely malformed one is left to the requests that need it.

    Args:
        template: one, several by name, or None.
        what: what the template is, for messages.

    Raises:
        ConfigError: it is no text, or too much to compile.
    """
    if template is None:
        return
    for text in template.values() if isinstance(template, Mapping) else [template]:
        if not isinstance(text, str):
            raise ConfigError(f"{what}: the chat template must be a text, found {type(text).__name__}")
        try:
            check_size(text)
            check_template(text)
        except (TemplateTooLargeError, SyntaxError, RecursionError, MemoryError) as error:
            why: object = error
            if isinstance(error, RecursionError):
                why = "it nests blocks or expressions too deeply"
            elif isinstance(error, TemplateTooLargeError):
                why = error.message
            raise ConfigError(f"{what}: the chat template cannot be compiled: {why}") from None
        except TemplateError:
            continue  # rendering says what is wrong


def read_template_file(path: Path) -> Any:
    """A template, or what a .json file has under "chat_template".

    Raises:
        OSError, ValueError: it cannot be read, or is too large.
    """
    with path.open("rb") as file:
        data = file.read(MAX_SETTINGS_BYTES + 1)
    if len(data) > MAX_SETTINGS_BYTES:
        raise ValueError(f"it has more than {MAX_SETTINGS_BYTES:,} bytes")
    if path.suffix != ".json":
        return data.decode("utf-8")
    found = parse_json(data, "it")
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    return found.get("chat_template")
