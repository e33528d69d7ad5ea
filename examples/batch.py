"""A batch: requests in a file, run in the background, answers in another file."""

import argparse
import json
import time

from openai import OpenAI

QUESTIONS = ("What is the capital of France?", "What is Python?", "What is 12 + 30?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    client = OpenAI(base_url=f"{base_url}/v1", api_key="None")
    settings = {"model": client.models.list().data[0].id, "temperature": 0, "max_tokens": 64}
    lines = []
    for number, question in enumerate(QUESTIONS):
        body = settings | {"messages": [{"role": "user", "content": question}]}
        line = {"custom_id": f"question-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line))
    file = client.files.create(file=("questions.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    print("status:", batch.status)
    for text in client.files.content(batch.output_file_id or "").text.splitlines():
        answer = json.loads(text)
        print(answer["custom_id"], answer["response"]["body"]["choices"][0]["message"]["content"])


if __name__ == "__main__":
    main()
