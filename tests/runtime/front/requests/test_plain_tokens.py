"""Tokens of which there is nothing else to tell, on their way from the engine's message to a caller."""

import itertools

import pytest

from palladio.runtime.front.requests.request_table import RequestTable
from palladio.runtime.front.requests.samples import SampleProcessor
from palladio.runtime.interface.messages.calls import StepOutputs
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason, PlainTokens, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.tiny_tokenizer import build_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tok")))


def text_of(outputs: list[RequestOutput]) -> str:
    return "".join(output.text for output in outputs)


@pytest.mark.parametrize("stop", [(), ("o, thr",)])
async def test_tokens_alone_are_read_as_others_are(tokenizer, stop):
    ids = tokenizer.encode("one, two, three, four")
    params = SamplingParams(max_tokens=99, seed=0, stop=stop)
    given = GenerationRequest("r~0", [5, 6], params, (2,), 100.0)
    outputs = [
        SampleProcessor("r", 0, given, tokenizer).process(TokenOutput("r~0", ids, finish=FinishReason("length")))
    ]
    table = RequestTable(None)
    stream = table.open("r", [given], tokenizer)
    table.process(StepOutputs([TokenOutput("r~0", ids[:1], cached_tokens=1)]))
    stopped = [table.process(StepOutputs([], [PlainTokens.of(["r~0"], [[one]])])) for one in ids[1:-1]]
    table.process(StepOutputs([TokenOutput("r~0", ids[-1:], finish=FinishReason("length"), cached_tokens=1)]))
    told = await stream.take()
    assert text_of(told) == text_of(outputs) == "one, two, three, four"[: 7 if stop else None]
    assert [i for output in told for i in output.token_ids] == outputs[0].token_ids
    assert (told[-1].finish, told[-1].cached_tokens) == (outputs[0].finish, 1)
    assert list(itertools.chain(*stopped)) == ["r~0"] * bool(stop), "the engine is told where it does not know"
