"""Every wrong request gets an OpenAI error body that names the field; never a 422, never a 500."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.http.wire.protocol_completions import CompletionRequest
from palladio.http.wire.protocol_generate import GenerateRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.field_tables import METADATA, NOT_YET
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import running_server

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "f"}}
DEEP = '{"items":' * 129 + "1" + "}" * 129


@pytest.fixture(scope="module")
def shared(tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    """One server for the tables below; nothing in them reaches the engine's work."""
    engine = FakeEngine(tokenizer)
    with running_server(engine, HttpConfig()) as url, httpx.Client(base_url=url) as client:
        yield client
    assert not engine.calls


def error_of(response: httpx.Response, status: int = 400) -> dict:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": None}, "messages", "required"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": ["hi"]}, "messages.0", "dictionary"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role", "role"),
        ({"messages": [{"role": 3, "content": "hi"}]}, "messages.0.role", "string"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "missing"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "string"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages.0.content.0", "object"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text", "string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
            "not supported yet",
        ),
        ({"messages": [{"role": "martian", "content": "hi"}]}, "messages", "unknown role martian"),
        ({"temperature": "hot"}, "temperature", 'number, got "hot"'),
        ({"temperature": "0.5"}, "temperature", "number"),
        ({"temperature": -1}, "temperature", "≥ 0"),
        ({"temperature": True}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "> 0"),
        ({"top_p": 1.5}, "top_p", "1"),
        ({"top_k": 1.5}, "top_k", "integer"),
        ({"min_p": 2}, "min_p", "1"),
        ({"max_tokens": -1}, "max_tokens", "≥ 0"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_completion_tokens": -5}, "max_completion_tokens", "max_completion_tokens must be"),
        ({"max_completion_tokens": 10**15}, "max_completion_tokens", "max_completion_tokens (10000"),
        ({"max_tokens": 10**30}, "max_tokens", "integer"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "differ"),
        ({"max_tokens": "5"}, "max_tokens", "integer"),
        ({"n": 0}, "n", "[1, 128]"),
        ({"n": 100000}, "n", "[1, 128]"),
        ({"seed": 2**64}, "seed", ""),
        ({"seed": 1.5}, "seed", "integer"),
        ({"stop": 5}, "stop", "string or should be a valid list"),
        ({"stop": [1]}, "stop.0", "string"),
        ({"stop": {"a": 1}}, "stop", "string or should be a valid list, got an object"),
        ({"stop": [""]}, "stop", "non-empty"),
        ({"stop": ["x"] * 100}, "stop", "at most"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "≥ 0"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids.0", "integer"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "100"),
        ({"logit_bias": [1]}, "logit_bias", "dictionary"),
        ({"frequency_penalty": 3}, "frequency_penalty", "2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "> 0"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs must be"),
        ({"logprobs": 3}, "logprobs", "boolean"),
        ({"stream": "yes"}, "stream", 'boolean, got "yes"'),
        ({"stream_options": {"include_usage": 3}}, "stream_options.include_usage", "boolean"),
        ({"stream_options": {"include_usag": True}}, "stream_options.include_usag", "did you mean include_usage"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "stream"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "max_tokens"),
        ({"rid": "a", "request_id": "b"}, "rid", "same"),
        ({"rid": ""}, "rid", "at least 1"),
        ({"no_stop_trim": True, "include_stop_str_in_output": False}, "no_stop_trim", "same"),
        ({"continue_final_message": True}, "continue_final_message", "role assistant"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "set by the server"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs", "dictionary"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"prompt": "hi"}, "prompt", "unknown field"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name", "name"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
            "missing",
        ),
        ({"response_format": {"type": "regex"}}, "response_format.regex", "missing"),
        ({"response_format": {"type": "json_object"}, "regex": "a+"}, "response_format", "exclude each other"),
        ({"regex": "a+", "ebnf": 'root ::= "a"'}, "ebnf", "regex and ebnf exclude each other"),
        ({"regex": ""}, "regex", "empty"),
        ({"json_schema": "{}", "guided_json": {}}, "guided_json", "exclude each other"),
        ({"guided_choice": ["x" * 200_000], "n": 100}, "guided_choice", "over the limit"),
        ({"guided_choice": [1]}, "guided_choice.0", "string"),
        ({"structured_outputs": {"jsom": {}}}, "structured_outputs.jsom", "unknown"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "json, regex"),
        ({"guided_whitespace_pattern": "x"}, "guided_whitespace_pattern", "no effect without guided_json"),
        ({"structured_outputs": {"whitespace_pattern": "x"}}, "structured_outputs.whitespace_pattern", "no effect"),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
            "no effect without json",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": "x", "disable_any_whitespace": True}},
            "structured_outputs.whitespace_pattern",
            "exclude each other",
        ),
        ({"structured_outputs": {"json_object": "no"}}, "structured_outputs.json_object", "true or false"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": 5}},
            "structured_outputs.whitespace_pattern",
            "a string",
        ),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"response_format": {"type": "json_object", "shema": {}}}, "response_format.shema", "did you mean schema"),
        ({"response_format": {"type": "json_object", "regex": "a"}}, "response_format.regex", "known: type, schema"),
        ({"response_format": {"type": ["text"]}}, "response_format.type", "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "stricter": True}}},
            "response_format.json_schema.stricter",
            "did you mean strict",
        ),
        ({"json_schema": "{bad"}, "json_schema", "not valid JSON"),
        ({"json_schema": "[1]"}, "json_schema", "a JSON schema"),
        ({"tools": [TOOL], "json_schema": "{bad"}, "json_schema", "not valid JSON"),
        ({"guided_json": DEEP}, "guided_json", "128 levels"),
        ({"structural_tag": DEEP}, "structural_tag", "128 levels"),
        ({"tools": [TOOL] * 129}, "tools", "128, got 129"),
        ({"functions": [TOOL["function"]] * 129}, "functions", "128, got 129"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "'none'"),
        ({"lora_path": "x"}, "lora_path", "not supported yet"),
        ({"best_of": 2}, "best_of", "use n"),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported yet"),
    ],
)
def test_chat_field(shared: httpx.Client, fields: dict, param: str, words: str) -> None:
    for stream in (False, True):
        error = error_of(shared.post("/v1/chat/completions", json={"stream": stream} | CHAT | fields))
        assert error["param"] == param
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": ["a", ""]}, "prompt", "empty"),
        ({"prompt": [1, "a"]}, "prompt", "list of token ids"),
        ({"prompt": {"a": 1}}, "prompt", "list of token ids"),
        ({"prompt": [True]}, "prompt", "list of token ids"),
        ({"prompt": [[1]] * 5000}, "prompt", "at most 4096"),
        ({"prompt": [[1]] * 33, "n": 128}, "n", "4096 samples (prompts × n), got 4224 of 33 prompts"),
        ({"max_tokens": 10**6}, "max_tokens", "max_tokens (1000000)"),
        ({"prompt": [5] * 2000, "min_tokens": 100}, "min_tokens", "max_tokens (48)"),
        ({"prompt": [100000]}, "prompt", "vocabulary"),
        ({"prompt": "x " * 5000}, "prompt", "tokens"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"logprobs": 21}, "logprobs", "[0, 20]"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"suffix": "x"}, "suffix", "not supported yet"),
        ({"echo": True, "logprobs": 1, "n": 2, "stream": True}, "n", "stream"),
        ({"messages": [{}]}, "messages", "unknown field"),
    ],
)
def test_completion_field(shared: httpx.Client, fields: dict, param: str, words: str) -> None:
    error = error_of(shared.post("/v1/completions", json={"prompt": "hi"} | fields))
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"text": None}, "text", "one of"),
        ({"input_ids": [1]}, "text", "one of"),
        ({"text": []}, "text", "empty"),
        ({"text": None, "input_ids": ["a"]}, "input_ids", "token ids"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature", "≥ 0"),
        ({"sampling_params": {"temprature": 1}}, "sampling_params.temprature", "did you mean temperature?"),
        ({"sampling_params": {"regex": "a", "ebnf": "b"}}, "sampling_params.ebnf", "exclude each other"),
        ({"sampling_params": {"regex": 5}}, "sampling_params.regex", "a string"),
        ({"sampling_params": {"logprobs": 1}}, "sampling_params.logprobs", "unknown"),
        ({"sampling_params": [{}, {}]}, "sampling_params", "2 entries for 1"),
        ({"sampling_params": 5}, "sampling_params", "dictionary"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid", "different"),
        ({"top_logprobs_num": 3}, "top_logprobs_num", "return_logprob"),
        ({"return_logprob": True, "top_logprobs_num": 30}, "top_logprobs_num", "20"),
        ({"text": ["a"] * 33, "sampling_params": {"n": 128}}, "sampling_params.n", "4096 samples"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"n": 129}]}, "sampling_params.n", "[1, 128]"),
        (
            {"sampling_params": {"max_new_tokens": 10**6}},
            "sampling_params.max_new_tokens",
            "max_new_tokens (1000000)",
        ),
        ({"sampling_params": {"max_tokens": 10**6}}, "sampling_params.max_tokens", "max_tokens (1000000)"),
        (
            {"sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}},
            "sampling_params.min_new_tokens",
            "max_new_tokens (3)",
        ),
        ({"text": "x " * 3000}, "text", "too long"),
        ({"text": "x " * 100_000}, "text", "Send a shorter prompt."),
        ({"text": None, "input_ids": [5] * 3000}, "input_ids", "too long"),
        ({"image_data": "x"}, "image_data", "not supported yet"),
    ],
)
def test_generate_field(shared: httpx.Client, fields: dict, param: str, words: str) -> None:
    error = error_of(shared.post("/generate", json={"text": "hi"} | fields))
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b'{"messages": "\xff\xfe"}', b'{"temperature": NaN}', b'{"seed": Infinity}'],
)
def test_body_that_is_not_a_json_object(shared: httpx.Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    assert "JSON" in error_of(shared.post("/v1/chat/completions", content=body, headers=headers))["message"]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
def test_numbers_that_are_not_finite(http: httpx.Client, number: str) -> None:
    body = json.dumps(CHAT)[:-1] + f', "temperature": {number}}}'
    error_of(http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"}))


def test_lone_surrogate(http: httpx.Client) -> None:
    body = b'{"prompt": "\\ud800"}'
    error_of(http.post("/v1/completions", content=body, headers={"content-type": "application/json"}))


def test_content_type(http: httpx.Client) -> None:
    error = error_of(http.post("/v1/completions", content=b"prompt=x", headers={"content-type": "text/plain"}), 415)
    assert "application/json" in error["message"]
    for good in ("application/json; charset=utf-8", "application/vnd.api+json"):
        response = http.post("/v1/completions", content=b'{"prompt": "x"}', headers={"content-type": good})
        assert response.status_code == 200


def test_model_names(http: httpx.Client, serve) -> None:
    error = error_of(http.post("/v1/chat/completions", json=CHAT | {"model": "gpt-4"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert MODEL in error["message"]
    assert "--served-model-name" in error["message"]
    error_of(http.get("/v1/models/other/model"), 404)
    other = httpx.Client(base_url=serve(served_model_name=("a", "b", "*")))
    assert other.post("/v1/chat/completions", json=CHAT | {"model": "gpt-4"}).json()["model"] == "gpt-4"
    assert [model["id"] for model in other.get("/v1/models").json()["data"]] == ["a", "b"]


def test_routes_of_llama_cpp_that_are_not_here_name_what_is(http: httpx.Client) -> None:
    for method, path, words in (
        ("POST", "/completion", "use POST /v1/completions"),
        ("POST", "/embedding", "use POST /v1/embeddings"),
        ("GET", "/slots", "use GET /v1/loads"),
    ):
        error = error_of(http.request(method, path, json={} if method == "POST" else None), 404)
        assert (error["code"], words in error["message"]) == ("unknown_url", True)


def test_routes_and_methods(http: httpx.Client) -> None:
    assert error_of(http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    response = http.delete("/v1/chat/completions")
    assert "POST" in error_of(response, 405)["message"]
    assert response.headers["allow"] == "POST"


def test_prompt_over_the_context(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "x " * 5000}]
    error = error_of(http.post("/v1/chat/completions", json=CHAT | {"messages": messages}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_one_prompt_over_the_context_refuses_all(http: httpx.Client, engine: FakeEngine) -> None:
    engine.holds = True  # no token comes before all prompts were looked at
    for stream in (False, True):
        error = error_of(http.post("/generate", json={"input_ids": [[5], [5] * 3000], "stream": stream}))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input_ids")


def test_what_is_too_long_to_answer_can_be_counted(http: httpx.Client) -> None:
    text = "x " * 100_000
    assert http.post("/tokenize", json={"prompt": text}).json()["count"] > 2048
    assert http.post("/tokenize", json={"messages": [{"role": "user", "content": text}]}).json()["count"] > 2048
    assert error_of(http.post("/v1/completions", json={"prompt": text}))["code"] == "context_length_exceeded"


def test_prompt_of_ten_megabytes(serve) -> None:
    """Refused before it is tokenized, which would take a minute."""
    content = "word " * 2_000_000
    with httpx.Client(base_url=serve(max_request_bytes=20_000_000), timeout=20) as http:
        response = http.post("/v1/chat/completions", json=CHAT | {"messages": [{"role": "user", "content": content}]})
    error = error_of(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "Send a shorter prompt." in error["message"]


def test_body_over_the_limit(serve) -> None:
    with httpx.Client(base_url=serve(max_request_bytes=1000)) as client:
        error = error_of(client.post("/v1/completions", content=b"x" * 1001), 413)
        assert "--max-request-bytes" in error["message"]

        def chunks():
            for _ in range(10):
                yield b"x" * 200

        assert error_of(client.post("/v1/completions", content=chunks()), 413) == error
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_every_field_of_the_tables_is_judged() -> None:
    for name in METADATA:
        ChatRequest.parse(CHAT | {name: "x"})
    for name in NOT_YET.keys() - ChatRequest.model_fields.keys():
        with pytest.raises(InvalidRequestError) as caught:
            ChatRequest.parse(CHAT | {name: {"some": "thing"}})
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
        for empty in (None, *(() if NOT_YET[name].empty_asks else (False, [], {}, ""))):
            ChatRequest.parse(CHAT | {name: empty})
    judged = METADATA.keys() | NOT_YET.keys()
    cut = {"truncate_prompt_tokens"}  # which /generate has not
    assert judged & ChatRequest.model_fields.keys() == cut | {"chat_template", "input_ids"}  # of chat alone
    assert (
        judged & CompletionRequest.model_fields.keys() == {"return_tokens_as_token_ids"} | cut
    )  # chat has bytes to tell
    assert judged & GenerateRequest.model_fields.keys() == {"input_ids"}  # only /generate takes it


def test_sdk_maps_the_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**CHAT | {"model": "other"})
    assert caught.value.code == "model_not_found"


def test_defect_is_a_500_with_an_id_in_the_log(
    http: httpx.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refuse = ZeroDivisionError("boom")
    for stream in (False, True):
        response = http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
        error = error_of(response, 500)
        assert response.headers["x-request-id"] in error["message"]
        assert "boom" not in error["message"]
        assert response.headers["x-request-id"] in caplog.text
    engine.refuse, engine.fail, engine.fail_after = None, ZeroDivisionError("boom"), 1
    text = http.post("/v1/chat/completions", json=CHAT | {"stream": True}).text
    assert '"code":"internal_error"' in text
    assert text.endswith("data: [DONE]\n\n")


def test_request_id_already_running(http: httpx.Client, engine: FakeEngine) -> None:
    engine.delay = 0.02
    with http.stream("POST", "/v1/completions", json={"prompt": "x", "rid": "a", "stream": True}):
        error = error_of(http.post("/v1/completions", json={"prompt": "x", "rid": "a"}))
    assert error["param"] == "rid"
