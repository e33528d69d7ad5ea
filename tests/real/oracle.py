"""transformers on a GGUF file, in a process of its own: `python -m tests.real.oracle REQUEST ANSWER`, both JSON.

It reads the same file as Palladio, in float32, and writes what it finds: token ids, log-probabilities, greedy tokens.
It also writes the model as a Hugging Face directory, with the numbers that it read.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request.

    Args:
        request: see `real.Request`.
    """
    path = Path(request["path"])
    tokenizer = read_tokenizer(path, splits_digits=request["splits_digits"])
    found: dict[str, Any] = {"lines": [_ids(tokenizer, line) for line in request["lines"]]}
    if tokenizer.chat_template is not None:
        rendered = tokenizer.apply_chat_template(request["messages"], add_generation_prompt=True, return_dict=True)
        found["chat"] = list(rendered["input_ids"])
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    with torch.inference_mode():
        prompts = [tokenizer(prompt)["input_ids"] for prompt in request["prompts"]]
        found["prompts"] = prompts
        found["greedy"] = [_greedy(model, ids, request["num_tokens"]) for ids in prompts]
        found["logprobs"] = [_logprobs(model, ids) for ids in prompts]
        found["page"] = _logprobs(model, tokenizer(request["page"])["input_ids"])
    write_directory(model, Path(request["plain"]))
    return found


def read_tokenizer(path: Path, *, splits_digits: bool) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a GGUF file.

    Args:
        splits_digits: see `real.Model`.
    """
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if splits_digits:
        # transformers does not know tokenizer.ggml.pre "smollm" and takes GPT-2's. This is what the published
        # tokenizer.json has, and what llama.cpp does.
        published = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        tokenizer.backend_tokenizer.pre_tokenizer = published
    return tokenizer


def write_directory(model: PreTrainedModel, out: Path) -> None:
    """Not save_pretrained, which would write the GGUF file's quantization_config and repack."""
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # the numbers are plain now
    config["architectures"] = [type(model).__name__]
    out.mkdir(parents=True)
    tied = set(model._tied_weights_keys or ())
    state = {name: value.contiguous() for name, value in model.state_dict().items() if name not in tied}
    save_file(state, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _ids(tokenizer: PreTrainedTokenizerBase, line: str) -> list[int]:
    """Tokenize a text. One that begins with BOS gets no second one, as in a server's rendered chats; transformers adds
    it."""
    ids: list[int] = tokenizer(line)["input_ids"]
    bos = tokenizer.bos_token
    return ids[1:] if bos and line.startswith(bos) and ids[:2] == [tokenizer.bos_token_id] * 2 else ids


def _greedy(model: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    """The tokens with the largest logits, past the end of the text."""
    step, cache, found = torch.tensor([ids]), None, []
    for _ in range(count):
        output = model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, step = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
        found.append(int(step))
    return found


def _logprobs(model: PreTrainedModel, ids: list[int]) -> list[float]:
    """Return the log-probability of each token but the first."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    chosen = torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids[1:])[:, None])
    return [float(value) for value in chosen[:, 0]]


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads of its own wait for each other after every product, long ones on a busy machine
    given, out = map(Path, sys.argv[1:])
    out.write_text(json.dumps(answer(json.loads(given.read_text(encoding="utf-8")))), encoding="utf-8")
