"""Ollama's routes, with the requests that its clients send."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import GenerationError, OverloadedError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve, running_server
from tests.http.responses.test_responses import CALL, TEMPLATE
from tests.http.security.owned import ALICE, BOB, KEYS

USER = [{"role": "user", "content": "hi"}]
CHAT = {"model": MODEL, "messages": USER}
TOOL = {  # as the Python client writes a function
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells.",
        "parameters": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}},
    },
}
COUNTS = ("prompt_eval_count", "eval_count")
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture
def ollama(serve: Serve, tmp_path: Path) -> Callable[..., httpx.Client]:
    """A server whose model reasons and calls tools, and a client of it."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    families = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes", "chat_template": str(template)}
    return lambda **config: httpx.Client(base_url=serve(**families | config), timeout=20, verify=False)


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def one(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_chat_streams_lines_of_json(ollama: Callable[..., httpx.Client]) -> None:
    *pieces, last = lines(ollama().post("/api/chat", json=CHAT))
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hello, wörld 🎉!"
    assert {(piece["message"]["role"], piece["done"], piece["model"]) for piece in pieces} == {
        ("assistant", False, MODEL)
    }
    assert len(pieces) > 1
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert last["message"] == {"role": "assistant", "content": ""}
    assert all(last[name] > 0 for name in COUNTS)
    assert all(isinstance(last[name], int) for name in DURATIONS)
    assert last["total_duration"] > 0


@pytest.mark.parametrize("reply", ["Hello", "<think>\nI think</think>\nyes", CALL])
def test_a_stream_adds_up_to_the_answer(ollama: Callable[..., httpx.Client], engine: FakeEngine, reply: str) -> None:
    engine.reply = reply
    client = ollama()
    asked = CHAT | {"tools": [TOOL]}
    whole = one(client.post("/api/chat", json=asked | {"stream": False}))
    *pieces, last = lines(client.post("/api/chat", json=asked))
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for piece in pieces:
        for name, value in piece["message"].items():
            if name != "role" and value:
                message[name] = message[name] + value if name in message else value

    def without_ids(said: dict[str, Any]) -> dict[str, Any]:
        calls = [{"function": call["function"]} for call in said.get("tool_calls", ())]
        return said | ({"tool_calls": calls} if calls else {})

    assert without_ids(message) == without_ids(whole["message"])
    assert {name: last[name] for name in (*COUNTS, "done_reason")} == {
        name: whole[name] for name in (*COUNTS, "done_reason")
    }


def test_thinking(ollama: Callable[..., httpx.Client], engine: FakeEngine) -> None:
    engine.reply = "<think>\nI think</think>\nyes"
    client = ollama()
    message = one(client.post("/api/chat", json=CHAT | {"stream": False, "think": True}))["message"]
    assert (message["thinking"].strip(), message["content"].strip()) == ("I think", "yes")
    said = one(client.post("/api/generate", json={"model": MODEL, "prompt": "hi", "stream": False, "think": True}))
    assert (said["thinking"].strip(), said["response"].strip()) == ("I think", "yes")


def test_a_round_with_a_tool(ollama: Callable[..., httpx.Client], engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.reply = CALL
    client = ollama()
    message = one(client.post("/api/chat", json=CHAT | {"stream": False, "tools": [TOOL]}))["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert isinstance(call["function"]["arguments"], dict)
    engine.reply = "sunny"
    sent = {"role": "assistant", "content": "", "tool_calls": [{"function": call["function"]}]}
    result = {"role": "tool", "tool_name": "get_weather", "content": "sun"}
    answer = client.post("/api/chat", json=CHAT | {"stream": False, "messages": [*USER, sent, result]})
    assert one(answer)["message"]["content"] == "sunny"
    assert "sun" in tokenizer.decode(engine.calls[-1].prompt_ids)


def test_options_reach_the_engine(ollama: Callable[..., httpx.Client], engine: FakeEngine) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 5,
        "num_predict": 3,
        "repeat_penalty": 1.1,
        "repeat_last_n": -1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "stop": ["x"],
        "mirostat": 0,
        "mirostat_tau": 5,
        "tfs_z": 1,
        "typical_p": 1.0,
        "penalize_newline": True,
        "num_ctx": 4096,
        "num_keep": 5,
        "num_batch": 2,
        "num_gpu": 1,
        "use_mmap": True,
        "num_thread": 8,
    }
    client = ollama()
    answer = one(client.post("/api/chat", json=CHAT | {"stream": False, "options": options, "keep_alive": "5m"}))
    assert (answer["done_reason"], answer["eval_count"]) == ("length", 3)
    params = engine.calls[-1].params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 7, 0.9, 0.1)
    assert (params.seed, params.max_tokens, params.stop, params.repetition_penalty) == (5, 3, ("x",), 1.1)
    assert (params.presence_penalty, params.frequency_penalty) == (0.2, 0.3)
    off = {"seed": -1, "num_predict": -1, "repeat_penalty": 1.5, "repeat_last_n": 0}
    client.post("/api/chat", json=CHAT | {"options": off})
    assert engine.calls[-1].params.max_tokens != -1
    assert engine.calls[-1].params.repetition_penalty == 1.0


@pytest.mark.parametrize(
    ("form", "kind"), [("json", "json_schema"), ({"type": "object", "properties": {}}, "json_schema")]
)
def test_formats(ollama: Callable[..., httpx.Client], engine: FakeEngine, form: Any, kind: str) -> None:
    ollama().post("/api/chat", json=CHAT | {"format": form, "options": {"num_predict": 1}})
    grammar = engine.calls[-1].params.grammar
    assert grammar is not None
    assert grammar.kind == kind
    ollama().post("/api/chat", json=CHAT | {"format": ""})
    assert engine.calls[-1].params.grammar is None


def test_generate(ollama: Callable[..., httpx.Client], engine: FakeEngine, tokenizer: Tokenizer) -> None:
    client = ollama()
    asked = {"model": MODEL, "prompt": "hi", "system": "Be brief."}
    *pieces, last = lines(client.post("/api/generate", json=asked))
    assert "".join(piece["response"] for piece in pieces) == "Hello, wörld 🎉!"
    assert (last["response"], last["done"]) == ("", True)
    prompt = tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)
    assert prompt == "[system]Be brief.;[user]hi;[assistant]"
    engine.reply = "<think>\na</think>b"
    raw = one(client.post("/api/generate", json={"model": MODEL, "prompt": "hi", "raw": True, "stream": False}))
    assert tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=True) == "hi"
    assert raw["response"] == "<think>\na</think>b"


def test_logprobs(ollama: Callable[..., httpx.Client]) -> None:
    client = ollama()
    asked = CHAT | {"logprobs": True, "top_logprobs": 2}
    whole = one(client.post("/api/chat", json=asked | {"stream": False}))
    told = [entry for piece in lines(client.post("/api/chat", json=asked)) for entry in piece.get("logprobs", ())]
    assert [entry["token"] for entry in whole["logprobs"]] == [entry["token"] for entry in told]
    assert len(told[0]["top_logprobs"]) == 2


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        ("/api/chat", {"messages": []}, "load"),
        ("/api/chat", {"keep_alive": 0}, "unload"),
        ("/api/generate", {}, "load"),
        ("/api/generate", {"prompt": "", "keep_alive": -1}, "load"),
    ],
)
def test_nothing_to_answer_loads_the_model(
    http: httpx.Client, engine: FakeEngine, path: str, fields: dict[str, Any], reason: str
) -> None:
    answer = one(http.post(path, json={"model": MODEL} | fields))
    assert (answer["done"], answer["done_reason"]) == (True, reason)
    assert not engine.calls


def test_models(serve: Serve) -> None:
    client = httpx.Client(base_url=serve(served_model_name=("tiny", "small")), timeout=20, verify=False)
    models = client.get("/api/tags").json()["models"]
    assert [model["name"] for model in models] == ["tiny", "small"]
    assert client.get("/api/ps").json()["models"][0]["context_length"] == 2048
    shown = client.post("/api/show", json={"model": "tiny:latest"}).json()
    assert shown["model_info"]["qwen2.context_length"] == 2048
    assert "completion" in shown["capabilities"]
    assert tuple(map(int, client.get("/api/version").json()["version"].split("."))) >= (0, 6, 4)
    assert client.get("/").status_code == client.head("/").status_code == client.head("/api/tags").status_code == 200
    said = client.post("/api/chat", json={"model": "tiny:latest", "messages": USER, "stream": False}).json()
    assert said["model"] == "tiny:latest"
    for model in (*models, *client.get("/api/ps").json()["models"]):
        assert (model["size"], model["details"]["parameter_size"]) == (269_030_016, "134.52M")
    assert shown["details"]["parameter_size"] == "134.52M"
    assert shown["model_info"]["general.parameter_count"] == 134_515_008


@pytest.mark.parametrize(
    "name", ["small-chat", "small-chat:latest", "/models/org/small-chat/", "default", "default:latest"]
)
def test_the_last_part_of_a_path_is_a_name_too(serve: Serve, name: str) -> None:
    client = httpx.Client(base_url=serve(served_model_name=("/models/org/small-chat/",)), timeout=20, verify=False)
    for path, body in (("/api/chat", {"messages": USER}), ("/api/generate", {"prompt": "hi"}), ("/api/show", {})):
        answer = client.post(
            path, json={"model": name, "stream": False} | body if path != "/api/show" else {"model": name}
        )
        assert answer.status_code == 200, answer.text
    assert client.post("/api/show", json={"model": "chat"}).status_code == 404


def test_curl_says_no_content_type(http: httpx.Client) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert http.post("/api/chat", content=json.dumps(CHAT), headers=form).status_code == 200
    web = form | {"origin": "https://example.com"}
    assert http.post("/api/chat", content=json.dumps(CHAT), headers=web).status_code == 403


OLLAMAS_DEFAULTS = {  # of the options of a request, and of how a model runs, as Ollama's own client writes them out
    "num_predict": -1,
    "num_keep": 4,
    "seed": -1,
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.0,
    "typical_p": 1.0,
    "tfs_z": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "penalize_newline": True,
    "stop": [],
    "num_ctx": 2048,
    "num_batch": 512,
    "num_gqa": 1,
    "num_gpu": -1,
    "main_gpu": 0,
    "low_vram": False,
    "f16_kv": True,
    "vocab_only": False,
    "use_mmap": True,
    "use_mlock": False,
    "rope_frequency_base": 10000.0,
    "rope_frequency_scale": 1.0,
    "num_thread": 0,
}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollamas_own_defaults_pass(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    """The window of its penalty is the one thing that they ask for in vain, and the answer says so."""
    base = CHAT if path == "/api/chat" else {"model": MODEL, "prompt": "hi"}
    asked = base | {"options": OLLAMAS_DEFAULTS, "keep_alive": "5m", "truncate": True, "shift": True}
    answer = http.post(path, json=asked | {"stream": False}).raise_for_status().json()
    lines = [json.loads(line) for line in http.post(path, json=asked).raise_for_status().text.splitlines()]
    for last in (answer, lines[-1]):
        assert [warning["param"] for warning in last["warnings"]] == ["options.repeat_last_n"]
    assert not any("warnings" in line for line in lines[:-1])
    assert engine.calls[-1].params.repetition_penalty == 1.1


def test_an_answer_ends_where_the_context_ends(http: httpx.Client, engine: FakeEngine) -> None:
    """Whatever num_predict says: Ollama's clients send numbers that suit other models."""
    answer = http.post("/api/chat", json=CHAT | {"options": {"num_predict": 100_000}, "stream": False})
    assert answer.raise_for_status().json()["done"]
    call = engine.calls[-1]
    assert call.params.max_tokens == engine.info.context_length - len(call.prompt_ids)


def test_unknown_fields_are_told_of(http: httpx.Client, serve: Serve) -> None:
    fields = {"xyzzy": 1, "options": {"plugh": 2, "repeat_penalty": 1.1, "repeat_last_n": 64}, "stream": False}
    answer = http.post("/api/chat", json=CHAT | fields).raise_for_status().json()
    found = [warning["param"] for warning in answer["warnings"]]
    assert found == ["xyzzy", "options.plugh", "options.repeat_last_n"]
    strict = serve(unknown_fields="refuse")
    for name in ("xyzzy", "options"):
        refused = httpx.post(f"{strict}/api/chat", json=CHAT | {name: fields[name]})
        assert (refused.status_code, list(refused.json())) == (400, ["error"])


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages.0.images"),
        ("/api/generate", {"images": ["aGk="]}, "images"),
        ("/api/generate", {"suffix": "x"}, "suffix"),
        ("/api/generate", {"template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"context": [1, 2]}, "context"),
        ("/api/generate", {"raw": True, "system": "x"}, "system"),
        ("/api/chat", {"format": "yaml"}, "format must be"),
        ("/api/chat", {"format": {"type": 5}, "options": {"temperature": -1}}, "options.temperature must be"),
        ("/api/chat", {"options": {"mirostat": 2}}, "options.mirostat"),
        ("/api/chat", {"options": {"typical_p": 0.5}}, "options.typical_p"),
        ("/api/chat", {"options": {"repeat_penalty": -1}}, "options.repeat_penalty must be"),
        ("/api/chat", {"options": {"temprature": 1}}, "options.temprature"),
        ("/api/chat", {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages.0.tool_calls"),
        ("/api/chat", {"truncate": "yes"}, "truncate"),
    ],
)
def test_refusals_name_the_field(http: httpx.Client, path: str, fields: dict[str, Any], words: str) -> None:
    base = CHAT if path == "/api/chat" else {"model": MODEL, "prompt": "hi"}
    answer = http.post(path, json=base | fields)
    assert answer.status_code == 400, answer.text
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]


def test_a_model_that_cannot_think_says_so(serve: Serve) -> None:
    answer = httpx.post(serve(reasoning_parser="none") + "/api/chat", json=CHAT | {"think": True})
    assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (400, "think has no effect")


def test_errors_have_ollamas_form(http: httpx.Client, engine: FakeEngine) -> None:
    def error(answer: httpx.Response) -> tuple[int, str]:
        assert list(answer.json()) == ["error"]
        return answer.status_code, answer.json()["error"]

    assert error(http.post("/api/chat", json=CHAT | {"model": "x"}))[0] == 404
    assert error(http.post("/api/chat", content="{"))[0] == 400
    assert error(http.post("/api/pull", json={"model": "x"}))[0] == 404
    assert error(http.get("/api/chat"))[0] == 405
    engine.refuse = OverloadedError("too many")
    assert error(http.post("/api/chat", json=CHAT)) == (503, "too many")
    engine.refuse = None
    engine.fail, engine.fail_after = GenerationError("lost"), 2
    assert lines(http.post("/api/chat", json=CHAT))[-1] == {"error": "lost"}


def test_keys_owners_and_metrics(engine: FakeEngine) -> None:
    with running_server(engine, HttpConfig(api_key=(ALICE, BOB))) as url:
        assert httpx.post(f"{url}/api/chat", json=CHAT).status_code == 401
        assert list(httpx.get(f"{url}/api/tags").json()) == ["error"]
        headers = {"authorization": f"Bearer {KEYS['alice']}"}
        httpx.post(f"{url}/api/generate", json={"model": MODEL, "prompt": "hi"}, headers=headers)
        assert engine.calls[-1].options.owner == "alice"
        metrics = httpx.get(f"{url}/metrics", headers=headers).text
        assert "/api/generate" in metrics
