"""SamplingParams: SGLang's names of its parameters, as SGLang's users write them offline."""

import dataclasses

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
