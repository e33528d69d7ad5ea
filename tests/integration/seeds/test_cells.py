"""The cells of SGLang's OpenAI tutorial, in the five versions that the project was asked for, as readers run them.

| Version | Cells of its own; those without a name here are in all five |
|---|---|
| November 2024 (a notebook; Llama 3.1) | test_chat with a system message |
| May 2025 (in Chinese), June 2025 (website), June 2025 (notebook) | test_chat, test_thinking |
| later (a notebook) | test_chat, test_thinking, test_deepseek_v3_models, the table of reasoning parsers |

Only the imports and the model's name differ; reasoning models are not at hand, so a scripted one of their format stands
for them. The batch cells come with the routes for files and batches.
"""

from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion

from palladio.flags.server_args import parse_server_args
from palladio.utils import print_highlight
from tests.integration.seeds.conftest import ANSWER, REASONING
from tests.integration.serving import MODEL


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "You are a helpful AI assistant"}]])
def test_chat(client: openai.Client, capsys, system: list[Any]) -> None:
    response = client.chat.completions.create(
        model=MODEL,
        messages=[
            *system,
            {"role": "user", "content": "List 3 countries and their capitals."},
        ],
        temperature=0,
        max_tokens=64,
    )
    print_highlight(f"Response: {response}")
    assert capsys.readouterr().out.startswith("Response: ChatCompletion(id='")
    choice = check_chat(response)
    assert choice.message.content
    assert choice.message.reasoning_content is None


def test_chat_with_parameters(client: openai.Client) -> None:
    """The detailed request; asked twice, it says the same: it has a seed."""
    answers = []
    for _ in range(2):
        response = client.chat.completions.create(
            model=MODEL,
            messages=[
                {
                    "role": "system",
                    "content": "You are a knowledgeable historian who provides concise responses.",
                },
                {"role": "user", "content": "Tell me about ancient Rome"},
                {
                    "role": "assistant",
                    "content": "Ancient Rome was a civilization centered in Italy.",
                },
                {"role": "user", "content": "What were their major achievements?"},
            ],
            temperature=0.3,  # Lower temperature for more focused responses
            max_tokens=128,  # Reasonable length for a concise response
            top_p=0.95,  # Slightly higher for better fluency
            presence_penalty=0.2,  # Mild penalty to avoid repetition
            frequency_penalty=0.2,  # Mild penalty for more natural language
            n=1,  # Single response is usually more stable
            seed=42,  # Keep for reproducibility
        )
        print_highlight(response.choices[0].message.content)
        answers.append(response.choices[0].message.content)
    assert answers[0] == answers[1] != ""


def test_chat_stream(client: openai.Client) -> None:
    """Without max_tokens: it runs to its end, or to that of the context."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say this is a test"}],
        stream=True,
    )
    text, chunks = "", []
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


def test_completion(client: openai.Client) -> None:
    response = client.completions.create(
        model=MODEL,
        prompt="List 3 countries and their capitals.",
        temperature=0,
        max_tokens=64,
        n=1,
        stop=None,
    )
    print_highlight(f"Response: {response}")
    choice = check_completion(response)
    assert (choice.matched_stop is None) == (choice.finish_reason == "length")
    assert response.usage is not None
    assert response.usage.completion_tokens <= 64


def test_completion_with_parameters(client: openai.Client) -> None:
    texts = []
    for _ in range(2):
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
        texts.append(check_completion(response).text)
    assert texts[0] == texts[1]
    assert "\n\n" not in texts[0]
    assert "THE END" not in texts[0]


@pytest.mark.slow  # a server of its own; test_default_model_talks.py has thoughts of a model
@pytest.mark.parametrize("enable_thinking", [True, False])
def test_thinking(qwen3_port: str, enable_thinking: bool) -> None:
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
    check_thinking(response, enable_thinking)


@pytest.mark.slow  # a server of its own; tests/http/chat/test_chat_reasoning.py has the family with a fake engine
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
    check_thinking(response, thinking)


@pytest.mark.slow  # the same
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


def check_completion(response: Completion) -> Any:
    assert response.object == "text_completion"
    (choice,) = response.choices
    assert (choice.index, choice.logprobs) == (0, None)
    assert choice.text
    assert choice.finish_reason in ("stop", "length")
    return choice


def check_thinking(response: ChatCompletion, thinks: bool) -> None:
    message = check_chat(response).message
    assert (message.reasoning_content, message.content) == (REASONING if thinks else None, ANSWER)


def check_chat(response: ChatCompletion) -> Any:
    """What the documents print of a response."""
    assert len(response.id) == 32
    assert int(response.id, 16) >= 0
    assert (response.object, response.model) == ("chat.completion", MODEL)
    (choice,) = response.choices
    assert (choice.index, choice.logprobs) == (0, None)
    message = choice.message
    assert (message.role, message.refusal, message.tool_calls) == ("assistant", None, None)
    assert choice.finish_reason in ("stop", "length")
    assert hasattr(choice, "matched_stop")
    assert hasattr(message, "reasoning_content")
    assert response.usage is not None
    assert response.usage.prompt_tokens + response.usage.completion_tokens == response.usage.total_tokens
    return choice
