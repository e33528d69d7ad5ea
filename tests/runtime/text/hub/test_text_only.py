"""A flag that asks to read pictures: accepted where a model has none, an error where it has."""

import json
from pathlib import Path

import pytest

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.hub.servable_config import check_text_only


@pytest.mark.parametrize("name", ["vision_config", "audio_config"])
def test_a_model_with_an_encoder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", name: {}}))
    with pytest.raises(ConfigError, match=r"^--enable-multimodal: pictures and sound are not read") as error:
        check_text_only(tmp_path, "--enable-multimodal")
    assert name in str(error.value)


@pytest.mark.parametrize("content", ['{"model_type": "qwen3"}', "[]", "{", ""])
def test_any_other_file_is_left_to_the_reader_of_models(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    check_text_only(tmp_path, "--enable-multimodal")
    check_text_only(tmp_path / "none", "--enable-multimodal")
