"""What a newcomer does: start the server on the embedded model, wait, talk to it through the OpenAI SDK, end it."""

import openai
import pytest

from palladio.default_model import DEFAULT_MODEL_NAME
from palladio.utils import launch_server_cmd, terminate_process, wait_for_server

SMALL = "--max-running-requests 2 --chunked-prefill-size 64 --context-length 256 --max-total-tokens 1024"


@pytest.fixture(scope="module")
def base_url(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALLADIO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("JAX_PLATFORMS", "cpu")
        process, port = launch_server_cmd(f"python3 -m palladio serve --host 127.0.0.1 {SMALL}", host="127.0.0.1")
    try:
        wait_for_server(f"http://127.0.0.1:{port}", timeout=240, process=process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        terminate_process(process)


def test_chat_with_the_embedded_model(base_url):
    client = openai.OpenAI(base_url=base_url, api_key="None")
    assert [model.id for model in client.models.list()] == [DEFAULT_MODEL_NAME]
    answer = client.chat.completions.create(
        model=DEFAULT_MODEL_NAME,
        messages=[{"role": "user", "content": "List 3 countries and their capitals."}],
        temperature=0,
        max_tokens=24,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage.completion_tokens == 24
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content


def test_a_stream_adds_up_to_the_whole(base_url):
    client = openai.OpenAI(base_url=base_url, api_key="None")
    request = {"model": DEFAULT_MODEL_NAME, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
    whole = client.completions.create(**request).choices[0].text
    parts = [chunk.choices[0].text for chunk in client.completions.create(**request, stream=True)]
    assert len(parts) > 1
    assert "".join(parts) == whole
