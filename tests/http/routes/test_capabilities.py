"""GET /v1/capabilities is true: every verdict in it is what a request with that field meets."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as SdkChat
from openai.types.completion_create_params import CompletionCreateParamsBase as SdkCompletion

from tests.fake_engine import MODEL, FakeEngine

BASE: dict[str, dict[str, Any]] = {
    "POST /v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "POST /v1/completions": {"prompt": "hi", "max_tokens": 1},
    "POST /generate": {"text": "hi", "sampling_params": {"max_new_tokens": 1}},
    "POST /v1/tokenize": {"prompt": "hi"},
    "POST /v1/detokenize": {"tokens": [5]},
}
# What other servers' clients send, beside what the SDK has: vLLM's and SGLang's fields.
EXTRAS = {
    *(
        "top_k",
        "min_p",
        "repetition_penalty",
        "stop_token_ids",
        "stop_regex",
        "no_stop_trim",
        "ignore_eos",
        "min_tokens",
    ),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "stream_interval", "regex"),
    *(
        "ebnf",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "priority",
        "rid",
    ),
    *("request_id", "lora_path", "cache_salt", "extra_key", "return_hidden_states", "return_routed_experts"),
    *("return_token_ids", "return_tokens_as_token_ids", "input_ids", "prompt_logprobs", "add_special_tokens"),
    *("documents", "truncate_prompt_tokens", "allowed_token_ids", "bad_words", "logprob_token_ids", "use_beam_search"),
    *("length_penalty", "repetition_detection", "prompt_embeds", "mm_processor_kwargs", "media_io_kwargs"),
    *("kv_transfer_params", "vllm_xargs", "custom_logit_processor", "custom_params", "session_params", "session_id"),
    *("routed_dp_rank", "bootstrap_host", "bootstrap_port", "bootstrap_room"),
}
CHAT_EXTRAS = {
    *("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "chat_template", "separate_reasoning"),
    *("stream_reasoning", "reasoning", "thinking", "thinking_token_budget", "max_thinking_tokens", "include_reasoning"),
}
TOKENIZE = {
    *("model", "prompt", "messages", "tools", "tool_choice", "reasoning_effort", "continue_final_message"),
    *("add_special_tokens", "add_generation_prompt", "chat_template_kwargs", "return_token_strs"),
}


@pytest.fixture
def verdicts(http: httpx.Client) -> dict[str, dict[str, str]]:
    routes = http.get("/v1/capabilities").raise_for_status().json()["routes"]
    return {route["route"]: route["fields"] for route in routes if "fields" in route}


@pytest.mark.parametrize(
    ("route", "names"),
    [
        ("POST /v1/chat/completions", SdkChat.__annotations__.keys() | {"stream"} | EXTRAS | CHAT_EXTRAS),
        ("POST /v1/completions", SdkCompletion.__annotations__.keys() | {"stream"} | EXTRAS),
        ("POST /v1/tokenize", TOKENIZE),
        ("POST /v1/detokenize", {"model", "tokens", "skip_special_tokens"}),
    ],
)
def test_every_field_that_clients_know_has_a_verdict(verdicts, route: str, names: set[str]) -> None:
    assert set(names) - verdicts[route].keys() == set()


def test_a_budget_of_reasoning_needs_a_parser(serve: Callable[..., str]) -> None:
    for parser, verdict, status in (("none", "refused", 400), ("qwen3", "applied", 200)):
        url = serve(reasoning_parser=parser)
        routes = httpx.get(f"{url}/v1/capabilities", timeout=20).json()["routes"]
        (fields,) = [route["fields"] for route in routes if route["route"] == "POST /v1/chat/completions"]
        body = BASE["POST /v1/chat/completions"] | {"thinking_token_budget": 3}
        assert fields["thinking_token_budget"] == fields["max_thinking_tokens"] == verdict
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20).status_code == status


@pytest.mark.parametrize("route", BASE)
def test_the_verdicts_are_what_requests_meet(http: httpx.Client, verdicts, route: str) -> None:
    def post(name: str, value: object) -> httpx.Response:
        return http.post(route.removeprefix("POST "), json=BASE[route] | {name: value})

    assert set(verdicts[route].values()) == {"applied", "metadata", "refused"}
    for name, verdict in verdicts[route].items():
        if verdict == "metadata":
            assert post(name, {"any": "thing"}).status_code == 200, name
        elif verdict == "refused":
            error = post(name, {"some": "thing"}).json()["error"]
            assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        else:  # its value matters: one of the wrong type is refused, in its name
            answers = [post(name, value) for value in ("no such value", -7.5)]
            params = {answer.json()["error"]["param"] for answer in answers if answer.status_code == 400}
            assert any(param.partition(".")[0] == name for param in params), (name, params)


def test_what_runs(http: httpx.Client, engine: FakeEngine) -> None:
    answer = http.get("/v1/capabilities").raise_for_status().json()
    assert (answer["object"], answer["model"], answer["any_model_name"]) == ("capabilities", MODEL, False)
    assert answer["max_model_len"] == engine.info.context_length
    assert answer["modalities"] == {"input": ["text"], "output": ["text"]}
    assert (answer["tokenizer"], answer["chat_template"]) == (True, True)
    assert answer["grammar_backend"] == "llguidance"
    assert answer["limits"]["n"] == 128
    assert {"GET /v1/models", "GET /v1/capabilities"} <= {route["route"] for route in answer["routes"]}


def test_any_name_and_the_parsers(serve: Callable[..., str]) -> None:
    url = serve(served_model_name=("*",), reasoning_parser="qwen3", tool_call_parser="qwen25")
    answer = httpx.get(f"{url}/v1/capabilities", timeout=20).json()
    assert answer["any_model_name"] is True
    assert (answer["reasoning_parser"], answer["tool_call_parser"]) == ("qwen3", "qwen25")


def test_without_a_tokenizer(http: httpx.Client, engine: FakeEngine) -> None:
    engine.tokenizer = None
    answer = http.get("/v1/capabilities").raise_for_status().json()
    assert (answer["tokenizer"], answer["chat_template"], answer["grammar_backend"]) == (False, False, None)
    (fields,) = [route["fields"] for route in answer["routes"] if route["route"] == "POST /v1/completions"]
    assert (fields["regex"], fields["prompt"]) == ("refused", "applied")


def test_while_the_engine_starts(http: httpx.Client, engine: FakeEngine) -> None:
    engine.state = "starting"
    assert http.get("/v1/capabilities").status_code == 503
