"""Stored chat completions: there are none, and the SDK is told so."""

import openai
import pytest

from tests.fake_engine import MODEL


def test_the_list_is_empty_though_one_was_to_be_stored(client: openai.OpenAI) -> None:
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], store=True)
    listed = client.chat.completions.list(model=MODEL, metadata={"a": "b"}, limit=3, order="desc", after="x")
    assert (listed.data, listed.has_next_page()) == ([], False)


def test_none_is_found(client: openai.OpenAI) -> None:
    stored = client.chat.completions
    answer = stored.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], store=True)
    for call in (
        lambda: stored.retrieve(answer.id),
        lambda: stored.update(answer.id, metadata={"a": "b"}),
        lambda: stored.delete(answer.id),
        lambda: stored.messages.list(answer.id),
    ):
        with pytest.raises(openai.NotFoundError, match="stores none") as caught:
            call()
        assert (caught.value.code, caught.value.param) == ("completion_not_found", "completion_id")
