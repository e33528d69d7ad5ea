"""`from palladio import Engine, SamplingParams`: the whole engine, in this process, against Hugging Face's tokens."""

import asyncio
import importlib.util
import itertools

import numpy as np
import pytest

from palladio import Engine, SamplingParams
from tests.integration.serving import build_checkpoint
from tests.model.make_goldens import GOLDENS, NUM_TOKENS
from tests.model.make_goldens import prompts as golden_prompts
from tests.tiny_model import VOCAB_SIZE, make_checkpoint

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the oracle needs torch")

FAMILIES = [  # tests/model has them all
    pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "qwen2", "llama3", "mistral")
]
PAGE, CHUNK, CONTEXT = 8, 64, 256
POOL = 640  # tokens: about three of the requests below, so that most are retracted again and again
LENGTHS = (1, PAGE - 1, PAGE, PAGE + 1, 15, 16, 17, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, 127, 128, 129, 192)
SMALL_POOL = 128  # of a model whose layers all have a window: of its long requests it keeps little
FEW = (0, 3, 8, 12)  # of them, that fit into the pool together
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


def ragged_prompts() -> list[list[int]]:
    rng = np.random.RandomState(11)
    return [rng.randint(0, VOCAB_SIZE, size=length).tolist() for length in LENGTHS]


@pytest.fixture(scope="session")
def make_engine(cache_dir):
    def make(directory, **flags):
        limits = {"page_size": PAGE, "chunked_prefill_size": CHUNK, "max_total_tokens": POOL, "context_length": CONTEXT}
        limits |= {"cuda_graph_bs": (1,), "compile": "lazy"}  # and the largest size: fewer programs
        limits |= {"schedule_conservativeness": 0.0}  # admit while there are pages: retract later
        limits |= {"max_running_requests": 8, "compilation_cache_dir": str(cache_dir / "xla"), "random_seed": 0}
        return Engine(model_path=str(directory), **(limits | flags))

    return make


def tokens_of(results) -> list[list[int]]:
    return [result["output_ids"] for result in results]


def check_clean(engine: Engine) -> None:
    (stats,) = engine.get_server_info()["internal_states"]
    assert (stats["num_running"], stats["num_waiting"], stats["num_used_tokens"]) == (0, 0, 0)
    assert stats["integrity_error"] is None
    assert stats["num_compiles_after_ready"] == 0


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, make_engine, tmp_path_factory):
    """The family's name, its checkpoint, and a function from prompts to the engine's greedy tokens."""
    path = make_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    num_retractions = []
    pool = SMALL_POOL if request.param == "mistral" else POOL
    with make_engine(path, skip_tokenizer_init=True, compile="lazy", max_total_tokens=pool) as engine:

        def run(prompts):
            results = engine.generate(input_ids=prompts, sampling_params=GREEDY)
            num_retractions.extend(result["meta_info"]["num_retractions"] for result in results)
            check_clean(engine)
            return tokens_of(results)

        yield request.param, path, run
    assert sum(num_retractions) > 0, "pages never ran out"


def test_greedy_tokens_are_those_of_hugging_face(family):
    """Without torch: what transformers computed once (tests/model/make_goldens.py)."""
    name, _, run = family
    assert run(golden_prompts()) == np.load(GOLDENS / f"{name}.npz")["tokens"].tolist()


@needs_torch
@pytest.mark.torch
@pytest.mark.slow  # the goldens above are of the same oracle
def test_live_greedy_tokens_are_those_of_hugging_face(family):
    """Prompts of every length around pages, buckets and chunks: few at once, and so many that pages run out."""
    from tests.model import hf_oracle

    _, path, run = family
    prompts = ragged_prompts()
    expected = hf_oracle.run(path, prompts, NUM_TOKENS)[1].tolist()
    assert run(prompts) == expected
    assert run([prompts[i] for i in FEW]) == [expected[i] for i in FEW]


@pytest.fixture(scope="module")
def engine(make_engine, tmp_path_factory):
    with make_engine(build_checkpoint(tmp_path_factory.mktemp("model"))) as engine:
        yield engine


@pytest.fixture(autouse=True)
def leaves_nothing(request):
    yield
    if "engine" in request.fixturenames:
        check_clean(request.getfixturevalue("engine"))


def test_texts(engine):
    prompts = ["Hello, my name is", "The capital of France is", "The quick brown fox"]
    results = engine.generate(prompts, {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True})
    for prompt, result in zip(prompts, results, strict=True):
        assert set(result) == {"text", "output_ids", "meta_info"}
        assert len(result["output_ids"]) == 24
        assert result["text"] == engine.tokenizer.decode(result["output_ids"])
        assert result["meta_info"]["prompt_tokens"] == len(engine.tokenizer.encode(prompt))
        assert result["meta_info"]["finish_reason"] == {"type": "length", "length": 24}
        again = engine.generate(prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
        assert again["output_ids"] == result["output_ids"]


def test_scores_are_the_probabilities_of_the_next_token(engine):
    """Those that /generate reports of the likeliest tokens, with the prompt's own log-probabilities."""
    query, items = "The capital of France", [" is", " was once"]
    one = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    for item in items:
        meta = engine.generate(query + item, one, return_logprob=True, top_logprobs_num=5)["meta_info"]
        top = {token_id: np.exp(logprob) for logprob, token_id, _ in meta["output_top_logprobs"][0]}
        (scores,) = engine.score(query, [item], list(top))
        np.testing.assert_allclose(scores, list(top.values()), rtol=1e-4)


def test_stream(engine):
    params = {"temperature": 1, "seed": 3, "max_new_tokens": 40, "ignore_eos": True}
    whole = engine.generate("Hello", params)
    chunks = list(engine.generate("Hello", params, stream=True))
    assert len(chunks) > 5
    assert all(after["text"].startswith(before["text"]) for before, after in itertools.pairwise(chunks))
    assert (chunks[-1]["text"], chunks[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert chunks[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]


def test_async(engine):
    params = {"temperature": 1, "seed": 3, "max_new_tokens": 40, "ignore_eos": True}

    async def main():
        results = await asyncio.gather(*(engine.async_generate(f"{i} apples", params) for i in range(12)))
        stream = await engine.async_generate("7 apples", params, stream=True)
        return results, [chunk async for chunk in stream]

    results, chunks = asyncio.run(main())
    assert tokens_of(results) == tokens_of(engine.generate([f"{i} apples" for i in range(12)], params))
    assert chunks[-1]["output_ids"] == results[7]["output_ids"]


def test_leaving_a_stream_frees_its_pages(engine):
    for chunk in engine.generate("Hello", {"max_new_tokens": 200, "ignore_eos": True}, stream=True):
        assert chunk["output_ids"]
        break
    engine.generate("Hello", {"max_new_tokens": 1})  # a turn of the engine later


@pytest.mark.slow  # tests/runtime/core/test_determinism.py has it
def test_seeded_samples_survive_retraction(engine):
    """A pool under pressure gives the tokens that an idle one gives."""
    prompts = ragged_prompts()
    params = [
        {"temperature": 1, "seed": seed, "max_new_tokens": 60, "ignore_eos": True, "frequency_penalty": 0.5}
        for seed in range(len(prompts))
    ]
    alone = [engine.generate(input_ids=p, sampling_params=s) for p, s in zip(prompts, params, strict=True)]
    crowd = engine.generate(input_ids=prompts, sampling_params=params)
    assert sum(result["meta_info"]["num_retractions"] for result in crowd) > 0
    assert tokens_of(crowd) == tokens_of(alone)


def test_n_and_logprobs(engine):
    params = {"temperature": 1, "seed": 3, "max_new_tokens": 10, "ignore_eos": True}
    samples = engine.generate("Hello", params | {"n": 3}, return_logprob=True, logprob_start_len=0, top_logprobs_num=2)
    singles = [engine.generate("Hello", params | {"seed": 3 + i}) for i in range(3)]
    assert tokens_of(samples) == tokens_of(singles)
    for sample in samples:
        meta = sample["meta_info"]
        assert [entry[1] for entry in meta["output_token_logprobs"]] == sample["output_ids"]
        assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
        assert all(len(top) == 2 for top in meta["output_top_logprobs"])


@pytest.mark.slow  # tests/runtime/core has it
def test_a_request_larger_than_the_pool(make_engine, tmp_path):
    from palladio import ContextLengthError, EngineDeadError

    engine = make_engine(build_checkpoint(tmp_path), max_total_tokens=64, compile="lazy")
    with engine:
        with pytest.raises(ContextLengthError, match=r"60 tokens.*--max-total-tokens.*64 tokens"):
            engine.generate(input_ids=[5] * 60, sampling_params={"max_new_tokens": 10})
        result = engine.generate(input_ids=[5] * 60, sampling_params={"max_new_tokens": 4, "ignore_eos": True})
        assert len(result["output_ids"]) == 4
        check_clean(engine)
    with pytest.raises(EngineDeadError):
        engine.generate("Hello")


def test_log_probabilities_of_chosen_tokens(engine):
    """At each position, what the token gets as the end of a prompt; one list for all prompts, or one for each."""
    prompts, ids = [[5, 6, 7], [9, 8]], [17, 20]
    asked = {"return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": [ids, ids[:1]]}
    results = engine.generate(input_ids=prompts, sampling_params={"max_new_tokens": 2, "temperature": 0}, **asked)
    for prompt, own, result in zip(prompts, (ids, ids[:1]), results, strict=True):
        meta, whole = result["meta_info"], [*prompt, *result["output_ids"]]
        assert meta["input_token_ids_logprobs"][0] is None
        found = [*meta["input_token_ids_logprobs"][1:], *meta["output_token_ids_logprobs"]]
        assert [[token_id for _, token_id, _ in entry] for entry in found] == [own] * (len(whole) - 1)
        for length, entry in enumerate(found, start=1):
            ends = [[*whole[:length], token_id] for token_id in own]
            scored = engine.generate(
                input_ids=ends, sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0
            )
            expected = [one["meta_info"]["input_token_logprobs"][-1][0] for one in scored]
            assert [value for value, _, _ in entry] == pytest.approx(expected, abs=1e-4)
    params = {"max_new_tokens": 1, "logprob_token_ids": ids}
    meta = engine.generate("Hello", params, return_logprob=True)["meta_info"]
    assert [token_id for _, token_id, _ in meta["output_token_ids_logprobs"][0]] == ids
