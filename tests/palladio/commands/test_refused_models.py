"""A model whose text model is of another kind is refused before a process starts, whichever command it is given to."""

import subprocess
from pathlib import Path

import pytest

from palladio.__main__ import main
from tests.tiny_model import tiny_config, write_json


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "{folder}"],
        ["plan", "--model-path", "{folder}"],
        ["plan", "--model-path", "{folder}/config.json"],
        ["convert", "{folder}", "{folder}/out"],
    ],
    ids=" ".join,
)
def test_a_text_model_of_another_kind_is_refused_at_once(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **options: object) -> None:
            raise AssertionError(f"{args} is started")

    text = tiny_config("mistral") | {"model_type": "mamba"}
    write_json(tmp_path / "config.json", {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text})
    monkeypatch.setattr(subprocess, "Popen", Started)
    assert main([word.format(folder=tmp_path) for word in words]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: text_config.model_type: 'mamba' is not supported in Mistral3ForConditionalGeneration; supported: "
        "mistral, ministral3, mistral4"
    )
