"""Tokenizers and templates that would keep a server from answering: one error at the start, which names the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palladio.http.prompts.template_format import load_template
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.templates.template_check import check_stored_template
from palladio.runtime.text.tokenizers.bpe_tokenizers import merges_by_rank
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.tiny_tokenizer import CHATML_TEMPLATE, build_tiny_tokenizer


def change_json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return damage


def pattern(text: str) -> Callable[[Path], None]:
    split = {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}
    return change_json("tokenizer.json", lambda content: content.update(pre_tokenizer=split))


def added(*texts: str) -> Callable[[Path], None]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokens = [{"id": 384 + number, "content": text, **flags} for number, text in enumerate(texts)]
    return change_json("tokenizer.json", lambda content: content["added_tokens"].extend(tokens))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pattern without end": (pattern("(a+)+$"), "fails on a text: .*retry-limit.* without nested repetitions"),
    "one of a rare letter": (pattern("(ß+)+$"), "fails on a text: .*retry-limit"),
    "100,000 tokens": (added(*map(str, range(100_000))), r"tokenizer\.json has 100,\d+ added tokens, over the limit"),
    "a long token": (added("x" * 5_000_000), r"tokenizer\.json has an added token of 5,000,000 characters"),
    "a long special token": (
        change_json("tokenizer_config.json", lambda found: found.update(additional_special_tokens=["x" * 5000])),
        r"tokenizer_config\.json has an added token of 5,000 characters",
    ),
    "a long token for padding": (
        change_json("tokenizer_config.json", lambda found: found.update(pad_token="x" * 5000)),
        r"tokenizer_config\.json has an added token of 5,000 characters",
    ),
    "a template of 9 MB": (
        lambda folder: (folder / "chat_template.jinja").write_text("x" * 9_000_000),
        r"chat_template\.jinja has more than 131,072 bytes",
    ),
    "a template that is a number": (
        change_json("tokenizer_config.json", lambda found: found.update(chat_template=5)),
        "must be a text, found int",
    ),
    "deep settings": (
        lambda folder: (folder / "tokenizer_config.json").write_text("[" * 5000 + "]" * 5000),
        r"tokenizer_config\.json as JSON: it nests",
    ),
    "a billion layers": (
        lambda folder: (
            (folder / "config.json").write_text('{"model_type": "qwen3", "num_hidden_layers": 1000000000}') and None
        ),
        r"config\.json: num_hidden_layers must be at most 4096",
    ),
    "a billion labels": (
        lambda folder: (folder / "config.json").write_text('{"text_config": {"num_labels": 1000000000}}'),
        r"config\.json: num_labels must be at most 4096",
    ),
    "a link elsewhere": (lambda folder: (folder / "vocab.txt").symlink_to("/etc/passwd"), "is a link to /etc/passwd"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_tokenizer_that_cannot_be_used_is_one_error(tmp_path: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    damage(build_tiny_tokenizer(tmp_path))
    with pytest.raises(ConfigError, match=words) as error:
        Tokenizer.load(tmp_path)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "template",
    [
        "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
        "{% if x %}" * 3000 + "{% endif %}" * 3000,
        "{% if x %}" * 110 + "{% endif %}" * 110,
        "{{ x" + "|trim" * 200 + " }}",
        "{{ x }}" * 5000,
        " " * 200_000,
    ],
)
def test_a_template_that_is_too_much_to_compile_is_refused_and_named(tmp_path: Path, template: str) -> None:
    with pytest.raises(ConfigError, match="DIR: the chat template cannot be compiled: "):
        check_stored_template({"default": CHATML_TEMPLATE, "tool_use": template}, "DIR")
    (tmp_path / "a.jinja").write_text(template)
    with pytest.raises(ConfigError, match=r"--chat-template .*a\.jinja: the chat template cannot be compiled"):
        load_template(str(tmp_path / "a.jinja"))


def test_a_template_that_is_merely_malformed_is_left_to_requests() -> None:
    check_stored_template("{% if %}", "DIR")


def test_vocabularies_of_long_tokens_are_not_divided_in_all_ways() -> None:
    with pytest.raises(ValueError, match="the longest one has 20,000 characters"):
        merges_by_rank({"x" * 20_000: 0}, [0])
