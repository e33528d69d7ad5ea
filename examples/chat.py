"""A conversation with the openai SDK: text is printed as it arrives, and each question knows the answers before it."""

import argparse
from typing import Any

from openai import OpenAI

QUESTIONS = ("What is the capital of France?", "List 3 countries and their capitals.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    client = OpenAI(base_url=f"{base_url}/v1", api_key="None")
    model = client.models.list().data[0].id
    messages: list[Any] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        settings: dict[str, Any] = {"temperature": 0, "max_tokens": 64, "stream_options": {"include_usage": True}}
        answer = ""
        for chunk in client.chat.completions.create(model=model, messages=messages, stream=True, **settings):
            text = chunk.choices[0].delta.content or "" if chunk.choices else ""
            print(text, end="", flush=True)
            answer += text
            if chunk.usage is not None:
                print(
                    f"\n({chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} completion tokens)"
                )
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
