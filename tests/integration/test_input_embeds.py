"""`Engine.generate(input_embeds=…)`: the tokens of the prompts whose ids have these embeddings, in every form."""

import asyncio
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from palladio import Engine, InvalidRequestError
from tests.integration.serving import encoded_rows

IDS = [list(range(5, 25)), list(range(30, 37))]
PARAMS = {"temperature": 1.0, "max_new_tokens": 8, "seed": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(checkpoint, cache_dir) -> Iterator[Engine]:
    flags = {"page_size": 8, "chunked_prefill_size": 64, "max_total_tokens": 512, "max_running_requests": 8}
    flags |= {"cuda_graph_bs": (1,), "compilation_cache_dir": str(cache_dir / "xla"), "compile": "lazy"}
    with Engine(str(checkpoint), **flags, enable_input_embeds=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def table(checkpoint) -> np.ndarray:
    return load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"].astype(np.float32)


@pytest.fixture(scope="module")
def expected(engine) -> list[list[int]]:
    return [engine.generate(input_ids=ids, sampling_params=PARAMS)["output_ids"] for ids in IDS]


@pytest.mark.slow  # tests/runtime/core/test_input_embeds.py has the forms
def test_forms(engine, table, expected, checkpoint) -> None:
    one, other = (table[ids] for ids in IDS)
    for value in (one, one.tolist(), list(one), encoded_rows(checkpoint, IDS[0])):
        result = engine.generate(input_embeds=value, sampling_params=PARAMS)
        assert result["output_ids"] == expected[0]
        assert result["meta_info"]["prompt_tokens"] == len(IDS[0])
    assert result["meta_info"]["cached_tokens"] == 16, "in whatever form they come"
    batch = engine.generate(input_embeds=[one, other.tolist()], sampling_params=PARAMS)
    assert [row["output_ids"] for row in batch] == expected
    coarse = table.astype(ml_dtypes.bfloat16)[IDS[0]]
    assert engine.generate(input_embeds=coarse, sampling_params=PARAMS)["meta_info"]["cached_tokens"] == 0


@pytest.mark.slow  # tests/runtime/core/test_input_embeds.py has them without processes
def test_samples_streams_and_logprobs(engine, table, expected) -> None:
    two = PARAMS | {"n": 2}
    texts = [row["output_ids"] for row in engine.generate(input_ids=IDS[0], sampling_params=two)]
    assert [row["output_ids"] for row in engine.generate(input_embeds=table[IDS[0]], sampling_params=two)] == texts
    assert texts[0] == expected[0] != texts[1]
    *_, last = engine.generate(input_embeds=table[IDS[0]], sampling_params=PARAMS, stream=True)
    assert last["output_ids"] == expected[0]
    asked = {"return_logprob": True, "top_logprobs_num": 2, "sampling_params": PARAMS}
    info, text = engine.generate(input_embeds=table[IDS[0]], **asked), engine.generate(input_ids=IDS[0], **asked)
    found, wanted = ([entry[0] for entry in each["meta_info"]["output_token_logprobs"]] for each in (info, text))
    assert found == pytest.approx(wanted, abs=1e-4)

    async def ask() -> object:
        return await engine.async_generate(input_embeds=table[IDS[1]], sampling_params=PARAMS)

    assert asyncio.run(ask())["output_ids"] == expected[1]  # type: ignore[index]


def test_what_is_refused(engine, table) -> None:
    rows = table[IDS[0]]
    for given, words in (
        ({"input_embeds": rows, "input_ids": IDS[0]}, "give one of"),
        ({"input_embeds": rows[:, :5]}, f"rows have 5 numbers; this model's embeddings have {table.shape[1]}"),
        ({"input_embeds": rows * np.nan}, "row 0 has a number that is not finite"),
        ({"input_embeds": rows, "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len must be -1"),
        ({"input_embeds": rows, "sampling_params": {"prompt_logprobs": 1}}, "prompt_logprobs needs a prompt of token"),
        (
            {"input_embeds": np.zeros((600, table.shape[1]))},
            "600 rows; this server takes prompts of at most 512",
        ),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            engine.generate(**given)
