"""Messages keep the fields that they mention apart from their words."""

import pickle

import pytest

from palladio.runtime.interface.errors import ContextLengthError, InvalidRequestError, Message, ModelNotFoundError
from palladio.runtime.interface.messages.calls import StepOutputs
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenOutput
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.codec import from_engine_codec


def test_an_error_reads_right_without_names() -> None:
    error = ContextLengthError.of(
        "{param} ({least:g}) must not be over {limit}, got {value!r}",
        param="min_tokens",
        fields={"limit": "max_tokens"},
        least=5,
        value="x",
    )
    assert str(error) == "min_tokens (5) must not be over max_tokens, got 'x'"
    assert (error.param, error.code) == ("min_tokens", "context_length_exceeded")
    assert error.message.parts == ("", "min_tokens", " (5) must not be over ", "max_tokens", ", got 'x'")


def test_values_are_never_taken_for_fields() -> None:
    quoted = "{param} {limit} max_tokens {0} }{"
    error = InvalidRequestError.of("{param}: {value!r} and {value}", param="max_tokens", value=quoted)
    renamed = error.rename({"max_tokens": "limit"})
    assert str(renamed) == f"limit: {quoted!r} and {quoted}"
    assert renamed.param == "limit"
    plain = InvalidRequestError(f"not a number: {quoted}", param="max_tokens").rename({"max_tokens": "limit"})
    assert (str(plain), plain.param) == (f"not a number: {quoted}", "limit")


def test_several_fields_and_braces() -> None:
    error = InvalidRequestError.of('{both} exclude each other: {{"a": 1}}', fields={"both": ("a", "b.c")})
    assert str(error) == 'a and b.c exclude each other: {"a": 1}'
    assert str(error.message.rename(str.upper)) == 'A and B.C exclude each other: {"a": 1}'
    with pytest.raises(KeyError):
        InvalidRequestError.of("{parm} is wrong", param="a")


def test_errors_of_a_fixed_field() -> None:
    error = ModelNotFoundError("no such model")
    assert (error.param, error.code, str(error)) == ("model", "model_not_found", "no such model")


def test_the_fields_cross_the_process_border() -> None:
    error = InvalidRequestError.of("the {param} ({kind}) is malformed", param="grammar", kind="regex")
    codec = from_engine_codec()
    sent = StepOutputs([TokenOutput("a", [], finish=FinishReason.refusal(error))])
    received = codec.decode(codec.encode(sent))
    assert isinstance(received, StepOutputs)
    finish = received.outputs[0].finish
    assert finish is not None
    assert finish.message == "the grammar (regex) is malformed"
    again = finish.error("aborted")
    assert isinstance(again, InvalidRequestError)
    assert again.message == error.message == Message(("the ", "grammar", " (regex) is malformed"))
    assert pickle.loads(pickle.dumps(error)).message == error.message


@pytest.mark.parametrize(
    ("values", "param", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens", "max_new_tokens must be an integer ≥ 0, got -1"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens must be an integer ≥ 0, got -1"),
        ({"max_new_tokens": "max_tokens"}, "max_new_tokens", "max_new_tokens must be an integer ≥ 0, got 'max_tokens'"),
        (
            {"min_tokens": 5, "max_new_tokens": 3},
            "min_tokens",
            "min_tokens (5) must not be over max_new_tokens (3)",
        ),
        ({"regex": "a", "ebnf": "b"}, "ebnf", "regex and ebnf exclude each other; give one"),
    ],
)
def test_sglangs_names_are_those_that_were_given(values: dict[str, object], param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams.from_dict(values)
    assert (caught.value.param, str(caught.value)) == (param, message)
