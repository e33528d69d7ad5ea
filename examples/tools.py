"""A tool call, its result, and the answer that the model gives with it."""

import argparse
import json
from typing import Any

from openai import OpenAI

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    client = OpenAI(base_url=f"{base_url}/v1", api_key="None")
    request: Any = {"model": client.models.list().data[0].id, "tools": [WEATHER], "temperature": 0, "max_tokens": 128}
    messages: list[Any] = [{"role": "user", "content": "Tell me the weather in Rome."}]
    message = client.chat.completions.create(messages=messages, **request).choices[0].message
    messages.append(message)
    for call in message.tool_calls or ():
        print(f"call: {call.function.name}({call.function.arguments})")
        city = json.loads(call.function.arguments)["city"]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{city}: sunny, 20 degrees"})
    print("answer:", client.chat.completions.create(messages=messages, **request).choices[0].message.content)


if __name__ == "__main__":
    main()
