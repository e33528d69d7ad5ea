"""The public names, and what the command says of itself."""

import tomllib
from pathlib import Path

import pytest

import palladio

ROOT = Path(__file__).resolve().parents[2]

PUBLIC_NAMES = [
    "CheckpointError",
    "ConfigError",
    "ContextLengthError",
    "DeadlineError",
    "Engine",
    "EngineConfig",
    "EngineDeadError",
    "EngineNotReadyError",
    "GenerationError",
    "InvalidRequestError",
    "ModelNotFoundError",
    "OverloadedError",
    "PalladioError",
    "RequestAbortedError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


def test_public_names_are_pinned():
    assert sorted(palladio.__all__) == PUBLIC_NAMES
    assert set(PUBLIC_NAMES) <= set(dir(palladio))


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_can_be_had(name):
    assert getattr(palladio, name) is getattr(palladio, name)


def test_errors_are_one_tree():
    for name in PUBLIC_NAMES:
        if name.endswith("Error"):
            assert issubclass(getattr(palladio, name), palladio.PalladioError)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Enigne'"):
        palladio.Enigne  # noqa: B018


def test_version_is_the_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert palladio.__version__ == project["version"]
