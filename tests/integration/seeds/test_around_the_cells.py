"""What the documents show around their cells: the launch, its log, shell cells; and what they link to for the rest."""

import json
import re
import shutil
from typing import Any

import httpx
import openai
import pytest

from palladio.utils import execute_shell_command, terminate_process, wait_for_server
from tests.integration.serving import CONTEXT_LENGTH, MODEL


def test_the_polls_of_the_launch_log(server, port):
    """What `wait_for_server`, and SGLang's own warm-up, ask a fresh server for."""
    wait_for_server(f"http://localhost:{port}", timeout=20, process=server.process)
    headers = {"Authorization": "Bearer None"}
    (first, _) = httpx.get(f"http://localhost:{port}/v1/models", headers=headers, timeout=20).json()["data"]
    assert (first["id"], first["object"], first["max_model_len"]) == (MODEL, "model", CONTEXT_LENGTH)
    info = httpx.get(f"http://localhost:{port}/get_model_info", timeout=20).json()
    assert info["is_generation"] is True
    assert info["model_path"]
    body = {"text": "The capital city of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    answer = httpx.post(f"http://localhost:{port}/generate", json=body, timeout=20).json()
    assert answer["text"]
    assert len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"] == 8
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 8}


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(port, capfd):
    """The tutorials' shell cells."""
    command = (
        f"curl -s http://localhost:{port}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f' -d \'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hi"}}], "max_tokens": 4}}\''
    )
    process = execute_shell_command(command)
    assert process.wait(20) == 0
    assert '"object":"chat.completion"' in capfd.readouterr().out
    terminate_process(process)


def test_the_log(server, client):
    """The lines that users look for, as SGLang prints them."""
    client.completions.create(model=MODEL, prompt="Hello", max_tokens=100, extra_body={"ignore_eos": True})
    log = server.log()
    assert re.search(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] server_args=ServerArgs\(model_path='", log)
    lines = (
        "server_args=",
        "Load weight begin.",
        "Load weight end.",
        "KV Cache is allocated. #tokens: 2048",
        "The server is fired up and ready to roll!",
        "Prefill batch. #new-seq: 1",
    )
    places = [log.find(line) for line in lines]
    assert -1 not in places
    assert places == sorted(places)
    assert re.search(r"Decode batch\. #running-req: \d+, .*gen throughput \(token/s\): [\d.]+", log)
    assert '"POST /v1/completions HTTP/1.1" 200' in log


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "population": {"type": "integer"}},
    "required": ["name", "population"],
}
EBNF = """
root ::= city | description
city ::= "London" | "Paris" | "Berlin" | "Rome"
description ::= city " is " status
status ::= "the capital of " country
country ::= "England" | "France" | "Germany" | "Italy"
"""
MESSAGES = [{"role": "user", "content": "Give me the information of the capital of France."}]


def test_structured_output_by_a_json_schema(client: openai.Client) -> None:
    response = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        max_tokens=128,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "foo", "schema": SCHEMA},
        },
    )
    if response.choices[0].finish_reason == "stop":  # a model that talks nonsense may count for ever
        found = json.loads(response.choices[0].message.content)
        assert re.fullmatch("[a-z]{1,8}", found["name"])
        assert isinstance(found["population"], int)
    else:
        assert re.match(r'\{\s*"name"\s*:\s*"[a-z]{0,8}', response.choices[0].message.content)


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"regex": "(Paris|London)"}, "(Paris|London)"),
        ({"ebnf": EBNF}, "(London|Paris|Berlin|Rome)( is the capital of (England|France|Germany|Italy))?"),
    ],
)
def test_structured_output_by_regex_and_ebnf(client: openai.Client, extra: dict[str, Any], pattern: str) -> None:
    response = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=128, extra_body=extra
    )
    assert re.fullmatch(pattern, response.choices[0].message.content)
    assert response.choices[0].finish_reason == "stop"
