"""Tokenizers of checkpoints without tokenizer.json give the ids of tiktoken and sentencepiece."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "stored_tokenizers.json").read_text(encoding="utf-8"))
CHAT = "{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}"


def write(folder: Path, name: str, **config: Any) -> Path:
    """A case's files, with more settings in tokenizer_config.json."""
    folder.mkdir(exist_ok=True)
    for file, data in CASES[name]["files"].items():
        (folder / file).write_bytes(base64.b64decode(data))
    settings = CASES[name]["config"] | config
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", list(CASES))
def test_ids_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    found = Tokenizer.load(write(tmp_path, name))
    case = CASES[name]
    wrong = [text for text, ids in zip(case["texts"], case["ids"], strict=True) if text and found.encode(text) != ids]
    assert wrong == []
    assert len(case["texts"]) > 40
    decoded = case.get("decoded", case["texts"])
    for ids, text in zip(case["ids"], decoded, strict=True):
        own = ids[1:] if ids[:1] == [1] and name != "kimi" else ids
        assert found.decode(own, skip_special_tokens=False) == text
        stream = found.new_stream(skip_special_tokens=False)
        streamed = "".join(stream.push(token) for token in own) + stream.flush()
        assert streamed == text


def test_special_tokens_of_kimi(tmp_path: Path) -> None:
    found = Tokenizer.load(write(tmp_path, "kimi"))
    size = found.vocab_size - 256
    assert (found.bos_token_id, found.eos_token_id) == (size, size + 1)
    assert found.special_id("<|im_end|>") == size + 2
    shown = "<|tool_calls_section_begin|>"  # named, but no special token
    assert (found.special_id(shown), found.added_id(shown)) == (None, size + 11)
    assert found.decode([size + 2, size + 11, size + 12]) == shown
    assert found.render_chat([{"role": "user", "content": "Hi"}]) == "Hi"
    (tmp_path / "chat_template.jinja").write_text(CHAT)
    assert Tokenizer.load(tmp_path).render_chat([{"role": "user", "content": "Hi"}]) == "Hi!"


def test_grammars_see_the_bytes_of_every_token(tmp_path: Path) -> None:
    found = Tokenizer.load(write(tmp_path, "kimi"))
    text = "机器学习 🙂 def f():\n"
    assert b"".join(map(found.token_bytes, found.encode(text))) == text.encode()
    assert json.loads(found.to_json())["model"]["type"] == "BPE"


def test_tokens_that_a_config_renames_and_adds(tmp_path: Path) -> None:
    """As InternLM 2 does with numbers that its model file leaves unused."""
    plain = Tokenizer.load(write(tmp_path / "plain", "llama"))
    last = plain.vocab_size
    unused = plain.encode("Paris", add_special_tokens=False)[-1]
    added = {str(unused): {"content": "<|im_end|>", "special": True}, str(last): {"content": "<x>", "special": False}}
    config = {"added_tokens_decoder": added, "eos_token": "<|im_end|>", "add_eos_token": True}
    found = Tokenizer.load(write(tmp_path / "renamed", "llama", **config))
    assert found.vocab_size == last + 1
    assert (found.special_id("<|im_end|>"), found.added_id("<x>")) == (unused, last)
    ids = found.encode("a<|im_end|><x>")
    assert (ids[0], ids[-3:]) == (1, [unused, last, unused])
    assert found.eos_token_id == unused
    assert found.encode("a", add_special_tokens=False) == plain.encode("a", add_special_tokens=False)


def test_a_space_before_what_follows_a_special_token_is_left_out_where_the_config_says_so(tmp_path: Path) -> None:
    usual, newer = (Tokenizer.load(write(tmp_path / str(legacy), "llama", legacy=legacy)) for legacy in (True, False))
    assert newer.encode("the") == usual.encode("the")
    assert newer.encode("</s>the")[:2] == usual.encode("</s>the")[:2] == [1, 2]
    assert usual.encode("</s>the")[2:] == usual.encode("the")[1:]
    assert newer.decode(newer.encode("</s>the")[2:]) == "the"
    assert newer.encode("</s>the")[2:] != usual.encode("the")[1:]


@pytest.mark.parametrize(
    ("name", "file", "data", "told"),
    [
        ("kimi", "tiktoken.model", b"IQ== 0\nIg== 2\n", "the ranks of tiktoken.model are not 0 to 1"),
        ("kimi", "tiktoken.model", b"IQ== 0\nno\n", "line 2 of tiktoken.model is no token and its rank"),
        ("kimi", "tiktoken.model", b"!!! 0\n", "is not base64"),
        ("kimi", "tokenizer_config.json", b'{"tokenizer_class": "X"}', "tiktoken.model of a tokenizer_class 'X'; supp"),
        ("tekken", "tekken.json", b'{"config": {}}', "tekken.json is malformed: KeyError('vocab')"),
        ("llama", "tokenizer.model", b"IQ== 0\nIg== 1\n", "tokenizer.model is in tiktoken's format, as in Meta's"),
        ("llama", "tokenizer.model", b"\x0a\x7f", "the sentencepiece model is truncated"),
        ("llama", "tokenizer.model", b"", "the sentencepiece model has no pieces"),
        ("llama", "tokenizer_config.json", b'{"eos_token": "<x>"}', "its eos_token '<x>' is not in the vocabulary"),
        (
            "llama",
            "tokenizer_config.json",
            b'{"added_tokens_decoder": {"99999": {"content": "<x>"}}}',
            "its added token '<x>' has the number 99999, but would be ",
        ),
    ],
)
def test_what_cannot_be_read_is_named(name: str, file: str, data: bytes, told: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    (tmp_path / file).write_bytes(data)
    with pytest.raises(ConfigError) as error:
        Tokenizer.load(tmp_path)
    assert told in str(error.value)
    assert "--tokenizer-path" in str(error.value)
