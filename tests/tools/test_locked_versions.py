"""The versions that development installs get: scripts/constraints."""

import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "scripts" / "constraints").glob("*.txt"))


def project_requirements() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = itertools.chain.from_iterable(project["dependency-groups"].values())
    extras = itertools.chain.from_iterable(project["project"]["optional-dependencies"].values())
    yield from map(Requirement, project["build-system"]["requires"])
    yield from map(Requirement, project["project"]["dependencies"])
    yield from map(Requirement, extras)
    yield from (Requirement(one) for one in groups if isinstance(one, str))  # the others include a group


def locked_versions(file: Path) -> dict[str, str]:
    """Versions by the packages' names."""
    pins = [Requirement(line) for line in file.read_text("utf-8").splitlines() if not line.startswith("#")]
    found: dict[str, str] = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(found) == len(pins)
    assert all(re.fullmatch(r"\d[\w.]*", version) for version in found.values())
    return found


def needed_by(requirement: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """The name of a package and of all that it brings, as far as they are installed here."""
    for extra in ("", *requirement.extras):
        key = (canonicalize_name(requirement.name), extra)
        if key in seen:
            continue
        seen.add(key)
        yield key[0]
        try:
            needs = map(Requirement, requires(requirement.name) or ())
        except PackageNotFoundError:
            continue
        for need in needs:
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                yield from needed_by(need, seen)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_locked_version_is_one_that_the_project_takes(file):
    locked = locked_versions(file)
    outside = [
        f"{one}: {locked.get(canonicalize_name(one.name), 'missing')}"
        for one in project_requirements()
        if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0.dev0"), prereleases=True)
    ]
    assert not outside, f"run scripts/lock: {file.name} and pyproject.toml differ in {outside}"


def test_each_package_that_another_one_brings_is_locked():
    command = [ROOT / "scripts" / "constraints-of", sys.executable]
    file = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    assert file in FILES
    seen: set[tuple[str, str]] = set()
    needed = set(itertools.chain.from_iterable(needed_by(one, seen) for one in project_requirements()))
    assert {"jaxlib", "pydantic-core", "execnet"} <= needed  # of jax, of fastapi and of pytest-xdist
    free = needed - set(locked_versions(file))
    assert not free, f"run scripts/lock: {file.name} has no version of {sorted(free)}"


@pytest.mark.parametrize(
    "name",
    ["Makefile", ".ci/run", *sorted(f"scripts/{one.name}" for one in (ROOT / "scripts").iterdir() if one.is_file())],
)
def test_only_what_users_install_is_free(name):
    """Every other install goes through scripts/install-locked; the clients' environments have a file of their own."""
    free = {
        "Makefile": ["--quiet --upgrade 'pip>=25.1'", "--editable '.[cpu]'"],
        "scripts/install-locked": [
            '--quiet --constraint "$locked" pip',
            '--constraint "$locked" --build-constraint "$locked" "$@" && exit',
        ],
        "scripts/lock": ["--quiet uv"],
        "scripts/real-packages": [  # each of its packages has a version and a hash
            '--quiet --no-deps --require-hashes --target "$folder.new" --requirement $wanted'
        ],
    }
    text = (ROOT / name).read_text("utf-8")
    assert re.findall(r"-m pip install (.*)", text) == free.get(name, [])
