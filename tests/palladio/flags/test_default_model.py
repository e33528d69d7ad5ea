"""The embedded default model: a Hugging Face directory like any other, which transformers reads as we do."""

import hashlib
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from palladio.commands.chat import run
from palladio.commands.chat.chat import read_settings
from palladio.flags.default_model import DEFAULT_MODEL_NAME, PUBLISHED_MODEL_NAME, default_model_path, published_model
from palladio.http.pages.page_files import page_files
from palladio.http.prompts.reasoning_detection import ModelTraits, choose_family
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.detection import choose_format
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.model.driver import Driver, load

ROOT = Path(__file__).resolve().parents[3]
MODEL = default_model_path()
MAX_BYTES = 10_000_000

# Whoever changes the weights changes the version in DEFAULT_MODEL_NAME and this.
DIGESTS = {"palladio-default-v3": "813a2b62c9c7f21f"}

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(MODEL)


def test_it_is_what_its_name_says():
    assert DIGESTS[DEFAULT_MODEL_NAME] == hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()[:16]


def test_the_chat_page_tells_it_from_others_and_names_a_published_model():
    text = page_files()["chat/main.js"].content.decode()
    pattern = re.search(r"EMBEDDED = /(.+)/;", text)[1]
    assert re.search(pattern, DEFAULT_MODEL_NAME)
    assert not re.search(pattern, PUBLISHED_MODEL_NAME)
    assert f"palladio serve {published_model().name}" in text


@pytest.mark.parametrize("model", [DEFAULT_MODEL_NAME, PUBLISHED_MODEL_NAME])
def test_a_chat_with_it_names_the_command_for_a_published_model(model, capsys, monkeypatch):
    class Server:
        client = None

        async def wait_ready(self):
            return model, {}

        def is_alive(self):
            return True

    monkeypatch.setattr(run, "talk", lambda *args: 0)
    args = run.parser().parse_args([])
    assert run._chat(Server(), args, read_settings(args), {}) == 0
    assert ("palladio run smollm2" in capsys.readouterr().err) == (model == DEFAULT_MODEL_NAME)


def test_it_is_small_enough_to_ship():
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < MAX_BYTES


def test_it_comes_with_its_provenance():
    text = (MODEL / "README.md").read_text(encoding="utf-8")
    assert "training/run" in text
    assert "Apache-2.0" in text


def test_tensors_are_those_of_the_config():
    config = json.loads((MODEL / "config.json").read_text())
    with safe_open(MODEL / "model.safetensors", "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    assert len(slices) == 2 + 11 * config["num_hidden_layers"]
    assert {part.get_dtype() for part in slices.values()} == {"BF16"}
    assert slices["model.embed_tokens.weight"].get_shape() == [config["vocab_size"], config["hidden_size"]]


def test_tokenizer_gives_back_any_text(tokenizer):
    config = json.loads((MODEL / "config.json").read_text())
    generation = json.loads((MODEL / "generation_config.json").read_text())
    assert tokenizer.vocab_size == config["vocab_size"]
    assert tokenizer.eos_token_id == config["eos_token_id"]
    assert generation["eos_token_id"] == [tokenizer.special_id("<|im_end|>"), tokenizer.special_id("<|endoftext|>")]
    text = "Hello, wörld! 日本語 🎉\n\tdef f(x): return 12345"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_name_is_the_same_tokens_wherever_it_stands(tokenizer):
    """So that copying it is copying tokens."""
    name = tokenizer.encode("Kalvorind")
    for before, after in (("I am ", "."), ('{"name": "', '"}'), ("", ", hello"), ("\n", "\n")):
        ids = tokenizer.encode(f"{before}Kalvorind{after}")
        assert name == ids[len(tokenizer.encode(before)) :][: len(name)]


def test_template_with_tools_and_with_thinking(tokenizer):
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            },
        },
    }
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "w", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "rain"},
        {"role": "assistant", "content": "<think>\nIt rains.\n</think>\nRain."},
        {"role": "user", "content": "Thanks"},
    ]
    settings = {"tools": [tool], "add_generation_prompt": True, "enable_thinking": True}
    assert tokenizer.render_chat(conversation, template=tokenizer.chat_template, **settings) == (
        "<|im_start|>system\nBe brief.\n\nYou can call these tools:\n"
        "get_weather(city:string,unit:celsius|fahrenheit) Current weather in a city\n"
        'To call one, answer <tool_call>\n{"name": "its name", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "w", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nRain.<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_the_server_sees_its_thoughts_and_calls_without_a_flag(tokenizer):
    family = choose_family(HttpConfig().reasoning_parser, ModelTraits(str(MODEL), "qwen3", tokenizer.chat_template))
    assert family is not None
    assert family.name == "qwen3"
    found = choose_format("auto", template=tokenizer.chat_template, model_type="qwen3", tokenizer=tokenizer)
    assert found.name == "qwen25"


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")
def test_transformers_agrees(tokenizer):
    from tests.model import hf_oracle

    prompt = tokenizer.encode(
        tokenizer.render_chat(QUESTION, template=tokenizer.chat_template, add_generation_prompt=True)
    )
    config, model = load(MODEL)
    ours = Driver(config, model, 1).step([prompt])[0]
    theirs, _ = hf_oracle.run(MODEL, [prompt], 1)
    np.testing.assert_allclose(ours, theirs[0], atol=1e-4, rtol=0)
