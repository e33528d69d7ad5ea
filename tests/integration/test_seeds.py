"""The cells of SGLang's OpenAI tutorial, against a server of ours: what users already have must run here.

Only the import lines and the model's name differ. The first cell (`launch_server_cmd`, `wait_for_server`) and the last
one (`terminate_process`) are in the fixture that `server` comes from.
"""

import re
import shutil

import httpx
import openai
import pytest
from openai import OpenAI

from palladio.utils import execute_shell_command, print_highlight, terminate_process, wait_for_server
from tests.integration.serving import CONTEXT_LENGTH, MODEL

HISTORY = [
    {"role": "system", "content": "You are a knowledgeable historian who provides concise responses."},
    {"role": "user", "content": "Tell me about ancient Rome"},
    {"role": "assistant", "content": "Ancient Rome was a civilization centered in Italy."},
    {"role": "user", "content": "What were their major achievements?"},
]


@pytest.fixture
def port(server):
    return server.url.rpartition(":")[2]


@pytest.fixture
def client(port):
    with openai.Client(base_url=f"http://127.0.0.1:{port}/v1", api_key="None") as client:
        yield client


def test_chat(client, capsys):
    response = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "List 3 countries and their capitals."}],
        temperature=0,
        max_tokens=64,
    )
    print_highlight(f"Response: {response}")
    assert capsys.readouterr().out.startswith("Response: ChatCompletion(id='")
    assert re.fullmatch("[0-9a-f]{32}", response.id)
    assert response.object == "chat.completion"
    assert response.model == MODEL
    (choice,) = response.choices
    assert choice.index == 0
    assert choice.logprobs is None
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.message.reasoning_content is None
    assert choice.message.tool_calls is None
    assert choice.finish_reason in ("stop", "length")
    assert hasattr(choice, "matched_stop")
    usage = response.usage
    assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens


@pytest.mark.parametrize("api_key", ["None", "EMPTY"])
@pytest.mark.parametrize("enable_thinking", [True, False])
def test_thinking_without_a_reasoning_parser(port, enable_thinking, api_key):
    """Nothing is separated; the template gets its argument (this one adds tokens when it is false)."""
    client = OpenAI(api_key=api_key, base_url=f"http://127.0.0.1:{port}/v1")
    messages = [{"role": "user", "content": "9.11 and 9.8, which is greater?"}]
    response = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        extra_body={"chat_template_kwargs": {"enable_thinking": enable_thinking}, "separate_reasoning": True},
    )
    print("response.choices[0].message.reasoning_content: \n", response.choices[0].message.reasoning_content)
    print("response.choices[0].message.content: \n", response.choices[0].message.content)
    assert response.choices[0].message.reasoning_content is None
    assert response.choices[0].message.content
    plain = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert (response.usage.prompt_tokens > plain.usage.prompt_tokens) is not enable_thinking


def test_chat_with_parameters(client):
    def ask() -> str:
        response = client.chat.completions.create(
            model=MODEL,
            messages=HISTORY,
            temperature=0.3,  # Lower temperature for more focused responses
            max_tokens=128,  # Reasonable length for a concise response
            top_p=0.95,  # Slightly higher for better fluency
            presence_penalty=0.2,  # Mild penalty to avoid repetition
            frequency_penalty=0.2,  # Mild penalty for more natural language
            n=1,  # Single response is usually more stable
            seed=42,  # Keep for reproducibility
        )
        print_highlight(response.choices[0].message.content)
        return response.choices[0].message.content

    assert ask() == ask() != ""


def test_chat_stream(client):
    """Without max_tokens: it runs to its end, or to that of the context."""
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say this is a test"}], stream=True
    )
    text = ""
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        if chunk.choices[0].delta.content is not None:
            text += chunk.choices[0].delta.content
            print(chunk.choices[0].delta.content, end="")
    assert text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].object == "chat.completion.chunk"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_completion(client):
    response = client.completions.create(
        model=MODEL, prompt="List 3 countries and their capitals.", temperature=0, max_tokens=64, n=1, stop=None
    )
    print_highlight(f"Response: {response}")
    assert response.object == "text_completion"
    (choice,) = response.choices
    assert choice.text
    assert choice.finish_reason in ("stop", "length")
    assert (choice.matched_stop is None) == (choice.finish_reason == "length")
    assert response.usage.completion_tokens <= 64


def test_completion_with_parameters(client):
    def ask() -> openai.types.Completion:
        response = client.completions.create(
            model=MODEL,
            prompt="Write a short story about a space explorer.",
            temperature=0.7,  # Moderate temperature for creative writing
            max_tokens=150,  # Longer response for a story
            top_p=0.9,  # Balanced diversity in word choice
            stop=["\n\n", "THE END"],  # Multiple stop sequences
            presence_penalty=0.3,  # Encourage novel elements
            frequency_penalty=0.3,  # Reduce repetitive phrases
            n=1,  # Generate one completion
            seed=123,  # For reproducible results
        )
        print_highlight(f"Response: {response}")
        return response

    choice = ask().choices[0]
    assert "\n\n" not in choice.text
    assert "THE END" not in choice.text
    assert choice.text == ask().choices[0].text


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
