"""The response template that a route of parsers on their own is to use."""

from palladio.http.generation.context import Context
from palladio.http.reasoning.registry import AUTO, BY_TEMPLATE
from palladio.http.response_templates.spec import ResponseSpec
from palladio.runtime.interface.errors import InvalidRequestError


def asked_template(context: Context, name: str | None, field: str) -> ResponseSpec | None:
    """The served model's, if the request asks for it, or for no parser by its name; None: another one reads.

    Args:
        name: of the parser.
        field: that names it.

    Raises:
        InvalidRequestError: the model has none, or is served with another parser.
        EngineNotReadyError: it is not known yet which the model has.
    """
    if name not in (None, AUTO, *BY_TEMPLATE):
        return None
    context.require_ready()
    spec = None if context.engine.tokenizer is None else context.facts.response
    if spec is None and name in BY_TEMPLATE:
        message = "{param} {name}: the served model is not read by a response template"
        raise InvalidRequestError.of(message, param=field, name=name)
    return spec
