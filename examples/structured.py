"""Structured output: the answer is JSON that fits a schema, whatever the model would have written."""

import argparse
import json

from openai import OpenAI

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "date": {"type": "string"}, "place": {"type": "string"}},
    "required": ["name", "date", "place"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    client = OpenAI(base_url=f"{base_url}/v1", api_key="None")
    question = "Extract the name, date and place as JSON: Anna was born in Vienna on 3 May 1990."
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        temperature=0,
        max_tokens=128,
    )
    person = json.loads(answer.choices[0].message.content or "")
    print(f"{person['name']}, born on {person['date']} in {person['place']}")


if __name__ == "__main__":
    main()
