"""No field of a request is dropped on its way to the engine, and errors name fields as the client sent them."""

import ast
import inspect
from types import ModuleType

import pytest

from palladio.http.chat import chat_plan, chat_run
from palladio.http.chat import reasoning_plan as plan
from palladio.http.generation import chunks, params
from palladio.http.generation.params import SAME_NAME, WORKED_OUT
from palladio.http.prompts import tool_definitions, tools
from palladio.http.routes import routes_chat, routes_completions, routes_generate, routes_tokenize
from palladio.http.wire.protocol import SamplingFields, StreamOptions, WireModel
from palladio.http.wire.protocol_chat import ChatRequest, ReasoningFields, ToolFields
from palladio.http.wire.protocol_completions import CompletionRequest
from palladio.http.wire.protocol_generate import GenerateRequest
from palladio.http.wire.protocol_tokenize import DetokenizeRequest, TokenizeRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams

# Fields of all sampling requests that are read where they are needed: not copied to SamplingParams by name.
READ = {
    *("model", "max_tokens", "stop", "no_stop_trim", "include_stop_str_in_output", "add_special_tokens"),
    *("truncate_prompt_tokens", "return_token_ids", "stream", "stream_options", "rid", "request_id"),
    *("cache_salt", "extra_key", "priority", "timeout", "routed_dp_rank"),
    *("record_timeline", "return_timings", "return_progress", "no_logs", "log_metrics"),
    *("response_format", "json_schema", "regex", "ebnf", "structural_tag", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern", "usage"),
}
ROUTES: list[tuple[type[WireModel], set[str], tuple[ModuleType, ...]]] = [
    (
        ChatRequest,
        READ
        | {"messages", "input_ids", "chat_template", "verbosity", "max_completion_tokens", "logprobs", "top_logprobs"}
        | {"add_generation_prompt", "continue_final_message", "chat_template_kwargs"}
        | ReasoningFields.model_fields.keys()
        | ToolFields.model_fields.keys(),
        (chat_plan, chat_run, routes_chat, plan, tool_definitions, tools, params, chunks),
    ),
    (
        CompletionRequest,
        READ | {"prompt", "echo", "logprobs", "return_tokens_as_token_ids"},
        (routes_completions, params, chunks),
    ),
    (GenerateRequest, set(GenerateRequest.model_fields), (routes_generate,)),
    (TokenizeRequest, set(TokenizeRequest.model_fields), (routes_tokenize,)),
    (DetokenizeRequest, set(DetokenizeRequest.model_fields), (routes_tokenize,)),
]


def attributes_read(modules: tuple[ModuleType, ...], variable: str) -> set[str]:
    """What these modules read of a variable with this name."""
    return {
        node.attr
        for module in modules
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == variable
    }


@pytest.mark.parametrize(("model", "read", "modules"), ROUTES)
def test_every_request_field_is_handled(
    model: type[WireModel], read: set[str], modules: tuple[ModuleType, ...]
) -> None:
    copied = SAME_NAME if issubclass(model, SamplingFields) else set()
    assert set(model.model_fields) == copied | read
    assert not copied & read
    assert read <= attributes_read(modules, "body")


def test_every_stream_option_is_handled() -> None:
    of_chunks, of_params = attributes_read((chunks,), "options"), attributes_read((params,), "options")
    assert set(StreamOptions.model_fields) == of_chunks | {"include_progress"}
    assert "include_progress" in of_params


def test_every_sampling_parameter_can_be_sent() -> None:
    names = SamplingParams.__dataclass_fields__.keys()
    of_routes = {"grammar", "thinking", "closing", "visible_special_ids"}  # what other fields come to
    of_routes |= {"max_new_tokens", "min_new_tokens", "sampling_seed"}  # SGLang's names of others
    assert names == SAME_NAME | WORKED_OUT | of_routes
    of_generate = {"logprobs", "prompt_logprobs", "logprob_token_ids"}  # /generate has names of its own for them
    assert names - of_generate - of_routes <= routes_generate.SAMPLING_NAMES
