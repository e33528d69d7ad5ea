"""What a request may say of single tokens, and of patterns that end it."""

from typing import Any

import pytest

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.sampling_params import SamplingParams


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
