"""Parameters of a test whose full matrix would take long: by default every pair of two values, the rest is slow."""

import itertools
from typing import Any

import pytest


def pairwise(*choices: list[Any]) -> list[Any]:
    """Return all combinations, for `parametrize`; those whose pairs of values all occur in earlier chosen ones are
    slow."""
    left = list(itertools.product(*(range(len(values)) for values in choices)))
    wanted = {pair for one in left for pair in _pairs(one)}
    chosen = set()
    while wanted:
        best = max(left, key=lambda one: len(wanted & _pairs(one)))  # the first of equals
        chosen.add(best)
        wanted -= _pairs(best)
    return [
        pytest.param(
            *(values[i] for values, i in zip(choices, one, strict=True)),
            marks=() if one in chosen else pytest.mark.slow,
        )
        for one in left
    ]


def _pairs(one: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the pairs of (number of the parameter, number of the value)."""
    return set(itertools.combinations(enumerate(one), 2))
