"""`palladio list --architectures`: what is served, by the names of architectures and of models."""

import json

import pytest

from palladio.__main__ import main
from palladio.model.config.architectures import ARCHITECTURES
from palladio.model.config.encoders import ENCODERS


def names_of(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[:-1] if not line.startswith(" ")]


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--architectures"]) == 0
    assert names_of(capsys.readouterr().out) == sorted({**ARCHITECTURES, **ENCODERS})


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Qwen3.6", "Qwen3_5MoeForConditionalGeneration"),
        ("minimax-m2.5", "MiniMaxM2ForCausalLM"),
        ("Kimi-K2-Thinking", "DeepseekV3ForCausalLM"),
        ("GPT2LM", "GPT2LMHeadModel"),
        ("all-minilm", "BertModel"),
    ],
)
def test_a_product_is_found(word: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--architectures", word, "--json"]) == 0
    found = {row["architecture"]: row for row in json.loads(capsys.readouterr().out)}
    assert name in found
    assert word.lower() in f"{name} {found[name]['models']}".lower()


def test_nothing_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--architectures", "no such model"]) == 1
    assert names_of(capsys.readouterr().out) == []


@pytest.mark.parametrize("flags", [["--servable"], ["--download-dir", "/x"]])
def test_it_takes_no_flags_of_caches(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["list", "--architectures", "Qwen", *flags])
    assert ended.value.code == 2
    assert "--architectures" in capsys.readouterr().err
