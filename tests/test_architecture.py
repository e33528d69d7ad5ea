"""The house rules, checked on the source itself (rooms: test_rooms.py): who may import whom, what
a host-side room may touch, sizes, habits.

Each rule is a function from a parsed file to the places that break it. The allow-lists below are the documented
exceptions; an entry that is no longer needed fails too, so that the lists only shrink.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOMS, ROOT, SOURCES

PUBLIC_RUNTIME_ROOMS = {"interface", "front", "text", "telemetry", "folders"}  # what http may import
JAX_ROOMS = {"core", "devices", "execution", "planning"}  # of the runtime; all others are host Python
JAX_FILES = {
    "runtime/multihost/bootstrap.py": "joins jax's own meeting of hosts",
    "runtime/telemetry/profiler.py": "starts jax's profiler",
}
KERNEL_LIBRARIES = {"jax", "numpy"}  # what pallas_kernels may import, beside the standard library and each other
OPTIONAL_EXTRAS = {"IPython", "obstore", "opentelemetry", "torch"}  # may be imported inside a function
ENVIRONMENT_READERS = {
    "palladio/__main__.py": "the command line",
    "palladio/server/early_start.py": "the command line",
    "palladio/server/launch.py": "the command line",
    "palladio/test/test_utils.py": "SGLang's switch, which tutorials ask for",
    "palladio/ray/served_app.py": "a process that Ray has started: in the place of the command line",
    "palladio/ray/hosts.py": "hands the environment on to the child, with PYTHONPATH; reads nothing from it",
    "palladio/commands/chat/run_worker.py": "the command line of a server of its own",
    "palladio/commands/plan/plan.py": "hands the environment on to the child, with PYTHONPATH; reads nothing from it",
    "runtime/process/engine_child.py": "hands the environment on to the child, with PYTHONPATH; reads nothing from it",
}
LOCAL_IMPORTS = {
    "http/storage/storage.py:_open_postgresql": "psycopg, an optional extra, is imported all over that module",
    "model/loading/orbax_weights.py:_save": "orbax takes seconds to import, and few need it",
    "model/loading/orbax_weights.py:_restore": "as above",
    "runtime/grammar/compiler.py:json_format_of": "as below",
    "runtime/grammar/compiler.py:load_backend": "llguidance: an engine without it serves all but grammars",
}

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_KERNEL_LINES = 400, 80, 200
LONG_FILES: dict[str, str] = {}  # file → why
LONG_FUNCTIONS: dict[str, str] = {}  # file:function → why
MUTABLE_GLOBALS = {"pallas_kernels/cpu_native/library.py:_loaded": "XLA knows a call's name once a process"}
BROAD_EXCEPT = {  # file:function → which border it guards
    "http/batches/batch_worker.py:BatchWorker._drive": "a batch",
    "http/batches/line_runner.py:LineRunner._ask": "a request, which is a line of a batch",
    "http/responses/background_responses.py:BackgroundResponses._run": "a request whose answer has gone out",
    "http/responses/unfinished_responses.py:UnfinishedResponses._prepare": "a request whose answer has gone out",
    "http/middleware.py:RequestMiddleware.__call__": "a request",
    "http/generation/event_stream.py:EventStream._run": "a request whose status has gone out",
    "runtime/front/async_engine.py:AsyncEngine._launch": "the engine's start",
    "runtime/process/engine_loop.py:run_engine": "the engine's start",
    "runtime/process/engine_main.py:main": "the engine's start, which imports it again and tells what is wrong",
    "runtime/grammar/fair_threads.py:_run_job": "a job, whose future carries it on",
    "runtime/process/engine_loop.py:run_engine_loop": "the engine",
    "runtime/execution/compiled/persistent_cache.py:_folder_problem": "an object store: each library has its errors",
    "runtime/execution/compiled/persistent_cache.py:_at_url": "as above",
    "runtime/execution/compiled/persistent_cache.py:_can_be_written": "as above",
    "http/response_templates/reader_process.py:_answers": "a checkpoint's patterns and a library's parser",
    "runtime/execution/compiled/program_cache.py:ProgramCache._run": "a program that is built behind the engine",
    "runtime/front/requests/request_table.py:RequestTable._hand_on": "a request",
    "runtime/front/control/supervisor.py:Supervisor._start": "the engine's start",
    "model/config/registry.py:_families_of_entry_point": "an imported module from outside may raise anything",
    "model/config/registry.py:_families_of_file": "a file from outside may raise anything while it runs",
    "runtime/core/trials/runner.py:TrialRunner.run": "a kernel, which may raise anything",
    "runtime/core/trials/runner.py:TrialRunner.expected": "the reference of a kernel, which may raise anything",
    "runtime/core/plan/class_tokens.py:vocabulary": "tokenizers raises bare Exception for a malformed file",
    "runtime/text/tokenizers/tokenizer.py:Tokenizer.load": "tokenizers raises bare Exception for a malformed file",
    "runtime/text/tokenizers/tokenizer_probe.py:panics_as_errors": "Rust's panics are no Exception, and have no name",
}
GETATTR = {  # file:function → whose type it asks
    "model/loading/layout/parameters.py:_choose_kinds": "flax's modules: a path names their attributes",
    "runtime/front/requests/sglang_requests.py:_prompts": "ids of any sequence type that a caller brings",
    "runtime/text/tokenizers/tokenizer.py:Tokenizer.__init__": "transformers' tokenizers",
    "runtime/text/tokenizers/tokenizer.py:Tokenizer._token_id": "transformers' tokenizers",
}


def check(broken: list[str], allowed: dict[str, str] | None = None) -> None:
    """Fails on every broken place that is not allowed, and on every allowance that nothing needs."""
    allowed = allowed or {}
    places = {place.split(" ", 1)[0] for place in broken}
    new = [place for place in broken if place.split(" ", 1)[0] not in allowed]
    assert not new, "\n" + "\n".join(new)
    assert not set(allowed) - places, f"no longer needed: {sorted(set(allowed) - places)}"


def room_of(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "palladio":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "palladio"


def test_imports_point_downwards():
    broken = []
    for source in SOURCES:
        for line, name in source.imports():
            room = None if name.startswith("palladio.version.") else room_of(name)
            if room is not None and ROOMS.index(room) < ROOMS.index(source.room):
                broken.append(f"{source.path}:{line} {source.room} imports {name}")
    check(broken)


def test_nothing_is_imported_by_its_folder_name():
    broken = [
        f"{source.path}:{line} {name}"
        for source in SOURCES
        for line, name in source.imports()
        if name.split(".")[0] in ("model", "runtime", "pallas_kernels")
    ]
    check(broken)


def test_http_sees_only_the_public_rooms_of_the_runtime():
    broken = []
    for source in SOURCES:
        if source.room != "http":
            continue
        for line, name in source.imports():
            parts = name.split(".")
            inner = room_of(name) == "runtime" and (len(parts) < 3 or parts[2] not in PUBLIC_RUNTIME_ROOMS)
            if inner or room_of(name) in ("model", "pallas_kernels") or parts[0] in ("jax", "jaxlib", "flax"):
                broken.append(f"{source.path}:{line} {name}")
    check(broken)


def test_only_the_rooms_of_the_device_import_jax():
    broken = [
        f"{source.path} line {line} {name}"
        for source in SOURCES
        if source.room == "runtime" and source.path.split("/")[1] not in JAX_ROOMS
        for line, name in source.imports()
        if name.split(".")[0] in ("jax", "jaxlib", "flax")
    ]
    check(broken, JAX_FILES)


def test_kernels_import_only_jax():
    allowed = KERNEL_LIBRARIES | sys.stdlib_module_names
    broken = [
        f"{source.path}:{line} {name}"
        for source in SOURCES
        if source.room == "pallas_kernels"
        for line, name in source.imports()
        if room_of(name) != "pallas_kernels" and name.split(".")[0] not in allowed
    ]
    check(broken)


def test_the_lists_above_name_files_that_exist():
    assert all((ROOT / path).is_file() for path in ENVIRONMENT_READERS)


def test_the_environment_is_read_in_the_command_line_only():
    broken = []
    for source in SOURCES:
        if source.path in ENVIRONMENT_READERS:
            continue
        broken += [
            f"{source.path}:{node.lineno} {ast.unparse(node)}"
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv")
        ]
        broken += [
            f"{source.path}:{line} {name}" for line, name in source.imports() if name in ("os.environ", "os.getenv")
        ]
    check(broken)


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name | ast.Attribute)
        and (value.func.id if isinstance(value.func, ast.Name) else value.func.attr)
        in ("dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "bytearray", "WeakValueDictionary")
    )


def _changes(tree: ast.Module, name: str) -> bool:
    """Whether something in the file writes into the module-level `name`, by item, by method or by `global`."""
    methods = {
        "append",
        "extend",
        "insert",
        "add",
        "update",
        "setdefault",
        "pop",
        "popitem",
        "clear",
        "remove",
        "discard",
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Global) and name in node.names:
            return True
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store | ast.Del)
            and ast.unparse(node.value) == name
        ):
            return True
        if isinstance(node, ast.Attribute) and node.attr in methods and ast.unparse(node.value) == name:
            return True
    return False


def test_no_mutable_module_globals():
    """Tables are fine as long as nobody writes into them; `global` statements never are."""
    broken = []
    for source in SOURCES:
        broken += [
            f"{source.path}:{node.lineno} global" for node in ast.walk(source.tree) if isinstance(node, ast.Global)
        ]
        for node in source.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and _is_mutable(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [ast.unparse(target) for target in targets if ast.unparse(target) != "__all__"]
                constant = all(re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name) for name in names)
                if not constant or any(_changes(source.tree, name) for name in names):
                    broken.append(f"{source.path}:{','.join(names)} line {node.lineno}")
    check(broken, MUTABLE_GLOBALS)


def test_imports_are_at_the_top():
    broken = []
    for source in SOURCES:
        for name, function in source.functions():
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                    if not {module.split(".")[0] for module in modules} <= OPTIONAL_EXTRAS:
                        broken.append(f"{source.path}:{name} line {node.lineno}")
    check(broken, LOCAL_IMPORTS)


def test_no_getattr_or_hasattr():
    """A heuristic: asking a value for its attributes by name is left to the few places that meet foreign types."""
    broken = [
        f"{source.owner(node.lineno)} {ast.unparse(node)}"
        for source in SOURCES
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr")
    ]
    check(broken, GETATTR)


def test_broad_excepts_only_at_the_borders():
    broken = []
    for source in SOURCES:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ExceptHandler) and ast.unparse(node.body[-1]) != "raise":  # which passes it on
                kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                kinds = node.args
            else:
                continue
            if any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds):
                broken.append(f"{source.owner(node.lineno)} line {node.lineno}")
    check(broken, BROAD_EXCEPT)


@pytest.mark.parametrize("folder", ["http", "tests/http", "tests"])
def test_no_init_file_that_would_shadow_the_standard_library(folder):
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_file_is_named_like_a_standard_module():
    tops = [source for source in SOURCES if source.path.count("/") == 1 and not source.path.endswith("__init__.py")]
    clashing = [source.path for source in tops if Path(source.path).stem in sys.stdlib_module_names - {"__main__"}]
    assert clashing == []


def test_files_hold_one_concept():
    lengths = {source.path: source.text.count("\n") for source in SOURCES}
    tests = (ROOT / "tests").glob("**/*.py")
    lengths |= {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n") for path in tests}
    check([f"{path} {lines} lines" for path, lines in lengths.items() if lines > MAX_FILE_LINES], LONG_FILES)


def test_functions_are_short():
    broken = []
    for source in SOURCES:
        limit = MAX_KERNEL_LINES if source.room == "pallas_kernels" else MAX_FUNCTION_LINES
        for name, node in source.functions():
            length = node.end_lineno - node.lineno + 1
            if length > limit:
                broken.append(f"{source.path}:{name} {length} lines")
    check(broken, LONG_FUNCTIONS)


def test_no_notes_to_self():
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    check(
        [
            f"{source.path}:{source.text[: m.start()].count(chr(10)) + 1}"
            for source in SOURCES
            for m in words.finditer(source.text)
        ]
    )


def test_modules_say_what_they_are():
    check([source.path for source in SOURCES if source.text.strip() and ast.get_docstring(source.tree) is None])
