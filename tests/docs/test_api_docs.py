"""docs/api.md and docs/api/ say of the HTTP API what the code does: tables are compared with models and answers."""

import ast
import dataclasses
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from starlette.testclient import TestClient

from palladio.http.anthropic.protocol_anthropic import CountTokensRequest, MessagesRequest
from palladio.http.app import create_app
from palladio.http.batches.batch import Batch
from palladio.http.batches.batch_lines import MAX_CUSTOM_ID
from palladio.http.batches.routes_batches import BatchRequest
from palladio.http.generation.context import BASE_BYTES, BASE_VALUES, MOST_BYTES, TOKEN_BYTES
from palladio.http.generation.output_stream import MAX_IDS, MAX_PATTERNS
from palladio.http.generation.prompts import MAX_PAIRED, MAX_SAMPLES
from palladio.http.observability.protocol_profile import StartProfileRequest
from palladio.http.ollama.protocol_ollama import (
    OllamaChatRequest,
    OllamaFields,
    OllamaGenerateRequest,
    OllamaOptions,
    ShowRequest,
)
from palladio.http.prompts.chat_template import MAX_SECONDS
from palladio.http.prompts.text_encoding import COUNTED_BASE, COUNTED_PER_TOKEN
from palladio.http.prompts.tool_definitions import MAX_TOOLS
from palladio.http.prompts.tool_history import HISTORY_VALUES
from palladio.http.reasoning.family import TagFamily
from palladio.http.reasoning.registry import ALIASES, FAMILIES
from palladio.http.responses.protocol_responses import InputTokensRequest, ResponseRequest
from palladio.http.responses.response_chat import LEFT_OUT
from palladio.http.routes.routes_admin import AbortRequest
from palladio.http.routes.routes_generate import SAMPLING_NAMES
from palladio.http.routes.routes_scores import MAX_SCORES
from palladio.http.routes.routes_tokenize import DETOKENIZE_CONTEXTS
from palladio.http.security.connection import MAX_HEAD
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.formats import FORMATS as TOOL_FORMATS
from palladio.http.tool_calls.registry import ALIASES as TOOL_ALIASES
from palladio.http.wire.body import FIELD_COST, LIST_COST, MAX_DEPTH, NESTED_VALUES
from palladio.http.wire.errors import TABLE, ErrorBody
from palladio.http.wire.protocol import MAX_PARSED_TEXT, SamplingFields, StreamOptions, WireModel
from palladio.http.wire.protocol_chat import ChatRequest, ParseFunctionCallRequest, SeparateReasoningRequest
from palladio.http.wire.protocol_completions import CompletionRequest
from palladio.http.wire.protocol_embeddings import EmbeddingRequest, EncodeRequest
from palladio.http.wire.protocol_generate import GenerateRequest
from palladio.http.wire.protocol_model_control import (
    ContinueRequest,
    MemoryRequest,
    PauseRequest,
    UpdateFields,
    UpdateFromDiskRequest,
    UpdateFromTensorRequest,
)
from palladio.http.wire.protocol_scores import ClassFields, ClassifyRequest, RerankRequest, ScoreRequest
from palladio.http.wire.protocol_tokenize import DetokenizeRequest, TokenizeRequest
from palladio.runtime.grammar.compiler import MAX_COMPILED_BYTES, MAX_CPU_SECONDS
from palladio.runtime.grammar.limits import MAX_LEAST_CHARACTERS, MAX_OPTIONAL
from palladio.runtime.grammar.llguidance_backend import MAX_GRAMMAR_BYTES
from palladio.runtime.grammar.schema_multiples import MAX_MULTIPLE
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.messages.engine_stats import EngineStats, RankStats
from palladio.runtime.interface.messages.stats_report import describe_stats
from palladio.runtime.interface.request import sampling_params
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.field_tables import METADATA, NOT_YET, OF_OTHER_ROUTES
from palladio.runtime.interface.request.generation_request import MAX_SALT_LENGTH
from palladio.runtime.interface.request.sampling_params import (
    MAX_ALLOWED_IDS,
    MAX_LOGPROB_IDS,
    MAX_PATTERN,
    MAX_STOP_PATTERNS,
)
from palladio.runtime.text.templates.template_meter import MAX_CHARACTERS
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.tiny_tokenizer import build_tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs" / "api.md", *sorted((ROOT / "docs" / "api").glob("*.md")))
PAGE = "\n\n".join(page.read_text(encoding="utf-8") for page in PAGES)
OPAQUE = {"logprobs", "prompt_logprobs"}  # described in words


def rows(mark: str) -> list[list[str]]:
    """The cells of the table after this mark."""
    lines = PAGE.split(f"<!-- {mark} -->\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def wire_type(schema: dict[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(wire_type(branch) for branch in schema["anyOf"] if branch.get("type") != "null")
    if schema.get("type") == "array":
        inner = wire_type(schema["items"])
        return "list of " + (inner.replace("list", "lists", 1) if inner.startswith("list") else f"{inner}s")
    return str(schema.get("type", "object"))


@pytest.mark.parametrize(
    "model",
    [
        *(SamplingFields, StreamOptions, ChatRequest, CompletionRequest, GenerateRequest, TokenizeRequest),
        *(EmbeddingRequest, EncodeRequest),
        *(ClassFields, ScoreRequest, RerankRequest, ClassifyRequest),
        *(SeparateReasoningRequest, ParseFunctionCallRequest),
        *(DetokenizeRequest, AbortRequest, StartProfileRequest, BatchRequest),
        *(InputTokensRequest, ResponseRequest, CountTokensRequest, MessagesRequest),
        *(OllamaFields, OllamaChatRequest, OllamaGenerateRequest, OllamaOptions, ShowRequest),
        *(PauseRequest, ContinueRequest, MemoryRequest),
        *(UpdateFields, UpdateFromDiskRequest, UpdateFromTensorRequest),
    ],
)
def test_request_fields(model: type[WireModel]) -> None:
    schema = model.model_json_schema()
    bases = (
        SamplingFields,
        InputTokensRequest,
        CountTokensRequest,
        OllamaFields,
        UpdateFields,
        ClassFields,
    )  # with tables of their own
    inherited = next((base.model_fields for base in bases if model.__base__ is base), {})
    expected = {
        name: wire_type(field) + (", required" if name in schema.get("required", ()) else "")
        for name, field in schema["properties"].items()
        if name not in inherited
    }
    table = rows(f"fields of {model.__name__}")
    assert {names(field)[0]: kind for field, kind, _ in table} == expected
    assert all(effect for _, _, effect in table)


def test_tool_call_parsers() -> None:
    assert [names(name)[0] for name, _, _ in rows("tool-call parsers")] == list(TOOL_FORMATS)
    assert all(models and form for _, models, form in rows("tool-call parsers"))
    assert names(PAGE.split("<!-- tool-call aliases -->")[1].split("\n\n")[0]) == list(TOOL_ALIASES)


def test_reasoning_parsers() -> None:
    table = [[names(cell.replace("\\|", "|")) for cell in row] for row in rows("reasoning parsers")]
    documented = [(name, tags, toggle) for (name,), _, tags, toggle in table]
    tags = [[family.start.strip(), family.end] if isinstance(family, TagFamily) else [] for family in FAMILIES]
    toggles = [[family.toggle] if family.toggle else [] for family in FAMILIES]
    assert documented == list(zip([family.name for family in FAMILIES], tags, toggles, strict=True))
    assert names(PAGE.split("<!-- reasoning aliases -->")[1].split("\n\n")[0]) == list(ALIASES)


def test_tools_that_are_left_out() -> None:
    assert names(PAGE.split("<!-- left out -->")[1].split(", with or without")[0]) == list(LEFT_OUT)


def test_sampling_params_of_generate() -> None:
    paragraph = PAGE.split("`sampling_params` takes")[1].split("\n\n")[0]
    assert set(names(paragraph)) == SAMPLING_NAMES


def test_metadata_and_refused_fields() -> None:
    assert {names(field)[0]: why for field, why in rows("metadata")} == METADATA
    documented = {
        names(field)[0]: (names(passing), instead, passing.startswith("only "))
        for field, passing, instead in rows("not yet")
    }
    assert documented == {
        name: ([json.dumps(n) for n in rule.neutral] or ["null"] * rule.empty_asks, rule.instead, rule.empty_asks)
        for name, rule in NOT_YET.items()
    }
    elsewhere = {names(field)[0]: (names(passing), empty) for field, passing, empty in rows("of other routes")}
    assert elsewhere == {
        name: ([json.dumps(n) for n in rule.neutral], "no" if rule.empty_asks else "yes")
        for name, rule in OF_OTHER_ROUTES.items()
    }


def test_routes() -> None:
    paths = create_app(FakeEngine(None), HttpConfig()).openapi()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert {route for cell, _ in rows("routes") for route in names(cell)} == served


def test_errors() -> None:
    documented = {(int(status), names(code)[0] if names(code) else None) for status, _, code, _ in rows("errors")}
    sources = [*(ROOT / "http").rglob("*.py"), *(ROOT / "runtime").rglob("*.py")]
    codes = {
        code
        for file in sources
        for code in re.findall(r'(?:\bcode=|default_code = )"(\w+)"', file.read_text(encoding="utf-8"))
    }
    assert {(status, code) for _, status, code in TABLE} <= documented
    assert {code for _, code in documented} == codes | {code for _, _, code in TABLE}
    for status, kind, _, _ in rows("errors"):
        assert names(kind) == [ErrorBody(int(status), "").payload()["error"]["type"]]


def test_limits() -> None:
    numbers = [int(number) for _, limit in rows("limits") for number in re.findall(r"\d+", limit)]
    assert numbers == [
        MAX_SAMPLES,
        *(MAX_IDS, MAX_PAIRED, MAX_SCORES),
        sampling_params.MAX_N,
        sampling_params.MAX_LOGPROBS,
        sampling_params.MAX_LOGIT_BIAS,
        MAX_ALLOWED_IDS,
        MAX_LOGPROB_IDS,
        *(sampling_params.MAX_STOP_STRINGS, sampling_params.MAX_STOP_LENGTH, sampling_params.MAX_STOP_CHARACTERS),
        *(MAX_STOP_PATTERNS, MAX_PATTERN, MAX_PATTERNS),
        sampling_params.MAX_STOP_TOKEN_IDS,
        SamplingFields.model_json_schema()["properties"]["rid"]["anyOf"][0]["maxLength"],
        MAX_SALT_LENGTH,
        MAX_TOOLS,
        MAX_GRAMMAR_BYTES,
        int(MAX_CPU_SECONDS),
        MAX_COMPILED_BYTES,
        MAX_LEAST_CHARACTERS,
        MAX_OPTIONAL,
        MAX_MULTIPLE,
        GrammarConfig().grammar_cache_bytes,
        BASE_BYTES,
        TOKEN_BYTES,
        MOST_BYTES,
        BASE_VALUES,
        LIST_COST,
        FIELD_COST,
        NESTED_VALUES,
        HISTORY_VALUES,
        HttpConfig().max_file_bytes,
        HttpConfig().max_batch_lines,
        MAX_CUSTOM_ID,
        MAX_HEAD,
        int(MAX_SECONDS),
        MAX_CHARACTERS,
        MAX_DEPTH,
        COUNTED_BASE,
        COUNTED_PER_TOKEN,
        DETOKENIZE_CONTEXTS,
        MAX_PARSED_TEXT,
    ]


def test_fields_of_a_batch() -> None:
    known = dict.fromkeys(("id", "endpoint", "input_file_id", "completion_window"), "")
    times = {"created_at": 0, "expires_at": 0}
    ends = [Batch(**known, **times, total=1, status=status) for status in ("cancelled", "expired")]
    given = {path for batch in ends for path in paths_of(batch.as_dict())}
    assert {name for cell, _ in rows("fields of a batch") for name in names(cell)} == given


def test_order_of_the_sampler() -> None:
    docstring = ast.get_docstring(
        ast.parse((ROOT / "runtime" / "execution" / "sampling" / "sampler.py").read_text(encoding="utf-8"))
    )
    assert docstring is not None
    steps = re.findall(r"^\d\. .*(?:\n   .*)*", docstring, re.MULTILINE)
    documented = re.findall(r"^\d\. .*(?:\n   .*)*", PAGE.split("<!-- order -->")[1], re.MULTILINE)
    assert [" ".join(step.split()) for step in documented] == [" ".join(step.split()) for step in steps]


def paths_of(value: object, path: str = "") -> Iterator[str]:
    """Dotted paths of the leaves of a JSON value."""
    name = path.rpartition(".")[2]
    if isinstance(value, dict) and name not in OPAQUE:
        for key, item in value.items():
            yield from paths_of(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict) and name not in OPAQUE:
        yield from paths_of(value[0], f"{path}[]")
    else:
        yield path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    tokenizer = Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    return TestClient(create_app(FakeEngine(tokenizer, reply="Hello, wörld!"), HttpConfig()), "http://localhost")


def test_server_info(server: TestClient) -> None:
    (state,) = server.get("/server_info").json()["internal_states"]
    assert {name for cell, _ in rows("internal states") for name in names(cell)} == set(paths_of(state))
    group = RankStats(**{field.name: 0 for field in dataclasses.fields(RankStats)})
    state = describe_stats(EngineStats([group, group]))
    assert {name for cell, _ in rows("groups of internal states") for name in names(cell)} == {
        f"groups[].{path}" for path in paths_of(state["groups"][0])
    }


def test_loads(server: TestClient) -> None:
    (load,) = server.get("/v1/loads?include=core").json()["loads"]
    assert [name for cell, _ in rows("loads") for name in names(cell)] == list(load)
    (old,) = server.get("/get_load").json()
    text = PAGE.split("`GET /get_load` tells")[1].split("`GET /load`")[0]
    assert set(old) == {*names(text)} - {"num_total_tokens"}


def test_capabilities_and_models(server: TestClient) -> None:
    for path, mark in (("/v1/capabilities", "capabilities"), ("/v1/models/qwen/qwen2.5-0.5b-instruct", "model")):
        answer = server.get(path).raise_for_status().json()
        for route in answer.get("routes", ()):
            route["fields"] = "…"
        assert {name for cell, _ in rows(mark) for name in names(cell)} == set(paths_of(answer))


EVERYTHING = {"logprobs": 1, "prompt_logprobs": 1, "return_token_ids": True, "return_timings": True}
SCORED = {"return_logprob": True, "top_logprobs_num": 1, "token_ids_logprob": [5], "logprob_start_len": 0}


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        ("/v1/chat/completions", [EVERYTHING | {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}]),
        ("/v1/completions", [EVERYTHING | {"prompt": "hi"}]),
        (
            "/generate",
            [{"text": "hi"} | SCORED | {"sampling_params": {"max_new_tokens": count}} for count in (3, 100)],
        ),
        ("/v1/responses", [{"input": "hi", "metadata": {"label": "a"}}]),
        ("/v1/messages", [{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}]),
    ],
)
def test_fields_of_answers(server: TestClient, path: str, bodies: list[dict[str, Any]]) -> None:
    answers = [server.post(path, json=body) for body in bodies]
    assert all(answer.status_code == 200 for answer in answers)
    given = {leaf for answer in answers for leaf in paths_of(answer.json())}
    documented = {leaf for cell, _ in rows(f"answer of {path}") for leaf in names(cell)}
    assert documented == given


def test_fields_of_embeddings(tmp_path: Path) -> None:
    engine = FakeEngine(Tokenizer.load(build_tiny_tokenizer(tmp_path)))
    engine.embedding = EmbeddingSpec(4, "last", normalized=True)
    client = TestClient(create_app(engine, HttpConfig()), "http://localhost")
    given = set(paths_of(client.post("/v1/embeddings", json={"input": "hi"}).raise_for_status().json()))
    assert {leaf for cell, _ in rows("answer of /v1/embeddings") for leaf in names(cell)} == given
    told = {f"meta_info.{name}" for name in client.post("/encode", json={"text": "hi"}).json()["meta_info"]}
    documented = {leaf for cell, _ in rows("answer of /generate") for leaf in names(cell)}
    assert told - {"meta_info.finish_reason"} <= documented


_DETAILS = ("prompt_tokens_details", "completion_tokens_details")


def sdk_fields(model: type[pydantic.BaseModel], path: str = "") -> Iterator[str]:
    """Dotted paths of the fields of an answer, as the SDK types it; of tool calls and the like only the first step."""
    for name, field in model.model_fields.items():
        deeper = next(wire_models(field.annotation), None)
        if deeper is not None and name in ("choices", "message", "usage", *_DETAILS):
            yield from sdk_fields(deeper, f"{path}{name}{'[]' if name == 'choices' else ''}.")
        else:
            yield f"{path}{name}"


def wire_models(annotation: Any) -> Iterator[type[pydantic.BaseModel]]:
    """The models inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from wire_models(inner)


@pytest.mark.parametrize(("mark", "model"), [("/v1/chat/completions", ChatCompletion), ("/v1/completions", Completion)])
def test_every_field_of_openais_answers_is_told_of(mark: str, model: type[pydantic.BaseModel]) -> None:
    given = {name for cell, _ in rows(f"answer of {mark}") for name in names(cell)}
    left_out = {name for cell, _ in rows("not in answers") for name in names(cell)}
    assert not given & left_out
    unknown = [name for name in sdk_fields(model) if not any(told.startswith(name) for told in given | left_out)]
    assert unknown == []


def test_defaults_that_the_page_states(server: TestClient) -> None:
    words = " ".join(PAGE.split())
    assert "completions: 16," in words
    assert "default length is 128 tokens" in words
    body = {"prompt": "hi", "ignore_eos": True}
    assert server.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 16
    body = {"text": "hi", "sampling_params": {"ignore_eos": True}}
    assert server.post("/generate", json=body).json()["meta_info"]["completion_tokens"] == 128
