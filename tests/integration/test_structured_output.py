"""Structured output over the wire: what the SDK asks for is what comes back, or a 400 that says why not."""

import concurrent.futures
import importlib.util
import json
import re
import time
from pathlib import Path
from typing import Any

import pydantic
import pytest

from palladio import Engine, InvalidRequestError
from palladio.utils import _descendants
from tests.integration.serving import CHAT, COMPLETIONS, DECODE_SIZES, GENERATE, LIMITS, MODEL, error_of

MESSAGES = [{"role": "user", "content": "Tell me about Paris."}]
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}  # else a random model thinks for ever
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "big"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
CAPITAL = 'root ::= "The capital of " country " is " city\ncountry ::= "France" | "Italy"\ncity ::= "Paris" | "Rome"\n'
RULE = re.compile("The capital of (France|Italy) is (Paris|Rome)")


def is_city(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"name", "size"} and len(value["name"]) <= 12 and value["size"] in ("small", "big")


WAYS = {
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    },
    "response_format regex": {"response_format": {"type": "regex", "regex": RULE.pattern}},
    "json_schema text": {"json_schema": json.dumps(CITY)},
    "guided_json": {"guided_json": CITY},
    "structured_outputs": {"structured_outputs": {"json": CITY, "disable_any_whitespace": True}},
    "regex": {"regex": RULE.pattern},
    "ebnf": {"ebnf": CAPITAL},
    "guided_grammar": {"guided_grammar": CAPITAL},
    "choice": {"structured_outputs": {"choice": ["The capital of France is Rome"]}},
    "guided_choice": {"guided_choice": ["The capital of Italy is Rome"]},
    "guided_regex": {"guided_regex": RULE.pattern},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_every_way_to_ask(server, route, way):
    body = {"messages": MESSAGES, **PLAIN} if route == CHAT else {"prompt": "Paris"}
    answer = server.post(route, {**body, **WAYS[way], "temperature": 1.0, "seed": 1, "max_tokens": 200, "n": 2})
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert len(choices) == 2
    for choice in choices:
        text = choice["message"]["content"] if route == CHAT else choice["text"]
        assert choice["finish_reason"] == "stop", text
        assert RULE.fullmatch(text) or is_city(text)
    if way == "structured_outputs":
        assert not re.search(r"[:,] |^\{\s", text)


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf"])
def test_generate(server, name):
    value = {"json_schema": json.dumps(CITY), "regex": RULE.pattern, "ebnf": CAPITAL}[name]
    sampling = {name: value, "max_new_tokens": 200, "temperature": 1.0, "sampling_seed": 3}
    answer = server.post(GENERATE, {"text": "Paris", "sampling_params": sampling}).json()
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert is_city(answer["text"]) if name == "json_schema" else RULE.fullmatch(answer["text"])


def test_a_stream_gives_the_same(client):
    request = {"model": MODEL, "messages": MESSAGES, "temperature": 1.0, "seed": 5, "max_tokens": 200}
    request["extra_body"] = {"regex": RULE.pattern, **PLAIN}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert RULE.fullmatch(text)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_json_object(client):
    """No schema but that it is an object; the bias ends it."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=200,
        logit_bias={"95": 90},  # the closing brace
        extra_body=PLAIN,
    )
    assert json.loads(answer.choices[0].message.content) == {}


class City(pydantic.BaseModel):
    name: str = pydantic.Field(pattern=r"^[a-z]{1,8}$")
    population: int = pydantic.Field(ge=1, le=99)
    river: bool


def test_the_sdk_parses_into_a_model(client):
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=MESSAGES,
        response_format=City,
        temperature=1.0,
        seed=2,
        max_tokens=200,
        extra_body=PLAIN,
    )
    city = answer.choices[0].message.parsed
    assert isinstance(city, City)
    assert 1 <= city.population <= 99


def test_logprobs_are_the_models_own(client):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        extra_body={"regex": RULE.pattern, **PLAIN},
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        max_tokens=100,
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    assert any(entry.logprob < entry.top_logprobs[0].logprob for entry in content), "the grammar forbade the likeliest"


def test_stop_strings(client):
    answer = client.completions.create(
        model=MODEL, prompt="x", extra_body={"ebnf": CAPITAL}, max_tokens=100, stop=" is ", seed=1
    )
    assert re.fullmatch("The capital of (France|Italy)", answer.choices[0].text)
    assert answer.choices[0].matched_stop == " is "


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"regex": "(a"}, "regex", "unclosed group"),
        ({"ebnf": "root ::= b"}, "ebnf", "Rule 'b' not found"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"properties": {"x": {"uniqueItems": True}}}},
                }
            },
            "response_format",
            "#/properties/x",
        ),
        ({"json_schema": "{"}, "json_schema", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_a_400(server, fields, param, words, stream):
    for route, body in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "x"})):
        error = error_of(server.post(route, {**body, **fields, "stream": stream}), 400)
        assert error["param"] == param
        assert words in error["message"]
        assert not error["message"].startswith("the grammar")  # but as the client calls it


def test_generate_names_its_own_fields(server):
    error = error_of(server.post(GENERATE, {"text": "x", "sampling_params": {"regex": "(a"}}), 400)
    assert error["param"] == "sampling_params.regex"


def test_many_at_once_beside_others(server, client):
    """As many schemas as requests, so that all are compiled; plain requests go on."""

    def one(number: int) -> str:
        prefix = f"number {number}: "
        body = {"prompt": "x", "regex": prefix + "(yes|no)", "max_tokens": 100, "seed": number, "temperature": 1.0}
        if number % 4 == 3:
            del body["regex"]
            body |= {"max_tokens": 10, "ignore_eos": True}
        answer = server.post(COMPLETIONS, body).json()
        if number % 4 == 3:
            return "yes" if answer["usage"]["completion_tokens"] == 10 else "no"
        return answer["choices"][0]["text"].removeprefix(prefix)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert set(pool.map(one, range(48))) <= {"yes", "no"}


def test_a_large_schema_holds_nobody_up(server):
    """It is compiled in a thread: a stream beside it goes on."""
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 9} for i in range(400)}}

    def compile_it() -> int:
        body = {"prompt": "x", "json_schema": json.dumps(wide), "max_tokens": 2}
        return server.post(COMPLETIONS, body).status_code

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(compile_it)
        begun = time.monotonic()
        for _ in range(5):
            assert server.post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 2}).status_code == 200
        assert time.monotonic() - begun < 10
        assert future.result() == 200


@pytest.mark.slow  # the same engine behind a server is in the other tests
def test_offline(checkpoint, cache_dir):
    flags = LIMITS.replace(DECODE_SIZES, "").replace("--compile full ", "").split()
    names = [flag.removeprefix("--").replace("-", "_") for flag in flags if flag.startswith("--")]
    values = [flag for flag in flags if not flag.startswith("--")]
    options: dict[str, Any] = {name: int(value) for name, value in zip(names, values, strict=False)}
    options |= {"cuda_graph_bs": (1,), "compile": "lazy"}
    with Engine(model_path=str(checkpoint), compilation_cache_dir=str(cache_dir / "xla"), **options) as engine:
        results: Any = engine.generate(
            ["Paris", "Rome"],
            [
                {"json_schema": json.dumps(CITY), "max_new_tokens": 200, "temperature": 1.0, "sampling_seed": 1},
                {"regex": RULE.pattern, "max_new_tokens": 100},
            ],
        )
        city, capital = results
        assert is_city(city["text"])
        assert RULE.fullmatch(capital["text"])
        with pytest.raises(InvalidRequestError, match="unclosed group"):
            engine.generate("x", {"regex": "(a"})


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch, which must stay out")
def test_no_process_of_a_server_loads_torch(server) -> None:
    answer = server.post(COMPLETIONS, {"model": MODEL, "prompt": "Hello", "max_tokens": 40, "regex": "[a-c]{3}"})
    assert re.fullmatch("[a-c]{3}", answer.json()["choices"][0]["text"])
    pids = [server.process.pid, *_descendants(server.process.pid)]
    assert len(pids) >= 2
    assert [pid for pid in pids if "libtorch" in Path(f"/proc/{pid}/maps").read_text()] == []
