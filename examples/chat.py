"""A chat completion with the openai SDK: `pip install openai`, start a server, run this file."""

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    client = OpenAI(base_url=f"{base_url}/v1", api_key="None")
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=64,
    )
    print(answer.choices[0].message.content)
    if answer.usage is not None:
        print(f"{answer.usage.prompt_tokens} prompt tokens, {answer.usage.completion_tokens} completion tokens")


if __name__ == "__main__":
    main()
