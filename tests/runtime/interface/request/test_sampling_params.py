"""SamplingParams: values are checked and kept in one form, and SGLang's names are taken, as its users write them."""

import dataclasses
from typing import Any

import pytest

from palladio import InvalidRequestError, SamplingParams


def test_sglang_s_names() -> None:
    params = SamplingParams(max_new_tokens=8, min_new_tokens=2, sampling_seed=5, temperature=0.8)
    assert params == SamplingParams(max_tokens=8, min_tokens=2, seed=5, temperature=0.8)
    assert dataclasses.replace(params, max_tokens=9).max_tokens == 9
    assert dataclasses.replace(SamplingParams(), max_new_tokens=9) == SamplingParams(max_tokens=9)
    assert SamplingParams(**dataclasses.asdict(params)) == params


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_new_tokens": 8, "max_tokens": 8}, "max_new_tokens", "'max_new_tokens' and 'max_tokens' name the same"),
        ({"min_new_tokens": 1, "min_tokens": 2}, "min_new_tokens", "'min_new_tokens' and 'min_tokens' name the same"),
        ({"sampling_seed": 1, "seed": 2}, "sampling_seed", "'sampling_seed' and 'seed' name the same parameter"),
        ({"max_new_tokens": -1}, "max_new_tokens", "max_new_tokens must be an integer ≥ 0, got -1"),
        ({"max_new_tokens": 1, "min_new_tokens": 2}, "min_new_tokens", "min_new_tokens .2. must not be over max_new"),
    ],
)
def test_mistakes_are_told_in_the_names_that_were_given(fields: dict, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        SamplingParams(**fields)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("allowed_token_ids", [], "at least one"),
        ("allowed_token_ids", [-1], "token ids"),
        ("allowed_token_ids", [True], "token ids"),
        ("allowed_token_ids", [1.5], "token ids"),
        ("allowed_token_ids", "5", "token ids"),
        ("allowed_token_ids", list(range(16385)), "at most 16384"),
        ("logprob_token_ids", [-1], "token ids"),
        ("logprob_token_ids", [True], "token ids"),
        ("logprob_token_ids", "5", "token ids"),
        ("logprob_token_ids", list(range(129)), "at most 128"),
        ("stop_regex", "", "non-empty"),
        ("stop_regex", [""], "non-empty"),
        ("stop_regex", [5], "non-empty"),
        ("stop_regex", ["a"] * 9, "at most 8"),
        ("stop_regex", "a" * 257, "at most 8 patterns of at most 256"),
        ("logit_bias", [1], "must map"),
        ("logit_bias", {"a": 1}, "not a token id"),
        ("logit_bias", {"1": True}, "must be a number"),
        ("logit_bias", {"1": float("nan")}, "must be a number"),
        ("logit_bias", dict.fromkeys(range(513), 1.0), "at most 512"),
    ],
)
def test_wrong_values_are_named(field: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_values_are_kept_in_one_form() -> None:
    assert SamplingParams(allowed_token_ids=[7, 5, 7]).allowed_token_ids == (5, 7)
    assert SamplingParams(logprob_token_ids=[7, 5, 7]).logprob_token_ids == (7, 5)
    assert SamplingParams(logprob_token_ids=[]).logprob_token_ids is None
    assert SamplingParams(stop_regex="a").stop_regex == ("a",)
    assert SamplingParams(stop_regex=["a", "b"]).stop_regex == ("a", "b")
    assert SamplingParams(stop_regex=[]).stop_regex == ()
    assert SamplingParams(logit_bias={"5": 1}).logit_bias == {5: 1.0}
