"""What a process of ours remembers is in a table, and works when it is used as the first thing in a process."""

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import first_uses
from tests.model.format_cases import checkpoint
from tests.model.format_table import gguf
from tests.native_forms import needs_compiler
from tests.shared_state import find_registries, find_state
from tests.shared_state_table import BESIDE, STATES
from tests.source_tree import ROOT, Source
from tests.tiny_model import make_checkpoint

_STARTS = ("run", "Popen", "check_output", "create_subprocess_exec")  # of subprocess, or of asyncio
_OURS_THAT_START = ("ProcessTransport", "GrammarChecker", "TemplateReaders", "pull_model")  # processes of ours


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return find_state()


def test_all_state_is_in_the_table_and_nothing_else_is(found):
    assert found.keys() - STATES.keys() == set(), {name: found[name] for name in found.keys() - STATES.keys()}
    assert STATES.keys() - found.keys() == set(), "gone"


def test_registries_are_whole_as_they_are_written_down(found):
    """Nothing adds to one from elsewhere, so none depends on what was imported before."""
    registries = find_registries()
    assert len(registries) > 50
    assert registries & found.keys() == set()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("@functools.lru_cache(maxsize=2)\ndef f(x): ...", "f"),
        ("class C:\n    @classmethod\n    @functools.cache\n    def f(cls): ...", "C.f"),
        ("f = functools.cache(g)", "f"),
        ("SEEN = set()\ndef f(x):\n    SEEN.add(x)", "SEEN"),
        ("T = {}\ndef register(f):\n    T[f.__name__] = f", "T"),
        (
            "class C:\n    has_warned = False\n    @classmethod\n    def f(cls):\n        cls.has_warned = True",
            "C.f cls.has_warned",
        ),
        ("LOCK = threading.Lock()", "LOCK"),
        ("import os\ndef f():\n    os.environ['A'] = '1'", "f os.environ"),
        ("import jax\ndef f():\n    jax.config.update('jax_enable_x64', True)", "f jax.config.update"),
        ("import zmq\ndef f():\n    zmq.Context.instance()", "f Context.instance"),
        ("V = contextvars.ContextVar('V')", "V"),
        ("@jax.jit\ndef f(x): ...", "f"),
        ("class C:\n    def __init_subclass__(cls): ...", "C.__init_subclass__"),
        ("class C:\n    def __init__(self): self.n = 0\nONE = C()", "ONE"),
    ],
)
def test_state_that_is_new_is_found(text, name):
    assert list(find_state([Source("a.py", "palladio", "palladio.a", text)])) == [f"a.py:{name}"]


def test_constants_are_no_state():
    text = "import re\nT = {'a': 1}\nR = re.compile('a')\ndef f():\n    kept = functools.cache(g)\n    return T['a']"
    assert find_state([Source("a.py", "palladio", "palladio.a", text)]) == {}


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _functions(path: Path) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
    return found


def _seen_from(path: Path) -> Iterator[Path]:
    """The test's file, the conftests above it, and the files of tests that these import."""
    files = [path, *(folder / "conftest.py" for folder in path.parents if (folder / "conftest.py").is_file())]
    for file in files:
        yield file
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                yield from filter(Path.is_file, (ROOT / f"{name.replace('.', '/')}.py" for name in names if name))


def _starts_a_process(test: str) -> bool:
    """Whether the test, a fixture of it or a function that these call starts one; fails if there is no such test."""
    path, _, name = test.partition("::")
    known = [_functions(file) for file in dict.fromkeys(_seen_from(ROOT / path))]
    left, seen = [name.partition("[")[0]], set()
    assert left[0].startswith("test_"), test
    assert left[0] in known[0], test
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in (node for functions in known for found in functions.get(name, ()) for node in ast.walk(found)):
            if isinstance(node, ast.Attribute):
                if node.attr in _STARTS and ast.unparse(node.value) in ("subprocess", "asyncio"):
                    return True
                left.append(node.attr)
            elif isinstance(node, ast.Name):
                if node.id in _OURS_THAT_START:
                    return True
                left.append(node.id)
            elif isinstance(node, ast.arg):
                left.append(node.arg)
    return False


def test_each_row_names_a_test_that_starts_a_process_and_uses_it():
    wrong = [test for test in {state.test for state in STATES.values()} if not _starts_a_process(test)]
    assert wrong == []
    here = {place: group for group, uses in first_uses.GROUPS.items() for place in uses}
    named = {place: state.test.partition("[")[2].rstrip("]") for place, state in STATES.items()}
    assert {place: group for place, group in named.items() if group in first_uses.GROUPS} == {
        place: group for place, group in here.items() if place not in BESIDE
    }
    assert _starts_a_process("tests/test_shared_state.py::test_constants_are_no_state") is False


OTHER_GROUPS = [
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("http", "device")),
    pytest.param("native", marks=[needs_compiler, pytest.mark.slow]),
]


@pytest.mark.parametrize("group", ["text", *OTHER_GROUPS])
def test_each_is_used_first_in_a_process_of_its_own(group):
    command = [sys.executable, "-m", "tests.first_uses", group]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == first_uses.GROUPS[group].keys()


def _converted(path: Path) -> Path:
    source, out = make_checkpoint(path, "qwen3"), path.parent / "converted"
    command = [sys.executable, "-m", "palladio", "convert", str(source), str(out), "--quantization", "int4"]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    return out


FORMATS: dict[str, Callable[[Path], Path]] = {
    "AWQ": lambda path: checkpoint(path, "awq"),
    "GPTQ": lambda path: checkpoint(path, "gptq"),
    "FP8": lambda path: checkpoint(path, "fp8 with static activations"),
    "compressed-tensors": lambda path: checkpoint(path, "ct int8"),
    "GGUF": lambda path: gguf("Q4_K", path),
    "converted to int4": _converted,
}
_LOADS = """
import sys
from palladio import Engine
flags = {"skip_tokenizer_init": True, "compile": "lazy", "max_total_tokens": 256, "compilation_cache_dir": sys.argv[2]}
with Engine(sys.argv[1], **flags) as engine:
    print(engine.generate(input_ids=[5, 6, 7], sampling_params={"max_new_tokens": 4, "ignore_eos": True})["output_ids"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_stored_format_is_the_first_thing_that_a_process_loads(tmp_path, name):
    stored = FORMATS[name](tmp_path / "model")
    command = [sys.executable, "-c", _LOADS, str(stored), str(tmp_path / "xla")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 4
