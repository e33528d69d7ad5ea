"""Distribution of tests over workers: a file each, but all files that use one shared fixture together; the longest
first.

With the longest last, one worker would run them while the others are idle. Earlier runs in this checkout measured how
long tests take, and pytest's cache keeps it; without that, large files count as long ones.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parent.parent
SHARED = frozenset(("shared_server", "embedded_model_server", "tiny"))
"""Session fixtures that take seconds to make: one worker runs all tests that use the same one."""
_RECORD = "palladio/seconds"  # in pytest's cache: id of a test → seconds


class WorkOrder(LoadFileScheduling):
    """Gives a worker the tests of one scope at a time: first unmeasured ones, the largest files first, then the others
    by their seconds."""

    _is_sorted = False

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self._is_sorted:
            self._is_sorted = True
            for name in sorted_scopes(self.workqueue, recorded(self.config)):
                self.workqueue.move_to_end(name)
        super()._assign_work_unit(node)


class Recorder:
    """Adds the durations of this run's tests to the record. A worker has none: the process that started it records."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = round(self._seconds.get(report.nodeid, 0.0) + report.duration, 3)

    def pytest_sessionfinish(self) -> None:
        cache = getattr(self._config, "cache", None)  # -p no:cacheprovider
        if cache is not None and self._seconds:
            known = {**recorded(self._config), **self._seconds}
            cache.set(_RECORD, {test: known[test] for test in sorted(known) if (ROOT / _file(test)).is_file()})


def recorded(config: pytest.Config) -> dict[str, float]:
    """Seconds by the ids of tests, as earlier runs took them."""
    cache = getattr(config, "cache", None)
    return {} if cache is None else dict(cache.get(_RECORD, {}))


def sorted_scopes(scopes: Mapping[str, Iterable[str]], seconds: Mapping[str, float]) -> list[str]:
    """
    Args:
        scopes: name → ids of its tests.
        seconds: of tests that have run before.
    """

    def rank(name: str) -> tuple[bool, float]:
        lasted = sum(seconds.get(test, 0.0) for test in scopes[name])
        return lasted > 0, -(lasted or sum(map(_size, {_file(test) for test in scopes[name]})))

    return sorted(scopes, key=rank)


def scope(nodeid: str) -> str:
    """The tests that one worker runs as a whole: the name of a shared fixture, or of a file."""
    file = _file(nodeid)
    return shared_fixture(file) or file


@functools.cache
def shared_fixture(file: str) -> str | None:
    """The shared fixture that a file's tests use, directly or through other fixtures."""
    path = ROOT / file
    conftests = [folder / "conftest.py" for folder in reversed(path.relative_to(ROOT).parents)]
    fixtures: dict[str, tuple[str, ...]] = {}
    for conftest in conftests:
        fixtures |= _arguments(ROOT / conftest)
    reaching = [name for name in fixtures if _leads_to(name, fixtures) is not None]
    if not reaching or not re.search(rf"\b({'|'.join(reaching)})\b", _text(path)):
        return None
    own = _arguments(path)
    used = (_leads_to(name, {**fixtures, **own}) for name in own)
    return next(filter(None, used), None)


def _leads_to(name: str, fixtures: Mapping[str, Sequence[str]]) -> str | None:
    """The shared fixture that a test or a fixture gets, directly or through others."""
    left, seen = [name], set()
    while left:
        name = left.pop()
        if name in SHARED:
            return name
        if name not in seen:
            seen.add(name)
            left += fixtures.get(name, ())
    return None


@functools.cache
def _arguments(path: Path) -> dict[str, tuple[str, ...]]:
    """Names of a file's tests and fixtures, each with its arguments."""
    return {
        node.name: tuple(argument.arg for argument in node.args.args)
        for node in _functions(ast.parse(_text(path)))
        if node.name.startswith("test_") or any("fixture" in ast.unparse(mark) for mark in node.decorator_list)
    }


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _size(file: str) -> int:
    return len(_text(ROOT / file))
