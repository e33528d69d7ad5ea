"""Reasoning with a real engine: a budget closes it, and a grammar holds from there on.

The prompts leave the output inside a block, by continuing a message that has opened it.
"""

import pytest

from tests.integration.serving import MODEL

MESSAGES = [{"role": "user", "content": "Is 9.8 greater than 9.11?"}, {"role": "assistant", "content": "<think>\nHm,"}]
INSIDE = {"continue_final_message": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [0, 7])
def test_a_budget_closes_reasoning_and_a_grammar_follows(client, budget, stream):
    fields = {"model": MODEL, "messages": MESSAGES, "seed": 5, "temperature": 1, "max_tokens": 40}
    extra = INSIDE | {"thinking_token_budget": budget, "regex": "(yes|no)"}
    if stream:
        options = {"include_usage": True}
        *chunks, last = client.chat.completions.create(**fields, stream=True, stream_options=options, extra_body=extra)
        content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        usage, finish = last.usage, chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(**fields, extra_body=extra)
        content, usage, finish = answer.choices[0].message.content, answer.usage, answer.choices[0].finish_reason
        assert bool(answer.choices[0].message.reasoning_content) == (budget > 0)
    assert content in ("yes", "no")
    assert finish == "stop"
    assert usage.reasoning_tokens == budget + 1  # the closing tag, which this seed does not draw before


def test_without_a_budget_it_goes_on(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, seed=5, temperature=1, max_tokens=40, extra_body=INSIDE
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content is None
    assert answer.usage.reasoning_tokens == answer.usage.completion_tokens == 40


def test_a_grammar_leaves_room_for_its_answer(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, seed=5, temperature=1, max_tokens=40, extra_body=INSIDE | {"regex": "(yes|no)"}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content in ("yes", "no")
    assert 0 < answer.usage.reasoning_tokens < 40


def test_the_closing_tag_is_the_engines_choice_alone(client):
    """A budget by itself leaves the answer free."""
    extra = INSIDE | {"thinking_token_budget": 5, "return_token_ids": True, "ignore_eos": True}
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, seed=5, temperature=1, max_tokens=20, extra_body=extra
    )
    assert (answer.usage.reasoning_tokens, answer.usage.completion_tokens) == (6, 20)
    assert "</think>" not in answer.choices[0].message.reasoning_content
