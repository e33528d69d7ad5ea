"""The expected share of max_tokens sinks to its least and no further, and rises after a retraction."""

import pytest

from palladio.runtime.scheduling.policy.kv_budget import (
    DECAY_STEPS,
    INIT_RATIO,
    MIN_RATIO_FACTOR,
    RETRACT_DECODE_STEPS,
    NewTokenRatio,
)
from tests.runtime.scheduling.scheduler_sim import Simulation


@pytest.mark.parametrize("conservativeness", [0.0, 0.3, 1.0, 2.0])
def test_it_sinks_to_its_least_and_no_further(conservativeness: float) -> None:
    ratio = NewTokenRatio(conservativeness)
    first = ratio.value
    assert first == min(1.0, INIT_RATIO * conservativeness)
    for _ in range(2 * DECAY_STEPS):
        ratio.decay()
    assert ratio.value == pytest.approx(first * MIN_RATIO_FACTOR)


def test_it_takes_its_steps_from_the_first_value_to_the_least() -> None:
    ratio = NewTokenRatio(1.0)
    for _ in range(DECAY_STEPS - 1):
        ratio.decay()
    assert ratio.value > INIT_RATIO * MIN_RATIO_FACTOR
    ratio.decay()
    assert ratio.value == pytest.approx(INIT_RATIO * MIN_RATIO_FACTOR)


def test_a_retraction_raises_it_and_never_lowers_it() -> None:
    sim = Simulation(num_pages=60, page_size=1, max_running=2, max_step_tokens=32)
    for name in ("a", "b"):
        sim.add(name, [1, 2, 3], 100, ignore_eos=True)
    sim.step()
    low, high = NewTokenRatio(0.0), NewTokenRatio(1.0)
    for ratio in (low, high):
        ratio.raise_for(sim.scheduler.running)
    written = sum(request.num_output_tokens for request in sim.scheduler.running)
    assert low.value == pytest.approx((written + 2 * RETRACT_DECODE_STEPS) / 200)
    assert high.value == INIT_RATIO
