"""The tutorial of June 2025, as a notebook.

Its batch cells come with the routes for files and batches.
"""

import openai
import pytest
from openai import OpenAI

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
def test_enabling_thinking(qwen3_port: str, enable_thinking: bool) -> None:
    # Modify OpenAI's API key and API base to use SGLang's API server.
    openai_api_key = "EMPTY"
    openai_api_base = f"http://127.0.0.1:{qwen3_port}/v1"  # Use the correct port

    client = OpenAI(
        api_key=openai_api_key,
        base_url=openai_api_base,
    )

    model = MODEL  # Use the model loaded by the server
    messages = [{"role": "user", "content": "9.11 and 9.8, which is greater?"}]

    response = client.chat.completions.create(
        model=model,
        messages=messages,
        extra_body={"chat_template_kwargs": {"enable_thinking": enable_thinking}, "separate_reasoning": True},
    )

    print("response.choices[0].message.reasoning_content: \n", response.choices[0].message.reasoning_content)
    print("response.choices[0].message.content: \n", response.choices[0].message.content)
    cells.check_chat(response)
    assert response.choices[0].message.reasoning_content == (REASONING if enable_thinking else None)
    assert response.choices[0].message.content == ANSWER


def test_chat_with_parameters(client: openai.Client) -> None:
    cells.chat_with_parameters(client)


def test_chat_stream(client: openai.Client) -> None:
    cells.chat_stream(client)


def test_completion(client: openai.Client) -> None:
    cells.completion(client)


def test_completion_with_parameters(client: openai.Client) -> None:
    cells.completion_with_parameters(client)
