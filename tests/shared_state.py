"""Finds the state that our process keeps outside its objects, in the source itself: results may depend on earlier work.

Not found, because no earlier work can affect it: loggers without handlers, values that objects cache for themselves
(`functools.cached_property`), caches that are made and dropped within a call, and a class that its own decorator
registers with jax: the class does not exist without that.
"""

import ast
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
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
        *(
            "re.compile",
            "re.escape",
            "frozenset",
            "tuple",
            "str",
            "float",
            "int",
            "range",
            "len",
            "sorted",
            "map",
            "filter",
        ),
        *("enumerate", "zip", "max", "min", "sum", "set", "dict", "list", "type", "get_args", "TypeVar", "ParamSpec"),
        *(
            "Path",
            "MappingProxyType",
            "types.MappingProxyType",
            "dict.fromkeys",
            "dataclasses.replace",
            "struct.Struct",
        ),
        *(
            "dataclasses.fields",
            "np.dtype",
            "jnp.dtype",
            "np.finfo",
            "jnp.finfo",
            "np.float32",
            "np.zeros",
            "np.asarray",
        ),
        *(
            "math.log2",
            "str.maketrans",
            "string.Formatter",
            "logging.getLogger",
            "enum.auto",
            "platform.python_version",
        ),
        *("Field", "field", "dataclasses.field", "PlainValidator", "WithJsonSchema", "Depends", "ConfigDict"),
        *("PartitionSpec", "plgpu.TilingTransform", "plgpu.SwizzleTransform"),
    )
)
# Of tables among them, those that something writes into are found as such.
_CONSTANT_TYPES: Final = (
    *("tuple", "frozenset", "str", "int", "float", "bool", "bytes", "Mapping", "dict", "list", "Callable", "Sequence"),
    *("Iterator", "Iterable", "HostArray"),
)
_MAKERS: Final = ("threading", "asyncio", "multiprocessing", "queue", "weakref", "collections", "contextvars", "zmq")


@dataclasses.dataclass(frozen=True)
class _Walked:
    """A file and its relevant nodes, each with the name of the function or class around it."""

    source: Source
    nodes: list[tuple[str, ast.AST]]

    @functools.cached_property
    def imported(self) -> dict[str, str]:
        """Full names of what the file imports, by the names that it has for them."""
        found = {}
        for _, node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return found


@dataclasses.dataclass(frozen=True)
class _Classes:
    """Names of our classes whose values never change, and of all our classes; by full name, what functions return."""

    frozen: frozenset[str]
    all: frozenset[str]
    returns: dict[str, str]


def find_state(sources: Iterable[Source] = SOURCES) -> dict[str, str]:
    """The kind of each, by `path:name`."""
    walked = [_Walked(source, list(_owned(source.tree))) for source in sources]
    known = _known(walked)
    written = {name for each in walked for name in _written(each)}
    return {
        f"{each.source.path}:{name}": kind
        for each in walked
        for name, kind in (*_of_module(each, known, written), *_of_functions(each))
    }


def find_registries(sources: Iterable[Source] = SOURCES) -> set[str]:
    """Tables of a module that hold more than texts and numbers: functions, classes, values. As `path:name`."""
    return {
        f"{source.path}:{name}"
        for source in sources
        for name, value in _assigned(source.tree.body)
        if (table := _table_of(value)) is not None
        and any(isinstance(node, ast.Name | ast.Call | ast.Lambda) for item in table for node in ast.walk(item))
    }


def _known(walked: list[_Walked]) -> _Classes:
    classes = [node for each in walked for _, node in each.nodes if isinstance(node, ast.ClassDef)]
    frozen = {
        node.name
        for node in classes
        if any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)
        or any(_dotted(base).split(".")[-1] in ("NamedTuple", "Enum", "Flag") for base in node.bases)
        or any(keyword.arg == "frozen" for keyword in node.keywords)
    }
    returns = {
        f"{each.source.module}.{owner}.{node.name}".replace("..", "."): ast.unparse(node.returns)
        for each in walked
        for owner, node in each.nodes
        if isinstance(node, ast.FunctionDef) and node.returns is not None
    }
    return _Classes(frozenset(frozen), frozenset(node.name for node in classes), returns)


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names and values of a module, or of a class; `__all__` aside."""
    for node in body:
        if isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test):  # of a main program nobody else knows
            yield from _assigned((*node.body, *node.orelse))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((ast.unparse(target), node.value) for target in targets if ast.unparse(target) != "__all__")


def _of_module(each: _Walked, known: _Classes, written: set[str]) -> Iterator[tuple[str, str]]:
    source, bodies = each.source, [("", each.source.tree.body)]
    bodies += [(f"{node.name}.", node.body) for _, node in each.nodes if isinstance(node, ast.ClassDef)]
    for prefix, body in bodies:
        for name, value in _assigned(body):
            kind = _kind_of(source.module, each.imported, value, known)
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


def _kind_of(module: str, imported: Mapping[str, str], value: ast.expr, known: _Classes) -> str | None:
    for node in _at_import(value):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        short, full = name.split(".")[-1], imported.get(name, f"{module}.{name}")
        if name.split("(")[0] in _CACHES:
            return "a cache"
        if name in ("jax.jit", "jit"):
            return "compiled programs"
        if short == "ContextVar":
            return "a context variable"
        if name in _VALUES:
            continue
        if short in known.all:
            is_constant = short in known.frozen
        elif full in known.returns:
            head = known.returns[full].split("[")[0].split(" |")[0]
            is_constant = head in _CONSTANT_TYPES or head in known.frozen
        else:  # threading.Lock() may change; table.items() and text.replace() are new values
            root = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            is_constant = isinstance(node.func, ast.Attribute) and ast.unparse(root) not in _MAKERS
        if not is_constant:
            return "a value of a class that may change"
    return None


def _at_import(value: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a value that are computed with it: not the bodies of its functions."""
    yield value
    if not isinstance(value, ast.Lambda):
        for child in ast.iter_child_nodes(value):
            yield from _at_import(child)


def _of_functions(each: _Walked) -> Iterator[tuple[str, str]]:
    modules = {"cls", *each.imported}
    for owner, node in each.nodes:
        if isinstance(node, ast.Call):
            name = f".{_dotted(node.func)}"
            end = next((end for end in _OF_PROCESS if name.endswith(f".{end}")), None)
            if end is not None and not name.startswith(".self."):  # such as a logger in no tree
                yield f"{owner} {end}", "of the whole process"
            if name.endswith(".__subclasses__"):
                yield owner, "a registry of subclasses"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Subscript) and _dotted(target.value) in ("os.environ", "sys.modules"):
                    yield f"{owner} {_dotted(target.value)}", "of the whole process"
                if isinstance(target, ast.Attribute) and _dotted(target.value) in modules:
                    yield f"{owner} {_dotted(target)}", "a flag of a class or module"


_COUNTED: Final = (
    *(ast.Call, ast.Assign, ast.AugAssign, ast.Global, ast.Subscript, ast.Attribute, ast.Import, ast.ImportFrom),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)
_NAMED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _owned(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    left: list[tuple[str, ast.AST]] = [("", tree)]
    while left:
        owner, node = left.pop()
        if isinstance(node, _COUNTED):
            yield owner, node
        inner = f"{owner}.{node.name}".lstrip(".") if isinstance(node, _NAMED) else owner
        left += [
            (inner, child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.Constant | ast.Name)
        ]


def _written(each: _Walked) -> Iterator[str]:
    """Full names of what the file writes into: by item, by method or by `global`; of its own, or what it imports."""
    source = each.source
    names = {name: f"{source.module}.{name}" for name, _ in _assigned(source.tree.body)} | each.imported
    for _, node in each.nodes:
        target = None
        if isinstance(node, ast.Global):
            yield from (names[name] for name in node.names if name in names)
        elif isinstance(node, ast.Subscript):
            target = node.value if isinstance(node.ctx, ast.Store | ast.Del) else None
        elif isinstance(node, ast.Attribute) and node.attr in _WRITES:
            target = node.value
        if target is not None:
            first, _, rest = _dotted(target).partition(".")
            if first in names:
                yield ".".join(filter(None, (names[first], rest)))


def _dotted(node: ast.expr) -> str:
    """A name with its attributes; of any other value, its attributes alone."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def _table_of(value: ast.expr) -> list[ast.expr] | None:
    """The values of a table that is a module's; None: it is none."""
    if (
        isinstance(value, ast.Call)
        and ast.unparse(value.func).split(".")[-1] in ("MappingProxyType", "dict")
        and value.args
    ):
        return _table_of(value.args[0])
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        parts = [_table_of(value.left), _table_of(value.right)]
        return None if None in parts else [item for part in parts for item in part or ()]
    if isinstance(value, ast.Dict):
        return value.values
    return [value.value] if isinstance(value, ast.DictComp) else None
