"""Tokenizers out of GGUF metadata encode and decode as the tokenizer.json that they were made of."""

import json
from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.model.gguf_files import write_gguf
from tests.tiny_tokenizer import CHATML_TEMPLATE, CORPUS, build_tiny_sentencepiece, build_tiny_tokenizer

OTHERS = ("naïve 東京 🙂\n\n  two  spaces 12345", "<|im_start|>user\nhi<|im_end|>", "<think>x</think>", "", " a")
TEXTS = (*CORPUS, *OTHERS)


def metadata(path: Path, **more: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes of a tokenizer.json."""
    found = json.loads((path / "tokenizer.json").read_text())
    vocabulary = {**found["model"]["vocab"], **{token["content"]: token["id"] for token in found["added_tokens"]}}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    kinds = {token["content"]: 3 if token["special"] else 4 for token in found["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in found["model"]["merges"]]
    own = {"tokens": tokens, "token_type": [kinds.get(token, 1) for token in tokens], "merges": merges} | more
    own = {f"tokenizer.ggml.{key}": value for key, value in own.items() if value is not None}
    return {"general.architecture": "qwen2", "tokenizer.chat_template": CHATML_TEMPLATE, **own}


def byte_level(path: Path, **more: Any) -> Path:
    """A GGUF file beside the tiny byte-level tokenizer."""
    build_tiny_tokenizer(path)
    found = metadata(path, **{"model": "gpt2", "pre": "gpt-2", "eos_token_id": 2, "padding_token_id": 0} | more)
    return write_gguf(path / "model.gguf", found, {})


def assert_alike(found: Tokenizer, expected: Tokenizer) -> None:
    assert found.vocab_size == expected.vocab_size
    for text in TEXTS:
        for adds in (False, True):
            ids = expected.encode(text, adds)
            assert found.encode(text, adds) == ids, text
            for skip in (False, True):
                assert found.decode(ids, skip) == expected.decode(ids, skip)
        assert list(map(found.token_bytes, ids)) == list(map(expected.token_bytes, ids))
    assert (found.eos_token_id, found.bos_token_id) == (expected.eos_token_id, expected.bos_token_id)


def test_byte_level(tmp_path: Path) -> None:
    found, expected = Tokenizer.load(byte_level(tmp_path)), Tokenizer.load(tmp_path)
    assert_alike(found, expected)
    messages = [{"role": "user", "content": "hi"}]
    assert found.render_chat(messages) == expected.render_chat(messages)


def test_sentencepiece(tmp_path: Path) -> None:
    build_tiny_sentencepiece(tmp_path)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    ranks = {"model": "llama", "merges": None, "scores": [-float(number) for number in range(len(vocabulary))]}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    path = write_gguf(tmp_path / "model.gguf", metadata(tmp_path, **ranks, **ids), {})
    assert_alike(Tokenizer.load(path), Tokenizer.load(tmp_path))


def test_runs_of_spaces_of_gemma_are_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    """They are user-defined, and written as spaces, where the vocabulary has ▁."""
    build_tiny_sentencepiece(tmp_path)
    found = metadata(tmp_path, model="llama", merges=None, bos_token_id=1, eos_token_id=2, unknown_token_id=0)
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    number = len(tokens)
    more = {"tokens": [*tokens, "  ", "   "], "token_type": [*kinds, 4, 4], "scores": [0.0] * (number + 2)}
    own = {"general.architecture": "gemma3", **{f"tokenizer.ggml.{key}": value for key, value in more.items()}}
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "model.gguf", found | own, {}))
    assert tokenizer.vocab_size == number + 2
    for text, expected in (("a  ", number), ("a   ", number + 1)):
        ids = tokenizer.encode(text)
        assert expected in ids
        assert max(ids) < number + 2
        assert tokenizer.decode(ids, True) == text


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "tekken", "smollm", "gpt-2"])
def test_text_is_cut_as_transformers_cuts_it(name: str, tmp_path: Path) -> None:
    """By its own reader of GGUF, where it knows the kind."""
    oracle = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    split = oracle.GGUF_PRE_TOKENIZER_SPLITS.get(name)
    found = json.loads(Tokenizer.load(byte_level(tmp_path, pre=name)).to_json())
    steps = found["pre_tokenizer"]["pretokenizers"]
    patterns = [step["pattern"]["Regex"] for step in steps if step["type"] == "Split"]
    assert patterns == ([] if split is None else [split])
    assert found["model"]["ignore_merges"] == (name in ("llama-bpe", "tekken"))  # as llama.cpp


def test_bos_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    plain = Tokenizer.load(byte_level(tmp_path, bos_token_id=0))
    adding = Tokenizer.load(byte_level(tmp_path, bos_token_id=0, add_bos_token=True))
    usual = Tokenizer.load(byte_level(tmp_path, bos_token_id=0, pre="llama-bpe"))
    assert [tokenizer.encode("hi")[:1] == [0] for tokenizer in (plain, adding, usual)] == [False, True, True]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"pre": "jais-2"}, "tokenizer.ggml.pre 'jais-2' is not supported; supported: 'llama-bpe'"),
        ({"pre": None}, "tokenizer.ggml.pre None is not supported"),
        ({"model": "bert"}, "tokenizer.ggml.model 'bert' is not supported"),
        ({"tokens": None}, "its metadata have no tokenizer.ggml.tokens"),
        ({"token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries for"),
        ({"eos_token_id": 9999}, "tokenizer.ggml.eos_token_id 9999 is none of the"),
    ],
)
def test_what_is_not_supported_is_named(more: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        Tokenizer.load(byte_level(tmp_path, **more))
    assert told in str(error.value)
    assert "--tokenizer-path" in str(error.value)
