"""How many replicas a load asks for."""

from types import SimpleNamespace
from typing import Any

import pytest

from palladio.ray.scaling import LOAD, LoadPolicy, load_of


@pytest.mark.parametrize(
    ("running", "waiting", "slots", "usage", "load"),
    [
        (0, 0, 8, 0.0, 0.0),
        (4, 0, 8, 0.1, 0.5),
        (8, 8, 8, 0.5, 2.0),
        (2, 2, 64, 0.9, 1.8),  # long requests: the cache is full, and two more of their kind wait
        (0, 6, 8, 0.0, 0.75),
    ],
)
def test_load(running: int, waiting: int, slots: int, usage: float, load: float) -> None:
    assert load_of(running, waiting, slots, usage) == pytest.approx(load)


def replicas(loads: list[float], current: int | None = None, target: int = 1) -> float:
    context: Any = SimpleNamespace(
        aggregated_metrics={LOAD: dict(enumerate(loads))} if loads else {},
        current_num_replicas=len(loads) if current is None else current,
        target_num_replicas=target,
    )
    return LoadPolicy(0.8)(context)[0]


def test_as_many_replicas_as_bring_the_load_to_the_target() -> None:
    assert replicas([2.0]) == 3
    assert replicas([0.8]) == 1
    assert replicas([0.8, 0.8]) == 2
    assert replicas([0.1, 0.1, 0.1]) == 1
    assert replicas([0.0]) == 1  # never none


def test_a_new_replica_without_figures_counts_as_the_others() -> None:
    assert replicas([0.7], current=2) == 2


def test_without_figures_it_stays() -> None:
    assert replicas([], target=3) == 3
