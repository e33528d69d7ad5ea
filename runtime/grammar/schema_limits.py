"""What a JSON schema may ask of the compiler: bounds that are looked at before it is compiled.

An object's optional properties are items in each row of the parser, whose work grows with their square.
"""

from collections.abc import Mapping

from palladio.runtime.grammar.schema_multiples import check_multiples
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.json_schemas import all_schemas

MAX_OPTIONAL = 1000  # properties of one object


def check_schema_limits(schema: object, where: str, param: str, inside: str = "") -> None:
    """
    Args:
        where: what the message says before the JSON pointer: a template of `param`.
        param: the field to blame.
        inside: the place of the schema in it.

    Raises:
        InvalidRequestError: the schema asks for too much.
    """
    try:
        check_multiples(schema)
        _check_optional(schema)
    except ValueError as error:
        raise InvalidRequestError.of(where + "{inside} at {error}", param=param, inside=inside, error=error) from None


def _check_optional(schema: object) -> None:
    for path, part in all_schemas(schema):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and len(properties) > MAX_OPTIONAL:
            required = part.get("required")
            names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
            num_optional = len(properties.keys() - names)
            if num_optional > MAX_OPTIONAL:
                raise ValueError(
                    f"{path}: the object has {num_optional} optional properties, over the limit of {MAX_OPTIONAL}: "
                    "require some of them, or put them into objects of their own"
                )
