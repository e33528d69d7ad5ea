"""What is shipped: links intact, the standard library not shadowed, the wheel the same as the tree."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.source_tree import FACE_ROOMS

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("model", "runtime", "pallas_kernels", "http")
DATA = (
    ".py",
    ".cc",
    ".h",
    ".inc",
    ".json",
    ".jinja",
    ".txt",
    ".typed",
    ".safetensors",
    ".md",
    ".html",
    ".js",
    ".css",
    ".svg",
)


@pytest.mark.parametrize("room", ROOMS)
def test_links_are_relative_and_intact(room):
    link = ROOT / "palladio" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{room}"
    assert link.is_dir()


def test_the_standard_librarys_http_is_not_shadowed_from_the_root():
    code = "import http.client, urllib.request, palladio.http.app; print(http.client.__file__)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not Path(result.stdout.strip()).is_relative_to(ROOT / "http")


def test_the_command_is_installed_as_palladio():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"palladio": "palladio_serve:main"}


def test_the_wheel_holds_the_tree(tmp_path):
    """Every file of the five folders and the embedded model, under its import name, the command, and nothing else."""
    source = tmp_path / "source"
    subprocess.run(["cp", "-RP", *map(str, _shipped_parents()), str(_make(source))], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("palladio_serve-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == _tree()


def _shipped_parents() -> list[Path]:
    return [ROOT / name for name in ("palladio", *ROOMS, "pyproject.toml", "README.md", "LICENSE", "palladio_serve.py")]


def _make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _tree() -> set[str]:
    face = ROOT / "palladio"
    own = [*face.iterdir(), *(face / "default_checkpoint").iterdir()]
    own += [file for room in FACE_ROOMS for file in (face / room).rglob("*")]
    files = {file.relative_to(ROOT).as_posix() for file in own if file.is_file()}
    for room in ROOMS:
        files |= {
            f"palladio/{file.relative_to(ROOT).as_posix()}" for file in (ROOT / room).rglob("*") if file.is_file()
        }
    unexpected = {name for name in files if not name.endswith((*DATA, ".pyc"))}
    assert not unexpected, f"not covered by package-data: {sorted(unexpected)}"
    return {name for name in files if not name.endswith(".pyc")} | {"palladio_serve.py"}
