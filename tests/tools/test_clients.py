"""scripts/clients: what it reads out of a client's run, and that a failed check cannot pass for a good one."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow  # of `make clients`, which nothing else runs either

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ENVIRONMENT = dict.fromkeys(("PALLADIO_URL", "PALLADIO_KEY", "PALLADIO_MODEL", "PALLADIO_MODEL_DIR"), "x")


@pytest.fixture(scope="module")
def clients() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)  # as for a script that is run
        yield load()


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("clients_script", SCRIPTS / "clients.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_every_client_has_a_script_and_a_version(clients: ModuleType) -> None:
    rows = clients.read_clients(SCRIPTS / "clients.toml")
    checks = SCRIPTS / "client_checks"
    assert {row.script for row in rows} == {path.name for path in checks.glob("check_*")}
    assert all(re.fullmatch(r"@?[\w/-]+ \d+(\.\d+)+(, @?[\w/-]+ \d+(\.\d+)+)*", row.versions) for row in rows)
    assert all(set(row.bare) <= {clients.package_name(one) for one in row.packages} for row in rows)


def test_the_documentation_has_the_same_versions(clients: ModuleType) -> None:
    text = (SCRIPTS.parent / "docs" / "api" / "errors.md").read_text(encoding="utf-8")
    table = text.split("<!-- clients -->\n")[1].split("\n\n")[0].splitlines()[2:]
    documented = [tuple(cell.strip().replace("`", "") for cell in line.split("|")[1:3]) for line in table]
    rows = clients.read_clients(SCRIPTS / "clients.toml")
    assert documented == [(row.name, row.versions) for row in rows]


@pytest.mark.parametrize(
    ("text", "code", "passed", "failed"),
    [
        ("noise\ncheck ok: chat\n", 0, ("chat",), 0),
        ("check ok: chat\ncheck FAILED: stream: AssertionError: no\n", 1, ("chat",), 1),
        ("check ok: chat\nKilled\n", 137, ("chat",), 1),  # it did not come to the end
        ("check ok: chat\n", None, ("chat",), 1),  # it took too long
        ("", 0, (), 1),  # a script without checks
    ],
)
def test_outcome_of_a_run(
    clients: ModuleType, text: str, code: int | None, passed: tuple[str, ...], failed: int
) -> None:
    outcome = clients.read_outcome(text, code)
    assert (outcome.passed, len(outcome.failed)) == (passed, failed)


def test_unknown_names_are_told(clients: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no client is named Nobody; there are 'openai"):
        clients.chosen(clients.read_clients(SCRIPTS / "clients.toml"), ["Nobody"])


def test_lm_evals_numbers_are_those_of_transformers(clients: ModuleType) -> None:
    pytest.importorskip("torch")
    maker = importlib.import_module("make_lm_eval_numbers")
    kept = json.loads(maker.FILE.read_text(encoding="utf-8"))
    found = maker.compute(kept["documents"])
    assert found["generated"] == kept["generated"]
    assert found["rolling"] == pytest.approx(kept["rolling"], abs=1e-4)
    for row, expected in zip(found["choices"], kept["choices"], strict=True):
        assert [value for value, _ in row] == pytest.approx([value for value, _ in expected], abs=1e-4)
        assert [is_greedy for _, is_greedy in row] == [is_greedy for _, is_greedy in expected]


def test_a_failed_check_is_reported_and_the_others_go_on(clients: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "some_checks.py"
    script.write_text(
        "from checks import equal, raises, run_checks\n"
        "def check_wrong_value(): equal(1, 2)\n"
        "async def check_wrong_coroutine(): equal(1, 2)\n"
        "def check_missing_error():\n    with raises(ValueError): pass\n"
        "def check_other_message():\n    with raises(ValueError, 'left'): raise ValueError('right')\n"
        "def check_right():\n    with raises(ValueError, 'right'): raise ValueError('right')\n"
        "run_checks()\n"
    )
    environment = ENVIRONMENT | {"PYTHONPATH": str(SCRIPTS / "client_checks")}
    done = subprocess.run(
        [sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True, check=False, cwd=tmp_path
    )
    outcome = clients.read_outcome(done.stdout, done.returncode)
    assert done.returncode == 1
    assert outcome.passed == ("right",)
    names = [line.split(":")[0] for line in outcome.failed]
    assert names == ["wrong value", "wrong coroutine", "missing error", "other message"]
