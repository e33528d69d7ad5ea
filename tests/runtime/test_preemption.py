"""Who takes whose place, and that it helps: whoever preempts runs, and no step goes round in circles."""

import pytest

from palladio.runtime.request_options import RequestOptions
from tests.runtime.scheduler_sim import Simulation, check
from tests.runtime.tiny_engine import Collector, TinyEngine, generate, random_prompt


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("num_steps_before", [0, 1, 2])
def test_background_requests_of_two_priorities_both_end(mixes: bool, lag: int, num_steps_before: int) -> None:
    """The first one's prompt takes two steps, and its logprobs keep it from going on where it was. The second one fits
    only in its place: if the first were admitted again before the second, neither would ever have a token."""
    sim = Simulation(
        num_pages=19, page_size=1, max_running=3, max_step_tokens=8, policy="priority", mixes=mixes, lag=lag
    )
    prompts = {"low": (list(range(10, 19)), 9), "high": (list(range(10, 13)), 1)}
    sim.add("low", *prompts["low"], prompt_logprobs=0, options=RequestOptions(background=True))
    for _ in range(num_steps_before):
        sim.step()
    sim.add("high", *prompts["high"], prompt_logprobs=0, options=RequestOptions(background=True, priority=11))
    sim.run(100)
    check(sim, prompts)
    assert list(sim.finished) == ["high", "low"]


@pytest.mark.parametrize("flags", [{"disable_overlap_schedule": True}, {"enable_mixed_chunk": True}], ids=str)
@pytest.mark.parametrize("keeps_pages", [True, False])
def test_lines_of_batches_of_two_priorities_both_end(tiny: TinyEngine, flags: dict, keeps_pages: bool) -> None:
    """On the real engine, as lines of a batch reach it."""
    params = {"max_tokens": 40, "prompt_logprobs": 0} if keeps_pages else {"max_tokens": 40}
    prompts = {"low": random_prompt(60), "high": random_prompt(50, salt=1)}
    expected = generate(tiny.core(), prompts, **params)
    core = tiny.core(
        schedule_policy="priority",
        chunked_prefill_size=16,
        max_total_tokens=136,
        disable_radix_cache=not keeps_pages,
        **flags,
    )
    collector = Collector(core)
    for name, priority in (("low", 0), ("high", 11)):
        collector.add(name, prompts[name], options=RequestOptions(background=True, priority=priority), **params)
        collector.step()
    for _ in range(300):
        collector.step()
    assert list(collector.finish) == ["high", "low"]
    assert collector.run().tokens == expected
