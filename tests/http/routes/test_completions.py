"""Text completions through the real openai SDK."""

import itertools
from typing import Any

import openai
import pytest

from tests.fake_engine import EOS_ID, MODEL, FakeEngine


def test_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="List 3 countries and their capitals.", temperature=0, max_tokens=64, n=1, stop=None
    )
    choice = answer.choices[0]
    assert (answer.object, choice.text, choice.logprobs) == ("text_completion", "Hello, wörld 🎉!", None)
    assert (choice.finish_reason, choice.matched_stop) == ("stop", EOS_ID)
    assert engine.calls[0].prompt_ids == engine.tokenizer.encode("List 3 countries and their capitals.")


def test_sixteen_tokens_by_default_but_never_more_than_the_context_holds(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    client.completions.create(model=MODEL, prompt="x")
    client.completions.create(model=MODEL, prompt=[5] * 2040)
    assert [call.params.max_tokens for call in engine.calls] == [16, 8]


def test_all_forms_of_prompts_and_their_indices(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.reply = lambda ids, index: f"{ids[0]}:{index}"
    for prompt, firsts in (([9, 8], [9]), ([[9, 8], [7], [6]], [9, 7, 6])):
        answer = client.completions.create(model=MODEL, prompt=prompt, n=2)
        texts = [choice.text for choice in answer.choices]
        assert texts == [f"{first}:{index}" for first in firsts for index in (0, 1)]
        assert [choice.index for choice in answer.choices] == list(range(2 * len(firsts)))
        assert answer.usage.prompt_tokens == (2 if len(firsts) == 1 else 4)  # a prompt counts once, whatever n
    answer = client.completions.create(model=MODEL, prompt=["ab", "ba"])
    assert [c.text for c in answer.choices] == [f"{engine.tokenizer.encode(t)[0]}:0" for t in ("ab", "ba")]


def test_stream_of_a_batch(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.reply = lambda ids, index: f"{ids[0]}:{index}"
    texts = dict.fromkeys(range(4), "")
    finished = {}
    options = {"include_usage": True}
    for chunk in client.completions.create(model=MODEL, prompt=[[9], [7]], n=2, stream=True, stream_options=options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                finished[choice.index] = choice.finish_reason
    assert list(texts.values()) == ["9:0", "9:1", "7:0", "7:1"]
    assert finished == dict.fromkeys(range(4), "stop")
    assert chunk.choices == []
    assert chunk.usage.prompt_tokens == 2


def test_streams_have_their_usage_where_the_server_says_so(serve: Any) -> None:
    url = serve(stream_response_default_include_usage=True)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as client:
        for options, has_usage in (
            (openai.omit, True),
            ({"include_usage": False}, False),
            ({"include_usage": True}, True),
        ):
            chunks = list(client.completions.create(model=MODEL, prompt="a", stream=True, stream_options=options))
            assert (chunks[-1].choices == [] and chunks[-1].usage is not None) == has_usage
            chats = list(
                client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "a"}], stream=True, stream_options=options
                )
            )
            assert (chats[-1].choices == [] and chats[-1].usage is not None) == has_usage


def test_echo_with_logprobs_scores_a_prompt(client: openai.OpenAI) -> None:
    """What lm-eval does."""
    choice = client.completions.create(model=MODEL, prompt="Héllo", echo=True, logprobs=1, max_tokens=0).choices[0]
    logprobs = choice.logprobs
    assert choice.text == "Héllo"
    assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
    assert all(len(top) == 1 for top in logprobs.top_logprobs[1:])
    lengths = {len(a) for a in (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)}
    assert len(lengths) == 1
    assert logprobs.text_offset[-1] == len("Héllo") - len(logprobs.tokens[-1])
    assert choice.finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_of_token_ids_and_legacy_arrays(client: openai.OpenAI, engine: FakeEngine, stream: bool) -> None:
    ids = engine.tokenizer.encode("The capital")
    answer = client.completions.create(model=MODEL, prompt=ids, echo=True, logprobs=2, max_tokens=3, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == "The capitalHello, "
    parts = [choice.logprobs for choice in choices if choice.logprobs]
    tokens = [token for part in parts for token in part.tokens]
    assert "".join(tokens) == "The capitalHello, "
    offsets = [offset for part in parts for offset in part.text_offset]
    assert offsets == [len("".join(tokens[:i])) for i in range(len(tokens))]


def test_every_sample_echoes_the_prompts_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="ab", echo=True, logprobs=1, n=2, max_tokens=1)
    assert [choice.logprobs.token_logprobs[0] for choice in answer.choices] == [None, None]


def test_logprobs_zero_reports_the_chosen_token_only(client: openai.OpenAI) -> None:
    logprobs = client.completions.create(model=MODEL, prompt="x", logprobs=0, max_tokens=2).choices[0].logprobs
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.top_logprobs is None


def test_tokens_of_the_same_text_do_not_hide_each_other(client: openai.OpenAI, engine: FakeEngine, monkeypatch) -> None:
    """The likeliest tokens of the fake engine are the chosen one and the ids after it: here all have one text."""
    monkeypatch.setattr(engine.tokenizer, "token_bytes", lambda token_id: b"same")
    choice = client.completions.create(model=MODEL, prompt="x", logprobs=2, max_tokens=1).choices[0]
    token_id = engine.tokenizer.encode(engine.reply)[0]
    assert choice.logprobs.tokens == ["same"]
    assert choice.logprobs.top_logprobs == [{"same": -0.5, f"token_id:{token_id + 1}": -1.5}]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_as_ids(client: openai.OpenAI, engine: FakeEngine, stream: bool) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt=[5, 6],
        echo=True,
        logprobs=1,
        max_tokens=2,
        stream=stream,
        extra_body={"return_tokens_as_token_ids": True},
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
    assert tokens == [f"token_id:{i}" for i in [5, 6, *engine.tokenizer.encode("Hello, wörld 🎉!")[:2]]]


@pytest.mark.parametrize(
    ("extra", "text", "lengths"),
    [({}, "Hi", [0, 1, 1, 0]), ({"skip_special_tokens": False}, "<|im_start|>Hi<|im_end|>", [12, 1, 1, 10])],
)
def test_hidden_tokens_have_no_length(
    client: openai.OpenAI, engine: FakeEngine, extra, text: str, lengths: list[int]
) -> None:
    (h,), (i,) = engine.tokenizer.encode("H"), engine.tokenizer.encode("i")
    choice = client.completions.create(
        model=MODEL, prompt=[1, h, i, 2], echo=True, logprobs=1, max_tokens=1, extra_body=extra
    ).choices[0]
    assert choice.text == text + "Hello"
    offsets = choice.logprobs.text_offset
    assert [end - begin for begin, end in itertools.pairwise(offsets)] == lengths


def test_obfuscated_chunks_do_not_tell_how_long_a_token_is(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.reply = "The quick brown fox jumps over the lazy dog, again and again."
    with client.completions.with_streaming_response.create(
        model=MODEL, prompt="x", max_tokens=30, stream=True, stream_options={"include_obfuscation": True}
    ) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    assert len(lines) > 10
    assert len({len(line.encode()) for line in lines}) == 1


def test_without_a_tokenizer_only_ids(serve, engine: FakeEngine) -> None:
    engine.tokenizer = None
    with openai.OpenAI(base_url=serve() + "/v1", api_key="x") as client:
        answer = client.completions.create(model=MODEL, prompt=[1, 2], extra_body={"return_token_ids": True})
        assert answer.choices[0].text == ""
        assert answer.choices[0].token_ids
        for call in (
            lambda: client.completions.create(model=MODEL, prompt="text"),
            lambda: client.completions.create(model=MODEL, prompt=[1], echo=True),
            lambda: client.completions.create(model=MODEL, prompt=[1], logprobs=1),
            lambda: client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}]),
        ):
            with pytest.raises(openai.BadRequestError):
                call()
