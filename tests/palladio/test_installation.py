"""The name that pip knows this project by, and what is installed beside it."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from palladio import __version__
from palladio.runtime.core.start import installation
from palladio.runtime.core.start.installation import DISTRIBUTION, IMPORT_NAME, find_conflicts
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.multihost.config_digest import config_digest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOREIGN = "Machine learning framework for clusters"


def install(folder, name, version, summary, kind="dist-info"):
    info = folder / f"{name.replace('-', '_')}-{version}.{kind}"
    info.mkdir(parents=True)
    file = "METADATA" if kind == "dist-info" else "PKG-INFO"
    (info / file).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n")


def test_the_names_are_those_of_the_project():
    assert (PROJECT["name"], PROJECT["version"]) == (DISTRIBUTION, __version__)
    assert PROJECT["description"].startswith(installation._SUMMARY)
    assert installation._SUMMARY in (ROOT / "scripts" / "drop-earlier-name").read_text()


def test_no_page_or_error_says_to_install_the_other_project():
    """`pip install palladio` and `palladio[extra]` are another project; ours comes from its repository."""
    names = re.compile(rf"\b{IMPORT_NAME}\[\w|pip install[^\n`]*[ '\"]{IMPORT_NAME}\b(?![-/])")
    folders = ("palladio", "http", "runtime", "model", "pallas_kernels", "docs", "deploy", "scripts", "benchmarks")
    files = [ROOT / "README.md", ROOT / "Makefile", *(file for name in folders for file in (ROOT / name).rglob("*.*"))]
    told = [file for file in files if file.suffix in ("", ".md", ".py", ".sh", ".yaml", ".toml") and file.is_file()]
    assert len(told) > 200
    assert [str(file) for file in told if names.search(file.read_text(encoding="utf-8"))] == []
    assert names.search("pip install 'palladio[tpu]'")
    assert names.search("pip install palladio")


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ([], []),
        ([(DISTRIBUTION, __version__, PROJECT["description"])], []),
        ([(IMPORT_NAME, "0.1.0", PROJECT["description"])], []),  # of before the project had another name, and alone
        (
            [(IMPORT_NAME, "0.1.0", PROJECT["description"]), (DISTRIBUTION, __version__, PROJECT["description"])],
            ["palladio 0.1.0 in ", "under its earlier name", "`pip uninstall palladio`", "the command `palladio`"],
        ),
        (
            [(IMPORT_NAME, "2.0.4rc1", FOREIGN), (DISTRIBUTION, __version__, PROJECT["description"])],
            ["palladio 2.0.4rc1 in ", "different project", "`pip uninstall palladio`", "install palladio-serve again"],
        ),
        ([(IMPORT_NAME, "2.0.4rc1", FOREIGN)], ["a different project with the same package name"]),
        (
            [(DISTRIBUTION, "9.9", PROJECT["description"])],
            ["palladio-serve 9.9 is installed in ", f"but version {__version__}", "PYTHONPATH"],
        ),
    ],
)
def test_what_is_told_of_other_installations(tmp_path, installed, words):
    for name, version, summary in installed:
        install(tmp_path, name, version, summary)
    install(tmp_path, IMPORT_NAME, "0.0.9", FOREIGN, "egg-info")  # what a build left
    told = find_conflicts([str(tmp_path)])
    assert len(told) == bool(words)
    assert [word for word in words if word not in told[0]] == []


@pytest.mark.slow
def test_another_project_of_that_name_is_told_at_start(tmp_path):
    """A real start, whose modules are also looked for in a folder with the other project's metadata."""
    install(tmp_path, IMPORT_NAME, "2.0.4rc1", FOREIGN)
    code = (
        "import logging; logging.basicConfig(level='WARNING')\n"
        "from palladio import Engine\nfrom palladio.flags.default_model import default_model_path\n"
        "Engine(default_model_path(), device='cpu', tp_size=64)"  # too many: it ends before it compiles
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert f"palladio 2.0.4rc1 in {tmp_path} is a different project" in done.stderr
    assert "--tp-size 64" in done.stderr.splitlines()[-1]


def command(*folders):
    """The command `palladio version`, with folders that come before ours."""
    code = "import sys; sys.argv[1:] = ['version']; from palladio_serve import main; sys.exit(main())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*folders, ROOT)))}
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("file", ["palladio/__init__.py", "palladio.py"])
def test_the_command_does_not_run_another_package_of_that_name(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise ImportError('of another project')\n")
    done = command(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    where = (tmp_path / file).parent if "/" in file else tmp_path / file
    assert done.stderr.startswith(f"error: Python finds the package palladio in {where}, ")
    assert "`pip uninstall palladio`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_runs_ours(tmp_path):
    (tmp_path / "palladio").mkdir()  # no package: a folder that happens to be called so
    done = command(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


def test_nothing_asks_for_the_version_of_another_project(tmp_path, monkeypatch):
    """Where palladio is not installed under any name, as in a source tree, hosts still compare versions."""
    real = importlib.metadata.version

    def version(name):
        assert name != IMPORT_NAME
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    shutil.copytree(ROOT / "palladio" / "default_checkpoint", tmp_path / "model")
    assert config_digest(EngineConfig.from_flags({"model_path": str(tmp_path / "model")}))["palladio"] == __version__
