"""What people run first: make, and the scripts that it calls."""

import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def plan_of_make(*words: str, **environment: str) -> str:
    """What make would run for `make serve`, made from nothing."""
    command = ["make", "--dry-run", "--always-make", "serve", *words]
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    result = subprocess.run(command, cwd=ROOT, env=ours | environment, capture_output=True, text=True, check=True)
    return result.stdout


def test_make_does_not_take_its_address_from_the_environment():
    exported = {"HOST": "x86_64-conda-linux-gnu", "PORT": "8080", "MODEL": "/somewhere", "ARGS": "--nonsense"}
    (serve,) = re.findall(r"^.*palladio serve.*$", plan_of_make(**exported), re.MULTILINE)
    assert serve.split()[1:] == ["serve", "--host", "127.0.0.1", "--port", "30000"]


def test_makes_command_line_sets_them():
    plan = plan_of_make("HOST=0.0.0.0", "PORT=31000", "MODEL=/a model", "ARGS=--page-size 8", PORT="8080")
    assert 'palladio serve --model-path "/a model" --host 0.0.0.0 --port 31000 --page-size 8\n' in plan


@pytest.mark.parametrize(
    "changed", ["pyproject.toml", "scripts/constraints/py311.txt", "scripts/constraints/py312.txt"]
)
def test_what_development_needs_is_installed_again_when_the_locked_versions_change(tmp_path, changed):
    """And `make serve` leaves what `make test` has installed."""
    for stamp in (".created", ".installed-locked", ".installed", ".installed-dev"):
        (tmp_path / stamp).touch()

    def plan(*words: str) -> list[str]:
        command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return re.findall(r"install-locked \S+ (.*)|-m (pip.*)", done.stdout)

    dev = f"{tmp_path}/.installed-dev"
    assert plan(dev) == plan(f"{tmp_path}/.installed") == []
    assert plan("-W", changed, dev) == [("--editable '.[cpu]'", ""), ("--group dev", "")]
    assert bool(plan("-W", changed, f"{tmp_path}/.installed")) == (changed == "pyproject.toml")


@pytest.fixture
def python(tmp_path):
    """A Python without torch, for which pip finds none; its version is in $VERSION."""
    path = tmp_path / "python"
    path.write_text(
        textwrap.dedent("""\
            #!/usr/bin/env bash
            case "$*" in
              *print*) echo py311 ;;
              *torch==*) echo "ERROR: No matching distribution found" >&2; exit 1 ;;
              *import\\ torch*) exit 1 ;;
              *version_info*) [ "$VERSION" = 3.11 ] ;;
              -m\\ pip*|-\\ *) ;;
              *) exit 99 ;;
            esac
        """)
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("words", "version", "status"), [((), "3.11", 0), (("--required",), "3.11", 1), (("--required",), "3.12", 0)]
)
def test_a_missing_torch_is_told_and_in_ci_refused(python, words, version, status):
    command = [ROOT / "scripts" / "install-torch", *words, python]
    done = subprocess.run(command, env=os.environ | {"VERSION": version}, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "ERROR: No matching distribution found" in done.stderr
    assert ("error: torch is missing" in done.stderr) == (status == 1)
    assert ("are skipped" in done.stdout) == (status == 0)


def test_ci_requires_torch():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    requires = next(i for i, line in enumerate(lines) if line.startswith("scripts/install-torch --required "))
    assert requires < lines.index("make test")


def test_what_builds_the_wheel_comes_with_the_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["build-system"]["requires"]) <= set(project["dependency-groups"]["test"])


@pytest.mark.parametrize(("failing", "status"), [("", 0), (".venv-3.13", 1)])
def test_each_other_python_that_is_found_is_tested(tmp_path, failing, status):
    """Shims that pyenv has for versions that are not chosen fail; the environment's own Python is left out."""
    version = "#!/bin/sh\necho 3.11\n"
    files = {
        "scripts/test-pythons": (ROOT / "scripts" / "test-pythons").read_text(),
        "env/bin/python": version,
        **{f"bin/python{one}": "#!/bin/sh\nexit 127\n" for one in ("3.11", "3.12", "3.13")},
        **{f"pyenv/versions/{one}/bin/python": "#!/bin/sh\n" for one in ("3.11.7", "3.13.0")},
        "bin/make": f'#!/bin/sh\necho "made $*"\ntest "$2" != "VENV={failing}"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    found = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYENV_ROOT": str(tmp_path / "pyenv"), "VENV": "env"}
    command = [tmp_path / "scripts" / "test-pythons", "-k", "a or b"]
    done = subprocess.run(command, env=os.environ | found, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    python = tmp_path / "pyenv" / "versions" / "3.13.0" / "bin" / "python"
    made, end = done.stdout.splitlines()
    assert made.rstrip() == f"made test VENV=.venv-3.13 PYTHON={python} ARGS=-k a\\ or\\ b"
    assert end == f"other Pythons that were found: 3.13; failed: {'3.13' if failing else 'none'}"


@pytest.mark.parametrize(("version", "named"), [("3.13", False), ("3.15", True)])
def test_a_python_that_the_locked_versions_may_not_fit_is_named_when_pip_fails(tmp_path, version, named):
    python, told = tmp_path / "python", f"import sys; sys.version_info = ({version.replace('.', ', ')})"
    python.write_text(
        textwrap.dedent(f"""\
            #!/usr/bin/env bash
            case "$*" in
              -c*) echo py312 ;;
              *editable*) exit 7 ;;
              -\\ *) sed 's/^import sys$/{told}/' | {sys.executable} "$@" ;;
            esac
        """)
    )
    python.chmod(0o755)
    command = [ROOT / "scripts" / "install-locked", python, "--editable", "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    message = f"py312.txt are tried with Python 3.11 to 3.13, and this is {version};"
    assert (message in done.stderr) == named == bool(done.stderr)


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="there are none")
def test_compilers_of_accelerators_are_fetched_once_for_a_version(tmp_path):
    """Into a folder of their own, and again when jax or a locked version has changed."""
    scripts = tmp_path / "scripts"
    shutil.copytree(ROOT / "scripts", scripts, ignore=shutil.ignore_patterns("__pycache__"))
    locked = scripts / "constraints" / "py312.txt"
    python, log, folder = tmp_path / "python", tmp_path / "pip.log", tmp_path / "compilers"
    python.write_text(
        textwrap.dedent(f"""\
            #!/usr/bin/env bash
            case $1 in
              -) cat >/dev/null; printf 'libtpu==%s\\n' "$VERSION" ;;
              -c) echo py312 ;;
              -m) [ "${{@: -1}}" = pip ] || {{ printf '%s ' "$@" >>{log}; head -n 1 "${{@: -1}}" >>{log}; }} ;;
              *) exit 99 ;;
            esac
        """)
    )
    python.chmod(0o755)
    for version, of_cuda in (("1", "13.1"), ("1", "13.1"), ("2", "13.1"), ("2", "13.2"), ("2", "13.2")):
        locked.write_text(f"nvidia-cuda-nvcc=={of_cuda}\n")
        command = [scripts / "install-compilers", python, folder]
        subprocess.run(command, env=os.environ | {"VERSION": version}, check=True)
    calls = log.read_text().splitlines()
    assert [call.split()[-1] for call in calls] == ["libtpu==1", "libtpu==2", "libtpu==2"]
    assert all(f"--constraint {locked}" in call and f"--target {folder}" in call for call in calls)


def test_without_compilers_the_smoke_test_fails(tmp_path):
    command = [ROOT / "scripts" / "aot-smoke", sys.executable, tmp_path / "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing was compiled" in done.stderr


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ("", ["test", "test-tools", "conformance", "ui", "aot-smoke"]),
        ("test", ["test"]),
        ("test-tools", ["test", "test-tools"]),
        ("aot-compilers", ["test", "test-tools", "aot-compilers"]),
        ("aot-smoke", ["test", "test-tools", "conformance", "ui", "aot-smoke"]),
        ("conformance", ["test", "test-tools", "conformance", "ui", "aot-smoke"]),
        ("ui", ["test", "test-tools", "conformance", "ui", "aot-smoke"]),
    ],
)
def test_ci_runs_all_of_its_steps_and_fails_with_any(tmp_path, failing, expected):
    """What runs beside another step fails the whole, too; the compilers' log is shown only then."""
    files = {
        ".ci/run": (ROOT / ".ci" / "run").read_text(),
        "scripts/install-torch": "#!/bin/sh\n",
        "bin/make": f'#!/bin/sh\necho "made $1"\ntest "$1" != "{failing}"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / ".ci" / "run"], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == (1 if failing else 0)
    steps = re.findall(r"made (.*)", done.stdout)
    assert [step for step in steps if ".installed" not in step] == expected


def test_the_table_of_slices_is_that_of_the_figures(tmp_path):
    page = tmp_path / "hardware.md"
    page.write_text((ROOT / "docs" / "hardware.md").read_text(encoding="utf-8"), encoding="utf-8")
    figures = ROOT / "benchmarks" / "results" / "aot-2026-11-22" / "slices.json"
    command = [sys.executable, "benchmarks/paper/slices.py", "--json", str(figures), "--write", str(page)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    assert "| Llama-3.1-8B | v5e-4 |" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [[], ["--tools"], ["-m", "slow"]])
def test_each_test_of_the_quick_tier_belongs_to_one_command(tmp_path, words):
    """Those of `scripts/test --tools` are left out of `scripts/test`, and `-m` chooses among all."""
    pytest_here = tmp_path / "pytest"
    pytest_here.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    pytest_here.chmod(0o755)
    found = {"PATH": f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment = os.environ | found | {"PALLADIO_TESTS_CACHE": str(tmp_path / "cache")}
    command = [ROOT / "scripts" / "test", *words]
    given = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    ignored = {word.removeprefix("--ignore=") for word in given if word.startswith("--ignore=")}
    named = {word for word in given if word.startswith("tests/")}
    tools = {"tests/docs", "tests/faults", "tests/tools", "tests/integration/test_blocks_of_the_docs.py"}
    assert all((ROOT / path).exists() for path in tools)
    assert ignored == (tools if not words else set())
    assert named == (tools if words == ["--tools"] else set())
    assert ("not slow and not browser" in given) == (words[:1] != ["-m"])


def test_the_tools_come_with_servers_as_users_start_them():
    command = ["make", "--dry-run", "test-tools"]
    plan = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r" scripts/(test\S*) ?(.*)", plan) == [("test", "--tools "), ("test-plain", "")]
