"""The tutorial of November 2024: a model of Llama 3.1, a system message, no reasoning.

Its batch cells come with the routes for files and batches.
"""

import openai

from palladio.utils import print_highlight
from tests.integration.serving import MODEL
from tests.seeds import cells


def test_chat(client: openai.Client, capsys) -> None:
    response = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "You are a helpful AI assistant"},
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


def test_chat_with_parameters(client: openai.Client) -> None:
    cells.chat_with_parameters(client)


def test_chat_stream(client: openai.Client) -> None:
    cells.chat_stream(client)


def test_completion(client: openai.Client) -> None:
    cells.completion(client)


def test_completion_with_parameters(client: openai.Client) -> None:
    cells.completion_with_parameters(client)
