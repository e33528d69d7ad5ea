"""Finds what a process of ours remembers beside its objects, in the source itself: what may depend on what ran before.

Not found, because nothing can come before it: loggers without handlers, what a value keeps for itself
(`functools.cached_property`), caches that are made and dropped within a call, and a class that its own decorator makes
known to jax: nobody has the class without that.
"""

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

from tests.source_tree import SOURCES, Source

_CACHES: Final = ("functools.cache", "functools.lru_cache", "cache", "lru_cache")
# What changes a whole process, by the end of the called name.
_OF_PROCESS: Final = (
    *("atexit.register", "signal.signal", "signal.setitimer", "jax.config.update", "compilation_cache.reset_cache"),
    *("jax.ffi.register_ffi_target", "jax.monitoring.register_event_listener", "jax.distributed.initialize"),
    *("jax.monitoring.register_event_duration_secs_listener", "faulthandler.enable"),
    *("faulthandler.dump_traceback_later", "gc.freeze", "gc.disable", "gc.set_threshold", "resource.setrlimit"),
    *("logging.basicConfig", "logging.captureWarnings", "addFilter", "addHandler", "setLevel", "ctypes.CDLL"),
    *("warnings.simplefilter", "warnings.filterwarnings", "warnings.catch_warnings", "Context.instance"),
    *("sys.meta_path.insert", "sys.meta_path.append", "sys.path.insert", "sys.path.append", "sys.setswitchinterval"),
    *("sys.setrecursionlimit", "os.umask", "os.chdir", "os.nice", "os.putenv", "os.environ.update"),
    *("os.environ.setdefault", "os.environ.pop", "mimetypes.add_type", "codecs.register", "locale.setlocale"),
    *("socket.setdefaulttimeout", "random.seed", "np.random.seed", "np.seterr", "set_start_method"),
    *("asyncio.set_event_loop_policy", "threading.excepthook", "jax.clear_caches"),
)
_WRITES: Final = (
    *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear", "remove", "discard"),
    *("appendleft", "move_to_end"),
)
# Calls whose result never changes, or is found as another kind of state.
_VALUES: Final = frozenset(
    (
        *("re.compile", "re.escape", "frozenset", "tuple", "str", "float", "int", "range", "len", "sorted", "map", "filter"),
        *("enumerate", "zip", "max", "min", "sum", "set", "dict", "list", "type", "get_args", "TypeVar", "ParamSpec"),
        *("Path", "MappingProxyType", "types.MappingProxyType", "dict.fromkeys", "dataclasses.replace", "struct.Struct"),
        *("dataclasses.fields", "np.dtype", "jnp.dtype", "np.finfo", "jnp.finfo", "np.float32", "np.zeros", "np.asarray"),
        *("math.log2", "str.maketrans", "string.Formatter", "logging.getLogger", "enum.auto", "platform.python_version"),
        *("Field", "field", "dataclasses.field", "PlainValidator", "WithJsonSchema", "Depends", "ConfigDict"),
        *("PartitionSpec", "plgpu.TilingTransform", "plgpu.SwizzleTransform"),
    )
)
_CONSTANT_TYPES: Final = (
    *("tuple", "frozenset", "str", "int", "float", "bool", "bytes", "Mapping", "Callable", "Sequence", "Iterator"),
    *("StepFunction", "Read", "Iterable"),
)


@dataclasses.dataclass(frozen=True)
class _Classes:
    """Names of our classes whose values never change, of all our classes, and what our functions return."""

    frozen: frozenset[str]
    all: frozenset[str]
    returns: dict[str, str]


def find_state(sources: Iterable[Source] = SOURCES) -> dict[str, str]:
    """The kind of each, by `path:name`."""
    sources = list(sources)
    known = _known(sources)
    written = {name for source in sources for name in _written(source)}
    found: dict[str, str] = {}
    for source in sources:
        for name, kind in (*_of_module(source, known, written), *_of_functions(source)):
            found[f"{source.path}:{name}"] = kind
    return found


def find_registries(sources: Iterable[Source] = SOURCES) -> set[str]:
    """Tables of a module that hold more than texts and numbers: functions, classes, values. As `path:name`."""
    return {
        f"{source.path}:{name}"
        for source in sources
        for name, value in _assigned(source.tree.body)
        if (table := _table_of(value)) is not None
        and any(isinstance(node, ast.Name | ast.Call | ast.Lambda) for item in table for node in ast.walk(item))
    }


def _known(sources: list[Source]) -> _Classes:
    classes = [node for source in sources for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    frozen = {
        node.name
        for node in classes
        if any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)
        or any(ast.unparse(base).split(".")[-1] in ("NamedTuple", "Enum", "Flag") for base in node.bases)
        or any(keyword.arg == "frozen" for keyword in node.keywords)
    }
    returns = {
        node.name: "" if node.returns is None else ast.unparse(node.returns)
        for source in sources
        for _, node in source.functions()
    }
    return _Classes(frozenset(frozen), frozenset(node.name for node in classes), returns)


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names and values of a module, or of a class; `__all__` aside."""
    for node in body:
        if isinstance(node, ast.If):  # such as TYPE_CHECKING, or the main program
            yield from _assigned((*node.body, *node.orelse))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((ast.unparse(target), node.value) for target in targets if ast.unparse(target) != "__all__")


def _of_module(source: Source, known: _Classes, written: set[str]) -> Iterator[tuple[str, str]]:
    bodies = [("", source.tree.body)]
    bodies += [(f"{node.name}.", node.body) for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    for prefix, body in bodies:
        for name, value in _assigned(body):
            kind = _kind_of(value, known)
            if kind is not None:
                yield prefix + name, kind
            elif f"{source.module}.{prefix}{name}" in written:
                yield prefix + name, "a table that is written to"
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                if any(text.split("(")[0] in _CACHES for text in decorators):
                    yield prefix + node.name, "a cache"
                if any("jax.jit" in text for text in decorators):
                    yield prefix + node.name, "compiled programs"
                if node.name == "__init_subclass__":
                    yield prefix + node.name, "a registry of subclasses"


def _kind_of(value: ast.expr, known: _Classes) -> str | None:
    for node in ast.walk(value):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name.split("(")[0] in _CACHES:
            return "a cache"
        if name in ("jax.jit", "jit"):
            return "compiled programs"
        if name.endswith("ContextVar"):
            return "a context variable"
        short = name.split(".")[-1]
        if short in known.all:
            if short not in known.frozen:
                return "a value of a class that may change"
        elif "." not in name and short in known.returns:
            head = known.returns[short].split("[")[0]
            if head not in _CONSTANT_TYPES and head not in known.frozen:
                return "a value of a class that may change"
        elif name not in _VALUES and not isinstance(node.func, ast.Attribute):
            return "a value of a class that may change"
        elif name not in _VALUES and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            owner = node.func.value.id  # threading.Lock() is one; table.items() and text.replace() are none
            if owner in ("threading", "asyncio", "multiprocessing", "queue", "weakref", "collections", "zmq"):
                return "a value of a class that may change"
    return None


def _of_functions(source: Source) -> Iterator[tuple[str, str]]:
    modules = set(_imported(source))
    for owner, node in _owned(source.tree):
        if isinstance(node, ast.Call):
            name = f".{ast.unparse(node.func)}"
            end = next((end for end in _OF_PROCESS if name.endswith(f".{end}")), None)
            if end is not None:
                yield f"{owner} {end}", "of the whole process"
            if name.endswith(".__subclasses__"):
                yield owner, "a registry of subclasses"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                text = ast.unparse(target)
                if text.startswith(("os.environ[", "sys.modules[")):
                    yield f"{owner} {text.split('[')[0]}", "of the whole process"
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    if target.value.id == "cls" or target.value.id in modules:
                        yield f"{owner} {text}", "a flag of a class or module"


def _owned(node: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each node, with the qualified name of the function or class around it."""
    for child in ast.iter_child_nodes(node):
        yield owner, child
        is_named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from _owned(child, f"{owner}.{child.name}".lstrip(".") if is_named else owner)


def _imported(source: Source) -> dict[str, str]:
    """Full names of what the file imports, by the names that it has for them."""
    found = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _written(source: Source) -> Iterator[str]:
    """Full names of what the file writes into: by item, by method or by `global`; of its own, or what it imports."""
    names = {name: f"{source.module}.{name}" for name, _ in _assigned(source.tree.body)} | _imported(source)
    for _, node in _owned(source.tree):
        target = None
        if isinstance(node, ast.Global):
            yield from (names[name] for name in node.names if name in names)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target = node.value
        elif isinstance(node, ast.Attribute) and node.attr in _WRITES:
            target = node.value
        if target is not None:
            first, _, rest = ast.unparse(target).partition(".")
            if first in names:
                yield ".".join(filter(None, (names[first], rest)))


def _table_of(value: ast.expr) -> list[ast.expr] | None:
    """The values of a table that is a module's; None: it is none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in ("MappingProxyType", "dict") and value.args:
        return _table_of(value.args[0])
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        parts = [_table_of(value.left), _table_of(value.right)]
        return None if None in parts else [item for part in parts for item in part or ()]
    if isinstance(value, ast.Dict):
        return value.values
    return [value.value] if isinstance(value, ast.DictComp) else None
