"""--config FILE: flags of a YAML file, as SGLang and vLLM read it.

Keys are flags without their dashes; a list gives a flag several values, an object becomes JSON.
"""

import importlib
import json
import math
from pathlib import Path
from typing import Any, Final

from palladio.flags.options import Option, options_of_object
from palladio.runtime.interface.errors import ConfigError

_MAX_BYTES: Final = 1 << 20
_MAX_NODES: Final = 10_000  # with every alias written out: a file of flags has some dozens
_MAX_DEPTH: Final = 50
_SWITCHES: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BOOL, _NULL, _MERGE = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read_config_file(path: str) -> list[Option]:
    """Read a configuration file.

    Raises:
        ConfigError: the file cannot be read, is no YAML object, has a key twice, or its aliases make it too large. The
            message names the file and the line.
    """
    node = _compose(path)
    if node is None:
        return []
    if node.id != "mapping":
        raise ConfigError(f"--config {path}: must hold flags as `name: value`, one a line")
    _check_size(path, node)
    values: dict[str, tuple[Any, int]] = {}
    for key, value in _items(path, node):
        name = key.value.strip().lstrip("-").replace("_", "-")
        if name == "config":
            raise ConfigError(f"--config {path}, line {_line(key)}: a configuration file names no other one")
        if name in values:
            raise ConfigError(f"--config {path}, line {_line(key)}: {name} is there already, in line {values[name][1]}")
        values[name] = (_flag_value(path, value), _line(key))
    return options_of_object(values, f"--config {path}")


def _compose(path: str) -> Any:
    """Read the file as a tree of PyYAML's nodes, which have lines and build no objects; None: it is empty."""
    yaml: Any = importlib.import_module("yaml")  # only this flag needs it
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path} is not UTF-8 text") from None
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"--config {path} is larger than {_MAX_BYTES} bytes")
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigError(f"--config {path}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config {path} is not valid YAML: {error}") from None


def _check_size(path: str, root: Any) -> None:
    """Refuse a document that its aliases make large. An alias is the same node again, so each is counted once."""
    sizes: dict[int, int] = {}

    def size(node: Any, depth: int) -> int:
        known = sizes.get(id(node))
        if known == 0 or depth > _MAX_DEPTH:
            raise ConfigError(
                f"--config {path}, line {_line(node)}: an alias leads into itself, or values nest too deep"
            )
        if known is None:
            sizes[id(node)] = 0  # until it is counted
            sizes[id(node)] = known = 1 + sum(size(child, depth + 1) for child in _children(node))
        if known > _MAX_NODES:
            raise ConfigError(
                f"--config {path}, line {_line(node)}: its aliases stand for more than {_MAX_NODES} values"
            )
        return known

    size(root, 0)


def _children(node: Any) -> list[Any]:
    if node.id == "mapping":
        return [child for pair in node.value for child in pair]
    return list(node.value) if node.id == "sequence" else []


def _items(path: str, node: Any) -> list[tuple[Any, Any]]:
    for key, _ in node.value:
        if key.id != "scalar" or key.tag == _MERGE:
            raise ConfigError(f"--config {path}, line {_line(key)}: a key must be a word")
    return list(node.value)


def _flag_value(path: str, node: Any) -> Any:
    """Give a flag's value: True, False, None, the word as it is written, a list of words, or JSON of what nests."""
    if node.id == "scalar":
        return _scalar(node)
    value = _plain(path, node)
    if isinstance(value, list) and all(child.id == "scalar" for child in node.value):
        return [child.value for child in node.value]
    return value if isinstance(value, list) else json.dumps(value, ensure_ascii=False)


def _scalar(node: Any) -> Any:
    """Numbers stay as they are written, so that 32k and 0.90 reach the flag's own reader."""
    if node.tag == _NULL:
        return None
    return _SWITCHES.get(node.value.lower(), node.value) if node.tag == _BOOL else node.value


def _plain(path: str, node: Any) -> Any:
    """Give a value within a list or an object, with the types that JSON has."""
    if node.id == "mapping":
        found: dict[str, Any] = {}
        for key, value in _items(path, node):
            if key.value in found:
                raise ConfigError(f"--config {path}, line {_line(key)}: {key.value} is there twice")
            found[key.value] = _plain(path, value)
        return found
    if node.id == "sequence":
        return [_plain(path, child) for child in node.value]
    return _number(path, node) if node.tag in _NUMBERS else _scalar(node)


def _number(path: str, node: Any) -> int | float:
    """Read a number as YAML does: .7, 1_0 and 0x10 too. JSON has no infinities."""
    yaml: Any = importlib.import_module("yaml")
    try:
        number = yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, IndexError):  # of a word that a tag calls a number, such as !!int ''
        number = None
    if not isinstance(number, int) and not (isinstance(number, float) and math.isfinite(number)):
        raise ConfigError(f"--config {path}, line {_line(node)}: {node.value!r} is not a number that JSON has")
    return number


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
