"""What closed a sample's thought is told once by the engine, and stays known to the front."""

from palladio.runtime.front.requests.samples import SampleProcessor, merge_outputs
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams


def test_what_closed_a_thought_stays_known() -> None:
    request = GenerationRequest("a", [5], SamplingParams(max_tokens=9))
    processor = SampleProcessor("a", 0, request, None)
    outputs = [
        processor.process(TokenOutput("a", [6])),
        processor.process(TokenOutput("a", [7], closed="budget")),
        processor.process([8]),
        processor.abort(),
    ]
    assert [output.closed for output in outputs] == [None, "budget", "budget", "budget"]
    (merged,) = merge_outputs(outputs, 100)
    assert (merged.token_ids, merged.closed) == ([6, 7, 8], "budget")


def test_what_a_runner_says_of_a_token_goes_with_it() -> None:
    output = TokenOutput("a", [6, 7], finish=FinishReason("abort"))
    output.cut(1)
    assert (output.token_ids, output.finish) == ([6], None)
