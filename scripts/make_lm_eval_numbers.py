"""transformers' numbers for the documents of client_checks/lm_eval_numbers.json, which check_lm_eval.py compares with.

Run it after a change of the embedded model or of the documents. It needs torch, which `make test` installs.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from palladio.flags.default_model import default_model_path

FILE = Path(__file__).resolve().parent / "client_checks" / "lm_eval_numbers.json"
GENERATED = 8  # tokens


def compute(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """In float32: of each document, the log-likelihood of each answer after the question and whether all of its tokens
    are the likeliest; that of the whole text after the first token that lm-eval puts before it; a greedy continuation.
    """
    folder = default_model_path()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def score(ids: list[int], begin: int) -> tuple[float, bool]:
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)[begin - 1 : -1]
        targets = torch.tensor(ids[begin:])
        total = logprobs.gather(1, targets[:, None]).sum().item()
        return round(total, 5), bool((logprobs.argmax(-1) == targets).all())

    def generate(ids: list[int]) -> str:
        with torch.no_grad():
            whole = model.generate(torch.tensor([ids]), max_new_tokens=GENERATED, do_sample=False)
        text: str = tokenizer.decode(whole[0, len(ids) :], skip_special_tokens=True)
        return text.split("\n\n")[0]

    first = tokenizer.bos_token_id or tokenizer.eos_token_id
    numbers: dict[str, Any] = {"choices": [], "rolling": [], "generated": []}
    for document in documents:
        question, answers = document["question"], document["answers"]
        context = encode(question)
        pairs = [score(encode(f"{question} {answer}"), len(context)) for answer in answers]
        numbers["choices"].append([list(pair) for pair in pairs])
        numbers["rolling"].append(score([first, *encode(f"{question} {answers[0]}.")], 1)[0])
        numbers["generated"].append(generate(context))
    return numbers


def main() -> None:
    documents = json.loads(FILE.read_text(encoding="utf-8"))["documents"]
    FILE.write_text(json.dumps({"documents": documents, **compute(documents)}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
