"""OpenAI's responses: the server keeps the conversation, and a second request refers to the first."""

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    client = OpenAI(base_url=f"{base_url}/v1", api_key="None")
    model = client.models.list().data[0].id
    first = client.responses.create(model=model, input="My name is Zorbalin.", temperature=0, max_output_tokens=64)
    print("first:", first.output_text)
    second = client.responses.create(
        model=model,
        input="What is my name?",
        previous_response_id=first.id,
        temperature=0,
        max_output_tokens=64,
    )
    print("second:", second.output_text)


if __name__ == "__main__":
    main()
