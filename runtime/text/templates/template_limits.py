"""What a chat template may be at most: jinja2 takes a minute to compile a megabyte, and longer for deep ones."""

from typing import Final

import jinja2
from jinja2 import nodes

MAX_TEMPLATE_BYTES: Final = 128 << 10  # published ones have up to 30 kB
_MAX_TAGS: Final = 4000  # published ones have up to 700
_MAX_DEPTH: Final = 100  # of nodes; Python compiles 100 blocks in each other, and 200 parentheses


class TemplateTooLargeError(jinja2.TemplateSyntaxError):
    """It is well-formed, but too long or too deep."""


def check_size(template: str) -> None:
    """
    Raises:
        TemplateTooLargeError: it is too long.
    """
    size, tags = len(template.encode("utf-8", "replace")), template.count("{%") + template.count("{{")
    if size > MAX_TEMPLATE_BYTES:
        raise TemplateTooLargeError(f"it has {size:,} bytes, over the limit of {MAX_TEMPLATE_BYTES:,}", 1)
    if tags > _MAX_TAGS:
        raise TemplateTooLargeError(f"it has {tags:,} tags, over the limit of {_MAX_TAGS:,}", 1)


def check_depth(template: nodes.Template) -> None:
    """
    Raises:
        TemplateTooLargeError: it nests too deeply.
    """
    level: list[nodes.Node] = [template]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    raise TemplateTooLargeError(f"it nests blocks or expressions more than {_MAX_DEPTH} deep", level[0].lineno)
