import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import processors

from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.properties import examples
from tests.tiny_tokenizer import build_tiny_sentencepiece, build_tiny_tokenizer

TEXTS = ["Hello, my name is", "日本語 é 👨‍👩‍👧 \n\t x", " leading", "trailing ", "a  b", "{'k': [1, 2]}"]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("bl")))


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory):
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("bos"), add_bos=True))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    return Tokenizer.load(build_tiny_sentencepiece(tmp_path_factory.mktemp("sp")))


@pytest.fixture(params=["byte_level", "with_bos", "sentencepiece"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def collect(stream, ids):
    return "".join([*map(stream.push, ids), stream.flush()])


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_token_bytes_join_to_the_text(tokenizer, text):
    ids = [i for i in tokenizer.encode(text) if i not in tokenizer._special]
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert joined in (text, " " + text)


@examples(50)
@given(st.text(max_size=30).filter(lambda s: "\0" not in s))
def test_stream_equals_decode(byte_level, text):
    ids = byte_level.encode(text)
    assert collect(byte_level.new_stream(), ids) == byte_level.decode(ids)


@examples(100)
@given(st.lists(st.integers(0, 400), max_size=30), st.booleans())
def test_stream_of_any_ids_equals_decode(byte_level, ids, skip):
    known = [i for i in ids if i < byte_level.vocab_size]
    stream = byte_level.new_stream(skip_special_tokens=skip)
    assert collect(stream, ids) == byte_level.decode(known, skip_special_tokens=skip)


def test_stream_keeps_the_space_after_a_prompt(sentencepiece):
    prompt = sentencepiece.encode("The capital of France is")
    both = sentencepiece.encode("The capital of France is Paris")
    assert both[: len(prompt)] == prompt
    assert collect(sentencepiece.new_stream(prompt), both[len(prompt) :]) == " Paris"
    assert collect(sentencepiece.new_stream([1]), sentencepiece.encode("Paris")[1:]) == "Paris"


def test_special_tokens_are_hidden_and_added_ones_shown(byte_level):
    ids = byte_level.encode("<|im_start|>a<think>b<|im_end|>")
    assert collect(byte_level.new_stream(), ids) == "a<think>b"
    assert collect(byte_level.new_stream(skip_special_tokens=False), ids) == "<|im_start|>a<think>b<|im_end|>"
    assert byte_level.special_id("<|im_end|>") == 2
    assert byte_level.special_id("<think>") is None


def test_no_second_bos(with_bos, byte_level, sentencepiece):
    assert with_bos.encode("Hello")[0] == with_bos.bos_token_id == 0
    assert with_bos.encode("<|endoftext|>Hello") == with_bos.encode("Hello")
    assert with_bos.encode("Hello", add_special_tokens=False) == with_bos.encode("Hello")[1:]
    assert sentencepiece.encode("<s>")[:2] == [1]
    assert byte_level.bos_token_id is None


def test_each_token_has_its_characters(with_bos, byte_level):
    text, bos = "Hello, wörld 🎉!", "<|endoftext|>"
    spans = byte_level.spans(text)
    assert len(spans) == len(byte_level.encode(text))
    assert "".join(text[begin:end] for begin, end in dict.fromkeys(spans)) == text  # bytes of one have the same
    assert with_bos.spans("Hello") == [(0, 0), *byte_level.spans("Hello")]
    assert with_bos.spans("Hello", add_special_tokens=False) == byte_level.spans("Hello")
    own = with_bos.spans(f"{bos}Hello")
    assert own == [(0, len(bos)), *((b + len(bos), e + len(bos)) for b, e in byte_level.spans("Hello"))]


def test_ids_and_strings(byte_level):
    assert byte_level.eos_token_id == 2
    assert byte_level.vocab_size == max(byte_level.encode("</tool_call>")) + 1
    assert byte_level.token_bytes(10**6) == b""
    assert byte_level.token_text(byte_level.encode("é"[:1])[0]) == "\ufffd"


def test_truncation_and_padding_of_tokenizer_json_are_off(tmp_path):
    directory = build_tiny_tokenizer(tmp_path)
    content = json.loads((directory / "tokenizer.json").read_text())
    content["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (directory / "tokenizer.json").write_text(json.dumps(content))
    assert len(Tokenizer.load(directory).encode("The quick brown fox jumps over the lazy dog " * 4)) > 4


def test_lone_surrogate(tokenizer):
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode("a\ud800")


def test_render_chat(byte_level):
    messages = [{"role": "user", "content": "Hi"}]
    assert byte_level.render_chat(messages) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert "<think>" in byte_level.render_chat(messages, enable_thinking=False)
    assert "get_weather" in byte_level.render_chat(
        messages, tools=[{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    )
    assert byte_level.render_chat(messages, template="{{ messages[0].content }}!") == "Hi!"
    started = [*messages, {"role": "assistant", "content": "Sure"}]
    rendered = byte_level.render_chat(started, add_generation_prompt=False, continue_final_message=True)
    assert rendered.endswith("assistant\nSure")


@pytest.mark.parametrize(
    ("messages", "kwargs", "param"),
    [
        ([{"role": "wizard", "content": "x"}], {}, "messages"),
        ([{"role": "user", "content": "x"}], {"tokenize": True}, "chat_template_kwargs"),
        ([{"role": "user", "content": "x"}], {"template": "{{ messages.0.x.y }}"}, "messages"),
        ([{"role": "user", "content": "x"}], {"template": "{{ ''.__class__.__mro__ }}"}, "messages"),
    ],
)
def test_render_chat_refuses(byte_level, messages, kwargs, param):
    with pytest.raises(InvalidRequestError) as caught:
        byte_level.render_chat(messages, **kwargs)
    assert caught.value.param == param


def test_render_chat_without_template(sentencepiece):
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        sentencepiece.render_chat([{"role": "user", "content": "x"}])


def test_missing_and_broken_files(tmp_path):
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"--tokenizer-path.*--skip-tokenizer-init") as caught:
            Tokenizer.load(directory)
        assert str(directory) in str(caught.value)
    build_tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="no usable tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_model_directory_without_a_vocabulary(tmp_path):
    """transformers finds the tokenizer's class in config.json, and makes an empty one."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}')
    with pytest.raises(ConfigError, match="holds no tokenizer files"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(ConfigError, match="vocabulary is empty"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["byte_level", "other"])
def test_special_tokens_that_a_parser_looks_for_are_shown(byte_level, kind, monkeypatch):
    monkeypatch.setattr(byte_level, "_kind", kind)
    ids = byte_level.encode("<|im_start|>a<think>b<|im_end|>")
    shown = byte_level.special_id("<|im_start|>")
    assert collect(byte_level.new_stream(visible_special_ids=(shown,)), ids) == "<|im_start|>a<think>b"
    assert collect(byte_level.new_stream(), ids) == "a<think>b"


@pytest.mark.parametrize("framed", [False, True])
def test_a_pair_is_what_transformers_makes_of_text_and_text_pair(framed: bool, tmp_path: Path) -> None:
    build_tiny_tokenizer(tmp_path)
    theirs = HfTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    if framed:
        tokens, template = [("<|endoftext|>", 0), ("<|im_end|>", 2)], processors.TemplateProcessing
        frame = template("<|endoftext|> $A", "<|endoftext|> $A <|endoftext|> $B:1 <|im_end|>", special_tokens=tokens)
        theirs.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), frame])
        theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer, first, second = Tokenizer.load(tmp_path), "What is the cap", "ital of France?"
    for special in (True, False):
        expected = theirs.encode(first, second, add_special_tokens=special).ids
        assert tokenizer.encode_pair(first, second, special).ids == expected
        assert tokenizer.encode_pair(first, second, special, len(expected)).ids == expected
        theirs.enable_truncation(len(expected) - 2, strategy="only_second")
        cut = theirs.encode(first, second, add_special_tokens=special).ids
        assert tokenizer.encode_pair(first, second, special, len(expected) - 2).ids == cut
        theirs.no_truncation()
    assert len(tokenizer.encode_pair(first, second, True, 6).ids) == 6, "the first one is cut where that has to be"
    assert expected != theirs.encode(first + second, add_special_tokens=False).ids


FIRST_IN_THREADS = """
import sys, threading, time
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

loaded = []
threads = [threading.Thread(target=lambda: loaded.append(Tokenizer.load(sys.argv[1]))) for _ in range(6)]
for thread in threads:
    thread.start()
    time.sleep(0.1)  # while the first one imports transformers
for thread in threads:
    thread.join()
assert len(loaded) == 6
"""


def test_several_threads_may_load_the_first_tokenizers_of_a_process(tmp_path: Path) -> None:
    build_tiny_tokenizer(tmp_path)
    done = subprocess.run([sys.executable, "-c", FIRST_IN_THREADS, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
