"""Ray Data: a data set of questions goes through a server, several at a time: `pip install 'ray[data]' openai`."""

import argparse
from typing import Any

import ray
from openai import OpenAI

QUESTIONS = [f"What is {number} + {number + 1}?" for number in range(20)] + ["What is the capital of France?"]


class Ask:
    """A worker; Ray makes as many as --workers says."""

    def __init__(self, base_url: str) -> None:
        self._client = OpenAI(base_url=f"{base_url}/v1", api_key="None")
        self._model = self._client.models.list().data[0].id

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        messages: list[Any] = [{"role": "user", "content": row["item"]}]
        settings: dict[str, Any] = {"temperature": 0, "max_tokens": 32}
        answer = self._client.chat.completions.create(model=self._model, messages=messages, **settings)
        return {"question": row["item"], "answer": answer.choices[0].message.content}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    parser.add_argument("--workers", type=int, default=4, help="requests at a time")
    args = parser.parse_args()

    ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False)
    questions = ray.data.from_items(QUESTIONS)
    answers = questions.map(Ask, fn_constructor_args=(args.base_url,), concurrency=args.workers)
    for row in answers.take_all():  # or answers.write_parquet("answers")
        print(row["question"], "->", row["answer"])


if __name__ == "__main__":
    main()
