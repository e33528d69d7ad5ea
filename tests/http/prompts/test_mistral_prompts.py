"""The built-in template of Mistral's checkpoints without one writes prompts as mistral-common does."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.reasoning_detection import ModelTraits, choose_family
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.detection import choose_format
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

HERE = Path(__file__).parent
CASES: dict[str, Any] = json.loads((HERE / "mistral_prompts.json").read_text(encoding="utf-8"))
STORED = json.loads((HERE.parents[1] / "runtime/text/tokenizers/stored_tokenizers.json").read_text(encoding="utf-8"))
TEKKEN = json.loads(base64.b64decode(STORED["tekken"]["files"]["tekken.json"]))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Tokenizer]:
    """By version."""
    found = {}
    for version, names in CASES["specials"].items():
        folder = tmp_path_factory.mktemp(f"v{version}")
        specials = [{"rank": number, "token_str": name, "is_control": True} for number, name in enumerate(names)]
        config = TEKKEN["config"] | {"version": f"v{version}"}
        content = TEKKEN | {"config": config, "special_tokens": specials}
        (folder / "tekken.json").write_text(json.dumps(content), encoding="utf-8")
        found[int(version)] = Tokenizer.load(folder)
    return found


@pytest.mark.parametrize("case", CASES["prompts"], ids=lambda case: f"{case['version']}-{case['name']}")
def test_prompts_are_those_of_the_library(case: dict[str, Any], tokenizers: dict[int, Tokenizer]) -> None:
    messages, has_tools = CASES["conversations"][case["name"]]
    tools = CASES["tools"] if has_tools else None
    tokenizer = tokenizers[case["version"]]
    text = ChatTemplate(HttpConfig()).render(tokenizer, messages, tools=tools)
    assert text == case["text"]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


def test_formats_are_recognized(tokenizers: dict[int, Tokenizer]) -> None:
    template = ChatTemplate(HttpConfig())
    found = {}
    for version, tokenizer in tokenizers.items():
        source = template.source(tokenizer, tools=True)
        form = choose_format("auto", template=source, model_type="mistral3", tokenizer=tokenizer)
        family = choose_family("auto", ModelTraits("m", "mistral3", source))
        found[version] = (form.name, form.syntax.begin("f"), family and family.name)
    assert found == {
        7: ("mistral", '{"name": "f", "arguments": ', None),
        11: ("mistral", "f[ARGS]", None),
        13: ("mistral", "f[ARGS]", "mistral"),
    }


def test_earlier_reasoning_is_written_where_there_are_marks_for_it(tokenizers: dict[int, Tokenizer]) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "c"}]
    texts = [ChatTemplate(HttpConfig()).render(tokenizers[version], said) for version in (11, 13)]
    assert texts == ["<s>[INST]a[/INST]b</s>", "<s>[INST]a[/INST][THINK]c[/THINK]b</s>"]


def test_the_template_by_name_takes_the_version_as_a_variable(tokenizers: dict[int, Tokenizer]) -> None:
    messages, _ = CASES["conversations"]["calls"]
    texts = {case["version"]: case["text"] for case in CASES["prompts"] if case["name"] == "calls"}
    for kwargs, version in (("{}", 13), ('{"tekken_version": 7}', 7)):
        config = HttpConfig(chat_template="mistral-tekken", default_chat_template_kwargs=kwargs)
        assert ChatTemplate(config).render(tokenizers[11], messages, tools=CASES["tools"]) == texts[version]
