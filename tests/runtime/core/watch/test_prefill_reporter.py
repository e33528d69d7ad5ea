"""Reports of how far prompts have been computed: only of requests that ask, in order, up to the whole prompt."""

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.outputs.prefill_progress import PrefillProgress
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from tests.runtime.tiny_engine import TinyEngine, random_prompt

ASKS = RequestOptions(progress=True)


def add(core: EngineCore, name: str, prompt: list[int], options: RequestOptions = ASKS, **params: object) -> None:
    sampling = SamplingParams(**{"max_tokens": 3, "ignore_eos": True, "seed": 1, **params})
    core.add(GenerationRequest(name, prompt, sampling, options=options))


def run(core: EngineCore) -> dict[str, list[PrefillProgress]]:
    """The reports by request, none of which comes after a token of its request."""
    reports: dict[str, list[PrefillProgress]] = {}
    begun: set[str] = set()
    while core.has_work:
        for output in core.step():
            if isinstance(output, TokenOutput) and output.progress is not None:
                assert not output.token_ids
                assert output.finish is None
                assert output.request_id not in begun
                reports.setdefault(output.request_id, []).append(output.progress)
            elif isinstance(output, TokenOutput):
                begun.add(output.request_id)
    return reports


def counts(reports: list[PrefillProgress]) -> list[tuple[int, int, int]]:
    assert [one.seconds for one in reports] == sorted(one.seconds for one in reports)
    return [(one.num_prompt_tokens, one.num_cached, one.num_computed) for one in reports]


def test_a_prompt_in_chunks_beside_one_that_does_not_ask(tiny: TinyEngine) -> None:
    core = tiny.core()
    add(core, "asks", random_prompt(150))
    add(core, "does not", random_prompt(150, 1), RequestOptions())
    reports = run(core)
    assert reports.keys() == {"asks"}
    first, *others, last = counts(reports["asks"])
    assert (first, last) == ((150, 0, 0), (150, 0, 150))
    assert others
    assert [one[2] for one in others] == sorted({one[2] for one in others})


def test_tokens_that_are_found_in_the_cache_count_as_computed(tiny: TinyEngine) -> None:
    core, prompt = tiny.core(), random_prompt(50)
    add(core, "first", prompt)
    assert counts(run(core)["first"]) == [(50, 0, 0), (50, 0, 50)]
    add(core, "again", prompt)
    assert counts(run(core)["again"]) == [(50, 48, 48), (50, 48, 50)]


def test_nobody_is_remembered_after_the_end(tiny: TinyEngine) -> None:
    core = tiny.core()
    add(core, "done", random_prompt(20), max_tokens=1)
    run(core)
    add(core, "aborted", random_prompt(150))
    core.step()
    core.abort(["aborted"])
    assert run(core) == {}
    assert core._prefills._began == {}


def test_a_core_without_such_requests_has_no_hooks_for_them(tiny: TinyEngine) -> None:
    core = tiny.core()
    before = len(core._hooks.after_dispatch)
    add(core, "does not", random_prompt(5), RequestOptions())
    run(core)
    assert len(core._hooks.after_dispatch) == before
    for name in ("one", "two"):
        add(core, name, random_prompt(5))
    run(core)
    assert len(core._hooks.after_dispatch) == before + 1
