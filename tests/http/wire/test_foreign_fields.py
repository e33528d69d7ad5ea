"""Fields that a route does not have: of other servers, of other routes, misspelt, and unknown to everybody."""

import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.http.wire.fields import MAX_WARNINGS
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.field_tables import METADATA, NOT_YET, OF_OTHER_ROUTES
from palladio.runtime.interface.request.foreign_fields import find_misspelt
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve, running_server

USER: Any = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/generate": {"text": "hi"},
    "/invocations": {"messages": USER},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/messages/count_tokens": {"messages": USER},
}
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/invocations")
WARNING = {"message": "unknown field: xyzzy (ignored)", "param": "xyzzy", "code": "unknown_parameter"}


@pytest.fixture(scope="module")
def plain(tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    """One server for what depends on nothing but the request."""
    with (
        running_server(FakeEngine(tokenizer, reply="Hello"), HttpConfig()) as url,
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        yield client


def objects(stream: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


# What users of other servers send, with values that ask for nothing here, or only for what is so anyway.
HARMLESS: tuple[dict[str, Any], ...] = (
    {"top_logprobs": 0},
    {"typical_p": 1},
    {"typical_p": 1.0},
    {"top_a": 0},
    {"tfs_z": 1.0},
    {"typical": 1.0, "min_keep": 0},
    {"rep_pen": 1, "beam_width": 1, "adaptive_target": -0.01, "banned_strings": [], "custom_token_bans": ""},
    {"return_meta_info": False, "return_cached_tokens_details": False, "use_audio_in_video": False},
    {"top_n_sigma": -1.0},
    {"xtc_probability": 0, "xtc_threshold": 0.1},
    {"dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2},
    {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1},
    {"dynatemp_range": 0, "dynatemp_exponent": 1},
    {"smoothing_factor": 0},
    {"epsilon_cutoff": 0, "eta_cutoff": 0},
    {"repeat_penalty": 1.0, "repeat_last_n": 64},
    {"no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1, "penalty_alpha": 0},
    {"guidance_scale": 1, "negative_prompt": ""},
    {"best_of": 1},
    {"length_penalty": 1.0, "early_stopping": False, "num_beams": 1, "use_beam_search": False},
    {"do_sample": True},
    {"echo": False},
    {"cache_prompt": True},
    {"cache_prompt": False, "id_slot": -1, "n_cache_reuse": 256},
    {"n_predict": -1},
    {"n_keep": 0, "n_probs": 0, "t_max_predict_ms": 0},
    {"samplers": []},
    {"timings_per_token": False, "return_progress": False, "post_sampling_probs": False},
    {"options": {}},
    {"keep_alive": "5m"},
    {"keep_alive": -1},
    {"format": ""},
    {"raw": False, "template": "", "images": []},
    {"ttl": 300, "draft_model": ""},
    {"provider": {"order": ["x"]}, "route": "fallback", "models": [], "transforms": [], "plugins": []},
    {"usage": {"include": True}},
    {"guided_whitespace_pattern": ""},
    {"guided_decoding_backend": "outlines", "disable_fallback": True},
    {"data_parallel_rank": 0},
    {"data_parallel_rank": -1, "dp_rank": 0},
    {"truncation_side": "left"},
    {"detokenize": True},
    {"return_prompt_token_ids": False, "return_tokens_as_token_ids": False},
    {"extra_body": {}, "extra_headers": {}},
    {"random_seed": None, "safe_prompt": False},
    {"search_parameters": {"mode": "off"}, "enable_search": False, "deferred": False},
    {"tool_stream": True, "parse_tool_calls": True},
    {"reasoning_format": "auto"},
    {"watermark": False, "decoder_input_details": False, "top_n_tokens": 0, "return_full_text": False},
    {"return_bytes": False, "return_entropy": False},
    {"return_sampling_mask": False, "return_flat_raw_top_logprobs": False, "require_reasoning": False},
    {"routing_key": "a", "conversation_id": "b", "custom_labels": {"a": "b"}, "kv_hints": {}},
    {"lora": [], "lora_path": ""},
    {"bootstrap_host": None, "bootstrap_port": None, "bootstrap_room": None},
    {"litellm_call_id": "x", "litellm_metadata": {}, "inference_geo": "us", "speed": "standard"},
    {"context_length_exceeded_behavior": "error", "raw_output": False, "echo_last": 0},
    {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0},
    {"parallel_tool_calls": True, "tools": [], "tool_choice": None, "logit_bias": None},
    {"response_format": {"type": "text"}},
    {"skip_special_tokens": True, "add_special_tokens": None, "log_metrics": True},
    {"enable_thinking": None, "include_reasoning": True, "separate_reasoning": True},
)


@pytest.mark.parametrize("fields", HARMLESS, ids=lambda fields: ",".join(fields))
def test_what_asks_for_nothing_passes_in_silence(plain: httpx.Client, fields: dict[str, Any]) -> None:
    for path, body in BODIES.items():
        if path == "/generate":
            fields = {name: value for name, value in fields.items() if name != "lora_path"}
        answer = plain.post(path, json=body | fields)
        assert answer.status_code == 200, (path, answer.text)
        assert "warnings" not in answer.json(), path


# What would change the answer: named, with the fix.
ASKING: tuple[tuple[dict[str, Any], str], ...] = (
    ({"typical_p": 0.9}, "use top_p or min_p"),
    ({"repeat_penalty": 1.1}, "use repetition_penalty"),
    ({"best_of": 3}, "use n"),
    ({"xtc_probability": 0.5}, "not supported yet"),
    ({"mirostat": 2}, "use temperature"),
    ({"do_sample": False}, "use temperature: 0"),
    ({"detokenize": False}, "use return_token_ids"),
    ({"n_predict": 128}, "use max_tokens"),
    ({"num_predict": 128}, "use max_tokens"),
    ({"random_seed": 1}, "use seed"),
    ({"options": {"temperature": 0}}, "put its fields at the top level of the body"),
    ({"extra_body": {"top_k": 1}}, "put its fields at the top level of the body"),
    ({"format": "json"}, "use response_format"),
    ({"grammar": "root ::= 'a'"}, "use ebnf"),
    ({"think": False}, "use thinking"),
    ({"web_search_options": {}}, "even an empty object asks for a web search"),
    ({"truncation_side": "right"}, "truncate_prompt_tokens keeps the end"),
    ({"data_parallel_rank": 1}, "use routed_dp_rank"),
    ({"return_entropy": True}, "not supported yet"),
    ({"return_bytes": True}, "not supported yet"),
    ({"models": ["a", "b"]}, "use model"),
)


@pytest.mark.parametrize(("fields", "fix"), ASKING, ids=str)
def test_what_asks_for_something_is_refused_by_name(plain: httpx.Client, fields: dict[str, Any], fix: str) -> None:
    (name,) = fields
    for path, body in BODIES.items():
        answer = plain.post(path, json=body | fields)
        assert answer.status_code == 400, (path, answer.text)
        assert f"not supported yet: {name}" in answer.json()["error"]["message"]
        assert fix in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", NOT_YET)
def test_each_row_of_the_table_is_kept_to(name: str) -> None:
    rule = NOT_YET[name]
    if name in ChatRequest.model_fields:
        return
    for value in rule.neutral:
        ChatRequest.parse(BODIES["/v1/chat/completions"] | {name: value})
        if isinstance(value, bool):
            with pytest.raises(InvalidRequestError, match=f"not supported yet: {name}"):
                ChatRequest.parse(BODIES["/v1/chat/completions"] | {name: int(value) + 7})
    if rule.empty_asks:
        for empty in ({}, [], ""):
            with pytest.raises(InvalidRequestError, match=f"not supported yet: {name}"):
                ChatRequest.parse(BODIES["/v1/chat/completions"] | {name: empty})


def test_a_field_is_in_one_table_only() -> None:
    assert not METADATA.keys() & NOT_YET.keys()
    assert not OF_OTHER_ROUTES.keys() & (METADATA.keys() | NOT_YET.keys())


OF_OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"prompt": "x"}),
    ("/v1/chat/completions", {"max_new_tokens": 3}),
    ("/v1/chat/completions", {"stop_sequences": ["x"]}),
    ("/v1/chat/completions", {"max_output_tokens": 3}),
    ("/v1/chat/completions", {"sampling_params": {"n": 2}}),
    ("/v1/completions", {"tools": [{}]}),
    ("/v1/completions", {"reasoning_effort": "low"}),
    ("/v1/responses", {"messages": USER}),
    ("/v1/responses", {"max_tokens": 3}),
    ("/v1/responses", {"n": 2}),
    ("/v1/messages", {"stop": "x"}),
    ("/v1/messages", {"skip_special_tokens": False}),
    ("/v1/messages", {"include_reasoning": False}),
    ("/v1/messages", {"presence_penalty": 1}),
    ("/generate", {"temperature": 0}),
    ("/generate", {"max_tokens": 3}),
    ("/generate", {"sampling_params": {"logprobs": 3}}),
)


@pytest.mark.parametrize(("path", "fields"), OF_OTHERS, ids=str)
def test_what_other_routes_know_is_no_unknown_field(plain: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    answer = plain.post(path, json=BODIES[path] | fields)
    assert answer.status_code == 400, answer.text
    assert next(iter(fields)) in answer.json()["error"]["message"]


MISSPELT = (
    *(("temprature", "temperature"), ("temperatuer", "temperature"), ("max_token", "max_tokens"), ("tool", "tools")),
    *(("presense_penalty", "presence_penalty"), ("top-p", "top_p"), ("sead", "seed"), ("stops", "stop")),
    *(("loar_path", "lora_path"), ("metdata", "metadata"), ("stream_option", "stream_options")),
)


@pytest.mark.parametrize(("name", "meant"), MISSPELT)
def test_a_misspelt_field_is_refused(plain: httpx.Client, name: str, meant: str) -> None:
    error = plain.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"] | {name: 1}).json()["error"]
    assert (error["param"], error["code"]) == (name, "unknown_parameter")
    assert error["message"] == f"unknown field: {name}; did you mean {meant}?"


def test_what_is_not_misspelt() -> None:
    known = ChatRequest.model_fields
    for name in ("xyzzy", "id", "x", "tmprtr", "chat_id", "features", "a" * 100_000):
        assert find_misspelt(name, known) is None, name
    for name in known:
        assert len(name) < 4 or find_misspelt(name[:-1], known) is not None, name


@pytest.mark.parametrize("name", ["num_ctx", "name", "tags", "include_usage", "tokens"])
def test_a_field_of_what_is_no_request_to_a_model_is_unknown(plain: httpx.Client, name: str) -> None:
    """Of options, of routes for operators."""
    answer = plain.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"] | {name: 5}).raise_for_status()
    assert [warning["param"] for warning in answer.json()["warnings"]] == [name]


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_field_is_told_of(plain: httpx.Client, path: str) -> None:
    assert plain.post(path, json=BODIES[path] | {"xyzzy": 1}).json()["warnings"] == [WARNING]
    assert "warnings" not in plain.post(path, json=BODIES[path]).json()


SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}
NESTED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("/v1/chat/completions", {"stream_options": {"xyzzy": 1}}, "stream_options.xyzzy"),
    ("/v1/chat/completions", {"usage": {"include": True, "xyzzy": 1}}, "usage.xyzzy"),
    ("/v1/chat/completions", {"response_format": {"type": "text", "xyzzy": 1}}, "response_format.xyzzy"),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "xyzzy": 1}}},
        "response_format.json_schema.xyzzy",
    ),
    ("/v1/completions", {"structured_outputs": {"json": SCHEMA, "xyzzy": 1}}, "structured_outputs.xyzzy"),
    ("/v1/responses", {"text": {"xyzzy": 1}}, "text.xyzzy"),
    ("/v1/responses", {"text": {"format": {"type": "text", "xyzzy": 1}}}, "text.format.xyzzy"),
    (
        "/v1/responses",
        {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "xyzzy": 1}]},
        "tools.0.xyzzy",
    ),
    ("/v1/messages", {"output_config": {"xyzzy": 1}}, "output_config.xyzzy"),
    ("/v1/messages", {"context_management": {"edits": [], "xyzzy": 1}}, "context_management.xyzzy"),
    ("/v1/messages", {"tools": [{"name": "f", "input_schema": SCHEMA, "xyzzy": 1}]}, "tools.0.xyzzy"),
    ("/v1/messages/count_tokens", {"tools": [{"name": "f", "input_schema": SCHEMA, "xyzzy": 1}]}, "tools.0.xyzzy"),
    ("/generate", {"sampling_params": {"xyzzy": 1}}, "sampling_params.xyzzy"),
)


@pytest.mark.parametrize(("path", "fields", "param"), NESTED, ids=str)
def test_an_unknown_field_of_an_object_is_told_of(
    plain: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    (warning,) = plain.post(path, json=BODIES[path] | fields).raise_for_status().json()["warnings"]
    assert warning == {"message": f"unknown field: {param} (ignored)", "param": param, "code": "unknown_parameter"}


NESTED_ERRORS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("/v1/chat/completions", {"stream_options": {"include_usages": True}}, "stream_options.include_usages"),
    ("/v1/chat/completions", {"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"schem": SCHEMA}}},
        "response_format.json_schema.schem",
    ),
    ("/v1/completions", {"structured_outputs": {"jsn": SCHEMA}}, "structured_outputs.jsn"),
    ("/v1/responses", {"text": {"fromat": {}}}, "text.fromat"),
    ("/v1/responses", {"tools": [{"type": "function", "name": "f", "paramters": SCHEMA}]}, "tools.0.paramters"),
    ("/v1/messages", {"tools": [{"name": "f", "input_schema": SCHEMA, "defer_loading": True}]}, "defer_loading"),
    ("/v1/messages", {"tools": [{"name": "f", "inputschema": SCHEMA}]}, "tools.0.inputschema"),
)


@pytest.mark.parametrize(("path", "fields", "param"), NESTED_ERRORS, ids=str)
def test_what_would_change_an_answer_is_refused_in_objects_too(
    plain: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = plain.post(path, json=BODIES[path] | fields)
    assert answer.status_code == 400, answer.text
    assert param in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", STREAMED)
def test_streams_tell_it_once(plain: httpx.Client, path: str) -> None:
    events = objects(plain.post(path, json=BODIES[path] | {"stream": True, "xyzzy": 1}).raise_for_status().text)
    told = [event for event in events if "warnings" in json.dumps(event)]
    match path:
        case "/v1/responses":
            assert all(event["response"]["warnings"] == [WARNING] for event in told)
            assert [told[0]["type"], told[-1]["type"]] == ["response.created", "response.completed"]
        case "/v1/messages":
            assert [event["message"]["warnings"] for event in told] == [[WARNING]]
        case _:
            assert told == events[:1]
            assert told[0]["warnings"] == [WARNING]
    assert "warnings" not in plain.post(path, json=BODIES[path] | {"stream": True}).text


def test_generate_tells_of_sampling_params_and_lists(plain: httpx.Client) -> None:
    body = {"text": ["a", "b"], "sampling_params": [{"xyzzy": 1}, {"xyzzy": 2}], "foo_bar": 1}
    first, second = plain.post("/generate", json=body).raise_for_status().json()
    assert [warning["param"] for warning in first["warnings"]] == ["foo_bar", "sampling_params.xyzzy"]
    assert "warnings" not in second


def test_embeddings_tell_it(engine: FakeEngine, http: httpx.Client) -> None:
    engine.embedding = EmbeddingSpec(4, "last", normalized=True)
    assert http.post("/v1/embeddings", json={"input": "hi", "xyzzy": 1}).json()["warnings"] == [WARNING]
    assert http.post("/encode", json={"text": "hi", "xyzzy": 1}).json()["warnings"] == [WARNING]
    assert http.post("/encode", json={"text": ["a", "b"], "xyzzy": 1}).json()[0]["warnings"] == [WARNING]
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="x") as client:
        made = client.embeddings.create(model=MODEL, input="hi", extra_body={"xyzzy": 1})
    assert (made.model_extra or {})["warnings"] == [WARNING]


def test_the_sdks_show_it(serve: Serve) -> None:
    url, extra = serve(), {"xyzzy": 1}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, _strict_response_validation=True) as client:
        chat = client.chat.completions.create(model=MODEL, messages=USER, extra_body=extra)
        text = client.completions.create(model=MODEL, prompt="hi", extra_body=extra)
        response = client.responses.create(model=MODEL, input="hi", extra_body=extra)
        with client.chat.completions.stream(model=MODEL, messages=USER, extra_body=extra) as stream:
            streamed = stream.get_final_completion()
        with client.responses.stream(model=MODEL, input="hi", extra_body=extra) as events:
            followed = events.get_final_response()
        stored = client.responses.retrieve(response.id)
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as claude:
        message = claude.messages.create(model=MODEL, max_tokens=9, messages=USER, extra_body=extra)
        with claude.messages.stream(model=MODEL, max_tokens=9, messages=USER, extra_body=extra) as said:
            whole = said.get_final_message()
    for answer in (chat, text, response, streamed, followed, stored, message, whole):
        assert (answer.model_extra or {})["warnings"] == [WARNING], type(answer)


def test_they_can_be_refused(serve: Serve) -> None:
    with httpx.Client(base_url=serve(unknown_fields="refuse"), timeout=20) as client:
        for path, body in BODIES.items():
            error = client.post(path, json=body | {"xyzzy": 1})
            assert (error.status_code, error.json()["error"]["message"]) == (400, "unknown field: xyzzy")
        assert client.post("/generate", json={"text": "a", "sampling_params": {"xyzzy": 1}}).status_code == 400
        unread = BODIES["/v1/chat/completions"] | {"chat_template_kwargs": {"xyzzy": 1}}
        assert client.post("/v1/chat/completions", json=unread).status_code == 400


@pytest.mark.usefixtures("own_server")
def test_they_are_counted(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(11):
        http.post("/v1/completions", json={"prompt": "hi", "xyzzy": 1}).raise_for_status()
    lines = [record.getMessage() for record in caplog.records if "xyzzy" in record.getMessage()]
    assert lines == [f"Field 'xyzzy' of a request has no effect ({count} so far)" for count in (1, 10)]
    assert 'palladio:ignored_fields_total{code="unknown_parameter"' in http.get("/metrics").text


def test_a_request_has_so_many_of_them(plain: httpx.Client) -> None:
    body = BODIES["/v1/completions"]
    most = {f"xyzzy{number}": 1 for number in range(MAX_WARNINGS)}
    assert len(plain.post("/v1/completions", json=body | most).json()["warnings"]) == MAX_WARNINGS
    assert plain.post("/v1/completions", json=body | most | {"foo_bar": 1}).status_code == 400


def test_finding_what_is_misspelt_takes_little_time() -> None:
    """It is looked for on the event loop, for each unknown field of a request."""
    begun = time.process_time()
    for number in range(100):
        find_misspelt(f"no_such_field_{number}", ChatRequest.model_fields)
    assert time.process_time() - begun < 1.0


def test_usage_in_a_stream_as_openrouter_has_it(plain: httpx.Client) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = BODIES[path] | {"stream": True}
        asked = objects(plain.post(path, json=body | {"usage": {"include": True}}).text)
        assert asked[-1]["usage"]["total_tokens"] > 0
        assert "usage" not in objects(plain.post(path, json=body).text)[-1]
