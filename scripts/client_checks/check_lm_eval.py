"""lm-eval through its API models: log-likelihoods by echo, whole and rolling, and generation, of tasks made here."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.api.registry
import lm_eval.tasks
import requests
import yaml
from checks import KEY, MODEL, MODEL_DIR, URL, equal, raises, run_checks, true

FOLDER = Path(tempfile.mkdtemp(prefix="palladio-lm-eval-"))
# Of transformers, in float32, for the embedded model: scripts/make_lm_eval_numbers.py makes them.
NUMBERS = json.loads(Path(__file__).with_name("lm_eval_numbers.json").read_text(encoding="utf-8"))
DOCUMENTS = NUMBERS["documents"]
CLOSE = 5e-4  # of a sum of log-likelihoods
COMMON = {
    "dataset_path": "json",
    "test_split": "test",
    "dataset_kwargs": {"data_files": {"test": f"{FOLDER}/data.json"}},
}
TASKS = {
    "tiny_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{answers}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
    "tiny_rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}} {{answers[0]}}.",
        "metric_list": [{"metric": "word_perplexity"}],
    },
    "tiny_generation": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answers[0]}}",
        "generation_kwargs": {"until": ["\n\n"], "do_sample": False, "temperature": 0.0, "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
}


def _evaluate(model: str, route: str, tasks: list[str], **arguments: Any) -> dict[str, Any]:
    model_args = {
        "model": MODEL,
        "base_url": f"{URL}{route}",
        "max_retries": 1,
        "num_concurrent": 2,
        "tokenizer": MODEL_DIR,
    }
    manager = lm_eval.tasks.TaskManager(include_path=str(FOLDER), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=model, model_args=model_args, tasks=tasks, task_manager=manager, bootstrap_iters=0, **arguments
    )
    return {"results": results["results"], "samples": results["samples"]}


def _close(found: object, wanted: float) -> None:
    true(abs(float(str(found)) - wanted) < CLOSE, (found, wanted))


def check_log_likelihood() -> None:
    """Check log-likelihoods of token ids, in batches, with echo; the likeliest continuation must be found greedy."""
    found = _evaluate("local-completions", "/v1/completions", ["tiny_choice"], batch_size=3)
    true(0 <= found["results"]["tiny_choice"]["acc,none"] <= 1)
    for sample in found["samples"]["tiny_choice"]:
        for response, (total, is_greedy) in zip(sample["resps"], NUMBERS["choices"][sample["doc_id"]], strict=True):
            _close(response[0][0], total)
            equal(str(response[0][1]), str(is_greedy))
    best = [max(range(len(row)), key=lambda i, row=row: row[i][0]) for row in NUMBERS["choices"]]
    equal(found["results"]["tiny_choice"]["acc,none"], best.count(0) / len(best))
    body = {"model": MODEL, "prompt": list(range(100, 120)), "max_tokens": 5, "temperature": 0, "logprobs": 1}
    headers = {"Authorization": f"Bearer {KEY}"}
    body |= {"ignore_eos": True, "return_token_ids": True}
    (choice,) = requests.post(f"{URL}/v1/completions", json=body, headers=headers, timeout=60).json()["choices"]
    client = lm_eval.api.registry.get_model("local-completions")(
        model=MODEL, base_url=f"{URL}/v1/completions", tokenizer=MODEL_DIR
    )
    requested = [(("", ""), body["prompt"], choice["token_ids"]), (("", ""), body["prompt"], [7, 8, 9])]
    (total, is_greedy), (_, other_is_greedy) = client._loglikelihood_tokens(requested, disable_tqdm=True)
    equal((is_greedy, other_is_greedy), (True, False))
    true(abs(total - sum(choice["logprobs"]["token_logprobs"])) < 0.05, (total, choice["logprobs"]))


def check_rolling_log_likelihood() -> None:
    found = _evaluate("local-completions", "/v1/completions", ["tiny_rolling"], batch_size=2)
    for sample in found["samples"]["tiny_rolling"]:
        _close(sample["resps"][0][0], NUMBERS["rolling"][sample["doc_id"]])
    words = sum(len(f"{one['question']} {one['answers'][0]}.".split()) for one in DOCUMENTS)
    perplexity = math.exp(-sum(NUMBERS["rolling"]) / words)
    true(abs(found["results"]["tiny_rolling"]["word_perplexity,none"] / perplexity - 1) < CLOSE)


def check_generation() -> None:
    found = _evaluate("local-completions", "/v1/completions", ["tiny_generation"], batch_size=2)
    for sample in found["samples"]["tiny_generation"]:
        equal(sample["resps"][0][0], NUMBERS["generated"][sample["doc_id"]])


def check_chat() -> None:
    found = _evaluate("local-chat-completions", "/v1/chat/completions", ["tiny_generation"], apply_chat_template=True)
    true(all(sample["resps"][0][0] for sample in found["samples"]["tiny_generation"]))


def check_tokens_as_text() -> None:
    """Texts instead of token ids."""
    arguments = {"model": MODEL, "base_url": f"{URL}/v1/completions", "tokenizer": MODEL_DIR}
    client = lm_eval.api.registry.get_model("local-completions")(**arguments, tokenized_requests=False)
    (answer,) = client.model_call(messages=["Hello"], generate=True, gen_kwargs={"max_tokens": 3})["choices"]
    true(answer["text"])


def check_errors() -> None:
    client = lm_eval.api.registry.get_model("local-completions")(
        model="another", base_url=f"{URL}/v1/completions", tokenizer=MODEL_DIR, max_retries=1
    )
    with raises(requests.HTTPError, "404"):
        client.model_call(messages=["Hello"], generate=True, gen_kwargs={"max_tokens": 3})


if __name__ == "__main__":
    (FOLDER / "data.json").write_text("\n".join(json.dumps(one) for one in DOCUMENTS), encoding="utf-8")
    for name, task in TASKS.items():
        (FOLDER / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **COMMON, **task}), encoding="utf-8")
    run_checks()
