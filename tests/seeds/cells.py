"""The cells that all five documents have, as they are but for the model's name, and what a reader sees of them."""

from typing import Any

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion

from palladio.utils import print_highlight
from tests.integration.serving import MODEL


def chat_with_parameters(client: openai.Client) -> str:
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
    return answers[0]


def chat_stream(client: openai.Client) -> None:
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


def completion(client: openai.Client) -> None:
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


def completion_with_parameters(client: openai.Client) -> None:
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


def check_completion(response: Completion) -> Any:
    assert response.object == "text_completion"
    (choice,) = response.choices
    assert (choice.index, choice.logprobs) == (0, None)
    assert choice.text
    assert choice.finish_reason in ("stop", "length")
    return choice


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
