"""The newest of the tutorials: no batches, a section on models that reason.

The reasoning models themselves are not at hand: a scripted one of their format stands for them.
"""

import openai
import pytest
from openai import OpenAI

from palladio.server_args import parse_server_args
from palladio.utils import print_highlight
from tests.integration.serving import MODEL
from tests.seeds import cells
from tests.seeds.conftest import ANSWER, REASONING


def test_chat(client: openai.Client, capsys) -> None:
    response = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "List 3 countries and their capitals."},
        ],
        temperature=0,
        max_tokens=64,
    )
    print_highlight(f"Response: {response}")
    assert capsys.readouterr().out.startswith("Response: ChatCompletion(id='")
    choice = cells.check_chat(response)
    assert choice.message.content
    assert choice.message.reasoning_content is None


@pytest.mark.parametrize("enable_thinking", [True, False])
def test_qwen3_models(qwen3_port: str, enable_thinking: bool) -> None:
    client = OpenAI(
        api_key="EMPTY",
        base_url=f"http://127.0.0.1:{qwen3_port}/v1",
    )

    model = MODEL
    messages = [{"role": "user", "content": "9.11 and 9.8, which is greater?"}]

    response = client.chat.completions.create(
        model=model,
        messages=messages,
        extra_body={"chat_template_kwargs": {"enable_thinking": enable_thinking}, "separate_reasoning": True},
    )

    print("Reasoning:", response.choices[0].message.reasoning_content)
    print("Answer:", response.choices[0].message.content)
    cells.check_chat(response)
    assert response.choices[0].message.reasoning_content == (REASONING if enable_thinking else None)
    assert response.choices[0].message.content == ANSWER


@pytest.mark.parametrize("thinking", [True, False])
def test_deepseek_v3_models(deepseek_v3_port: str, thinking: bool) -> None:
    client = OpenAI(
        api_key="EMPTY",
        base_url=f"http://127.0.0.1:{deepseek_v3_port}/v1",
    )

    model = MODEL
    messages = [{"role": "user", "content": "What is 2^8?"}]

    response = client.chat.completions.create(
        model=model,
        messages=messages,
        extra_body={"chat_template_kwargs": {"thinking": thinking}, "separate_reasoning": True},
    )

    print("Reasoning:", response.choices[0].message.reasoning_content)
    print("Answer:", response.choices[0].message.content)
    cells.check_chat(response)
    assert response.choices[0].message.reasoning_content == (REASONING if thinking else None)
    assert response.choices[0].message.content == ANSWER


def test_separate_reasoning_false(qwen3_port: str) -> None:
    """It is not separated then: the text stays as the model wrote it."""
    client = OpenAI(api_key="EMPTY", base_url=f"http://127.0.0.1:{qwen3_port}/v1")
    response = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "9.11 and 9.8, which is greater?"}],
        extra_body={"chat_template_kwargs": {"enable_thinking": True}, "separate_reasoning": False},
    )
    assert response.choices[0].message.reasoning_content is None
    assert response.choices[0].message.content == f"<think>{REASONING}</think>{ANSWER}"


@pytest.mark.parametrize("name", ["deepseek-r1", "deepseek-v3", "qwen3", "qwen3-thinking", "kimi", "gpt-oss"])
def test_the_table_of_reasoning_parsers(name: str) -> None:
    """Each name of the table starts a server."""
    command = parse_server_args(["--model-path", "/tmp", "--reasoning-parser", name])
    assert command.args.http.reasoning_parser == name


def test_chat_with_parameters(client: openai.Client) -> None:
    cells.chat_with_parameters(client)


def test_chat_stream(client: openai.Client) -> None:
    cells.chat_stream(client)


def test_completion(client: openai.Client) -> None:
    cells.completion(client)


def test_completion_with_parameters(client: openai.Client) -> None:
    cells.completion_with_parameters(client)
