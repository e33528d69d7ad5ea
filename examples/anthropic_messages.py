"""Anthropic's messages, with the anthropic SDK: `pip install anthropic`."""

import argparse

from anthropic import Anthropic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    client = Anthropic(base_url=base_url, api_key="None")
    message = client.messages.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=64,
        extra_body={"temperature": 0},  # new versions of the SDK have no argument for it
    )
    for block in message.content:
        if block.type == "text":
            print(block.text)
    print("stop reason:", message.stop_reason)


if __name__ == "__main__":
    main()
