"""Families from outside of the tree: a file of --family-module, and entry points of installed packages."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from palladio.commands.models.architectures import rows
from palladio.model.base.errors import ConfigError
from palladio.model.config.architectures import ARCHITECTURES
from palladio.model.config.config import ModelConfig
from palladio.model.config.registry import find_family
from tests.docs.worked_example import PAGES, steps_of
from tests.model.driver import Driver, load
from tests.tiny_model import make_checkpoint, tiny_config, write_json

NAME = "HeliumForCausalLM"


def example() -> str:
    """The file of the worked example."""
    (step,) = (step for step in steps_of(PAGES / "model-family.md") if step.path == "helium/palladio_helium.py")
    return step.text


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "palladio_helium.py"
    path.write_text(example(), encoding="utf-8")
    return path


@pytest.fixture
def package(file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path as pip fills it."""
    info = file.parent / "palladio_helium-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: palladio-helium\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[palladio.families]\nhelium = palladio_helium\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(file.parent))
    monkeypatch.delitem(sys.modules, "palladio_helium", raising=False)
    return file.parent


def helium(**keys: object) -> dict[str, object]:
    config = tiny_config("llama_biased", rope_scaling=None, attention_bias=False, head_dim=8)
    return config | {"architectures": [NAME], **keys}


def test_a_file_describes_its_architecture(file: Path) -> None:
    config = ModelConfig.from_hf(helium(), None, str(file))
    assert (config.architecture, config.layers[0].norm.scaling) == (NAME, "float32")
    assert config.layers[0].attention.rope.is_interleaved
    assert find_family(config.family).defaults["head_dim"] == 128
    assert ModelConfig.from_hf(tiny_config("qwen2"), None, str(file)).family == "Qwen2ForCausalLM"


def test_an_installed_package_needs_no_flag(package: Path, tmp_path: Path) -> None:
    """Its weights are found as well, and it computes another model than Llama."""
    path = make_checkpoint(tmp_path / "llama", "llama_biased", rope_scaling=None, attention_bias=False)
    llama, its = load(path)
    write_json(path / "config.json", helium())
    config, model = load(path)
    assert config.family == NAME
    found, other = (Driver(each, one, 1).step([[5, 6, 7, 8]])[0] for each, one in ((config, model), (llama, its)))
    assert np.isfinite(found).all()
    assert np.abs(found - other).max() > 0.01


def test_a_file_is_asked_before_the_tree(file: Path) -> None:
    file.write_text(example().replace(NAME, "LlamaForCausalLM"), encoding="utf-8")
    config = tiny_config("llama_biased", rope_scaling=None)
    assert ModelConfig.from_hf(config, None, str(file)).layers[0].attention.rope.is_interleaved
    assert not ModelConfig.from_hf(config).layers[0].attention.rope.is_interleaved


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file"),
        ("FAMILIES = {", "cannot be run: SyntaxError"),
        ("import nothing_of_this_name", "cannot be run: ModuleNotFoundError"),
        ("x = 1", "FAMILIES must map"),
        ("FAMILIES = {'A': 1}", "FAMILIES must have names of classes and values of Family"),
    ],
)
def test_a_wrong_file_is_named(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "family.py"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_hf(helium(), None, str(path))
    assert str(error.value).startswith(f"--family-module {path}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_package_that_cannot_be_imported_is_named_only_where_it_is_needed(package: Path) -> None:
    (package / "palladio_helium.py").write_text("raise OSError('no disk')", encoding="utf-8")
    assert ModelConfig.from_hf(tiny_config("qwen2"))
    with pytest.raises(ConfigError, match=r"entry point helium = palladio_helium of palladio\.families cannot be"):
        ModelConfig.from_hf(helium())


@pytest.mark.parametrize("name", ["{file}::HeliumForCausalLM", "../x", "a b", ""])
def test_no_config_json_names_a_file(name: str, file: Path) -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        ModelConfig.from_hf(helium(architectures=[name.format(file=file)]))


def test_the_nearest_architecture_is_named() -> None:
    for name, near in (("LlamaForCausalML", "LlamaForCausalLM"), ("Qwen4ForCausalLM", "Qwen[23]ForCausalLM")):
        with pytest.raises(ConfigError, match=f"'{name}' is not supported; the nearest that is: {near}; all: "):
            ModelConfig.from_hf(helium(architectures=[name]))


def test_the_table_says_what_layers_keep() -> None:
    """As the tiny models have them; a cell that says windows is of families where a file may ask for some."""
    from tests.tiny_model import FAMILIES

    kinds: dict[str, set[str]] = {}
    for family in FAMILIES:
        config = ModelConfig.from_hf(tiny_config(family))
        found = kinds.setdefault(config.architecture, set())
        found |= {"states"} if config.has_states else {"latents"} if config.latent is not None else set()
        found |= {"windows" for layer in config.layers if layer.attention.window is not None}
    for name, found in kinds.items():
        cell = {part for part in ("windows", "latents", "states") if part in ARCHITECTURES[name].cache}
        assert found <= cell, name
        assert cell - found <= {"windows"}, name


def test_products_are_found_by_name() -> None:
    for word in ("Qwen3.6", "MiniMax-M2.5", "Kimi-K2-Thinking", "pythia", "gpt-2"):
        assert any(row.has(word) for row in rows()), word
    assert all(re.fullmatch(r"\w+", row.architecture) and row.models and row.cache and row.compared for row in rows())
