"""What evaluations by log-probability need of /v1/completions: lm-eval's requests, read as lm-eval reads the answers.

Its client sends batches of token ids (context and continuation) with `echo`, and takes the log-probabilities of the
continuation, and whether each of its tokens was the likeliest, out of the arrays.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import Launch
from tests.integration.serving import COMPLETIONS, CONTEXT_LENGTH, MODEL, VOCAB_SIZE, Server

SCORING = {"model": MODEL, "echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234}


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Ordinary tokens: no special ones."""
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE - 10, length).tolist()


def score(server: Server, prompt: list[int] | list[list[int]], **fields: Any) -> list[dict[str, Any]]:
    """The choices, in order."""
    answer = server.post(COMPLETIONS, SCORING | {"prompt": prompt} | fields)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return choices


def read_as_lm_eval(choice: dict[str, Any], context_length: int) -> tuple[float, bool]:
    """Log-probability of the continuation, and whether it is what greedy decoding gives: the client's arithmetic."""
    logprobs = choice["logprobs"]["token_logprobs"][context_length:-1]
    tops = choice["logprobs"]["top_logprobs"][context_length:-1]
    return sum(logprobs), all(own == max(top.values()) for own, top in zip(logprobs, tops, strict=True))


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("top", [1, 5, 20])
def test_an_entry_for_each_token_of_prompt_and_output(server: Server, max_tokens: int, top: int) -> None:
    prompts = [prompt_of(length, seed) for seed, length in enumerate((1, 2, 7, 64, 65, 200))]
    answer = server.post(
        COMPLETIONS, SCORING | {"prompt": prompts, "max_tokens": max_tokens, "logprobs": top, "ignore_eos": True}
    ).json()
    assert answer["usage"]["completion_tokens"] == max_tokens * len(prompts)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        arrays = choice["logprobs"]
        assert {name: len(values) for name, values in arrays.items()} == dict.fromkeys(
            ("tokens", "token_logprobs", "top_logprobs", "text_offset"), len(prompt) + max_tokens
        )
        assert (arrays["token_logprobs"][0], arrays["top_logprobs"][0]) == (None, None)
        rows = list(zip(arrays["tokens"], arrays["token_logprobs"], arrays["top_logprobs"], strict=True))
        for name, own, tops in rows[1:]:
            assert tops[name] == own  # the identical float
            assert top <= len(tops) <= top + 1
            assert own <= max(tops.values()) <= 0
            assert len(tops) == top or min(tops.values()) == own  # one more only for an unlikely token
        assert all(own == max(tops.values()) for _, own, tops in rows[len(prompt) :])  # greedy


def test_greedy_continuations_are_recognized(server: Server) -> None:
    """What greedy decoding gives is greedy to lm-eval, with the same log-probabilities; anything else is not."""
    context = prompt_of(30)
    body = {"model": MODEL, "prompt": context, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    greedy = server.post(COMPLETIONS, body | {"return_token_ids": True}).json()["choices"][0]
    likeliest = greedy["token_ids"]
    assert len(likeliest) == 8
    other = [*likeliest[:4], (likeliest[4] + 1) % VOCAB_SIZE, *likeliest[5:]]
    first, second = score(server, [context + likeliest, context + other])
    total, is_greedy = read_as_lm_eval(first, len(context))
    assert is_greedy
    assert total == pytest.approx(sum(greedy["logprobs"]["token_logprobs"]), abs=1e-4)
    assert not read_as_lm_eval(second, len(context))[1]


def test_neither_the_cache_nor_the_company_matters(server: Server) -> None:
    """Cold, after a flush, with the prefix or all of it cached, and in a batch; 300 tokens are five prefill chunks."""
    shared, tails = prompt_of(300), [prompt_of(20, seed) for seed in (1, 2)]
    server.http.post("/flush_cache").raise_for_status()
    (cold,) = score(server, shared + tails[0])
    body = {"model": MODEL, "max_tokens": 2, "ignore_eos": True}
    server.http.post("/flush_cache").raise_for_status()
    server.post(COMPLETIONS, body | {"prompt": shared}).raise_for_status()
    cached = server.post(COMPLETIONS, body | {"prompt": shared + tails[0]}).json()
    assert cached["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256  # there is something to be misled by
    (partly,) = score(server, shared + tails[0])
    (wholly,) = score(server, shared + tails[0])
    batch = score(server, [shared + tails[1], shared + tails[0], tails[0]])
    for warm in (partly, wholly, batch[1]):
        assert warm["logprobs"]["tokens"] == cold["logprobs"]["tokens"]
        assert warm["logprobs"]["text_offset"] == cold["logprobs"]["text_offset"]
        np.testing.assert_allclose(
            warm["logprobs"]["token_logprobs"][1:], cold["logprobs"]["token_logprobs"][1:], atol=2e-5, rtol=0
        )
    assert partly["logprobs"] == wholly["logprobs"]  # the same steps: the same floats


@pytest.mark.slow  # tests/runtime/core/test_engine_scheduling.py has it without a server
def test_the_chunks_of_a_prefill_do_not_matter(server: Server, launch: Launch) -> None:
    prompt = prompt_of(150)
    (whole,) = score(server, prompt)
    other = launch(f"--served-model-name {MODEL} --chunked-prefill-size 16 --compile lazy")
    (chunked,) = score(other, prompt)
    np.testing.assert_allclose(
        chunked["logprobs"]["token_logprobs"][1:], whole["logprobs"]["token_logprobs"][1:], atol=2e-5, rtol=0
    )


@pytest.mark.parametrize("text", ["The capital of France is Paris.", "Gruß aus Zürich 🎉!", "{}\n\n\t  x"])
@pytest.mark.parametrize("max_tokens", [0, 4])
def test_offsets_point_into_the_text(server: Server, text: str, max_tokens: int) -> None:
    (choice,) = score(server, text, max_tokens=max_tokens)
    assert choice["text"].startswith(text)
    names, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    whole = [i for i, name in enumerate(names) if not name.startswith(("bytes:", "<|")) and "\ufffd" not in name]
    assert len(whole) > 2
    for i in whole:
        assert choice["text"][offsets[i] :].startswith(names[i])


def test_a_streams_arrays_are_the_answers(server: Server) -> None:
    prompt = prompt_of(40)
    (answer,) = score(server, prompt, max_tokens=6, ignore_eos=True, logprobs=3)
    body = SCORING | {"prompt": prompt, "max_tokens": 6, "ignore_eos": True, "logprobs": 3, "stream": True}
    with server.client() as client:
        chunks = [chunk.choices[0] for chunk in client.completions.create(**_of_sdk(body))]
    arrays = [chunk.logprobs.model_dump() for chunk in chunks if chunk.logprobs is not None]
    joined = {name: [value for part in arrays for value in part[name]] for name in arrays[0]}
    assert joined == answer["logprobs"]
    assert "".join(chunk.text for chunk in chunks) == answer["text"]


def _of_sdk(body: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in body.items() if name != "ignore_eos"}
    return named | {"extra_body": {"ignore_eos": body["ignore_eos"]}}


def test_the_longest_prompt_that_can_be_scored(server: Server) -> None:
    (choice,) = score(server, prompt_of(CONTEXT_LENGTH - 1))
    assert len(choice["logprobs"]["token_logprobs"]) == CONTEXT_LENGTH


@pytest.mark.slow  # goldens have its logits, and test_sampling_effects.py what is told of them
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")
@pytest.mark.torch
def test_against_transformers(server: Server, checkpoint: Path) -> None:
    from tests.model import hf_oracle

    prompts = [prompt_of(length, seed) for seed, length in enumerate((9, 70, 130))]
    theirs, _ = hf_oracle.run(checkpoint, prompts, 1)
    for prompt, logits, choice in zip(prompts, theirs, score(server, prompts), strict=True):
        logits = logits.astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        own = expected[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(choice["logprobs"]["token_logprobs"][1:-1], own, atol=1e-3, rtol=0)
        for tops, row in zip(choice["logprobs"]["top_logprobs"][1:-1], expected, strict=False):
            assert max(tops.values()) == pytest.approx(row.max(), abs=1e-3)
