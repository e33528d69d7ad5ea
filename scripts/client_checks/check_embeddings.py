"""Embeddings through the openai SDK, of a server of its own: one text, many, token ids, base64, dimensions, errors."""

import math

import openai
from checks import KEY, MODEL, equal, own_server, raises, run_checks, true


def check_embeddings() -> None:
    with own_server("--is-embedding", "--api-key", KEY, "--log-level", "warning") as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        texts = ["a cat", "a small cat", "the KV cache of a server"]
        answer = client.embeddings.create(model=MODEL, input=texts)  # base64, which the SDK decodes
        vectors = [entry.embedding for entry in answer.data]
        equal([entry.index for entry in answer.data], [0, 1, 2])
        true(all(abs(math.hypot(*vector) - 1) < 1e-3 for vector in vectors))
        true(answer.usage.prompt_tokens > 0)
        (single,) = client.embeddings.create(model=MODEL, input=texts[0], encoding_format="float").data
        true(max(abs(left - right) for left, right in zip(single.embedding, vectors[0], strict=True)) < 1e-4)
        many = client.embeddings.create(model=MODEL, input=[f"text {i}" for i in range(300)]).data
        equal([entry.index for entry in many], list(range(300)))
        equal(len(client.embeddings.create(model=MODEL, input=[[1, 2], [3]]).data), 2)
        with raises(openai.BadRequestError, "input"):
            client.embeddings.create(model=MODEL, input=[])
        with raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").embeddings.create(model=MODEL, input="a")
        with raises(openai.BadRequestError):
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])


if __name__ == "__main__":
    run_checks()
