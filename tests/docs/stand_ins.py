"""Tiny checkpoints in place of the models that pages name, and tiny files in place of theirs."""

import json
import re
from pathlib import Path

import trustme
from tokenizers import Tokenizer

from tests.model.format_cases import checkpoint
from tests.model.gguf_files import as_gguf
from tests.runtime.core.test_classifier_engine import classifier
from tests.runtime.text.tokenizers.test_gguf_tokenizer import metadata
from tests.tiny_model import make_checkpoint
from tests.tiny_tokenizer import build_tiny_tokenizer

# What a page calls a model → the family that stands in for it. The first that is found in the name counts.
FAMILIES = {
    "30b-a3b": "qwen3_moe",
    "mixtral": "mixtral",
    "deepseek": "deepseek_v3",
    "gpt-oss": "gpt_oss",
    "phi-4-mini": "phi4_mini",
    "llama": "llama3",
    "qwen2.5": "qwen2",
    "": "qwen3",
}
FOLDERS = ("DIR", "/checkpoints", "/programs", "/tmp/tables")
NAMED_FIRST = ("serve", "run", "plan", "compile", "convert")  # commands that take a model without a flag
DEVICES = 16


def model(name: str, folder: Path) -> Path:
    """A checkpoint with a tokenizer for a model's name on a page; the same one for the same name."""
    path = folder / "models" / slug(name)
    if path.exists():
        return path
    if "skywork" in name.lower():
        return build_tiny_tokenizer(classifier(path), vocab_size=384)
    if "awq" in name:
        return build_tiny_tokenizer(checkpoint(path, "awq"), vocab_size=384)
    if name.endswith(".gguf"):
        sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
        make_checkpoint(path, "qwen3", num_hidden_layers=1, head_dim=64, **sizes)
        described = metadata(build_tiny_tokenizer(path), model="gpt2", pre="gpt-2", eos_token_id=2)
        del described["general.architecture"]
        return as_gguf(path, "qwen3", lambda name: "Q6_K" if "down" in name else "Q4_K", described)
    family = next(family for part, family in FAMILIES.items() if part in name.lower())
    build_tiny_tokenizer(make_checkpoint(path, family, max_position_embeddings=8192), vocab_size=382)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_tokens(["yes", "no"])  # what rerankers answer
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name.removeprefix("/").lower())


def files(folder: Path) -> None:
    """Write the files that commands of the pages read, besides models, into a folder."""
    (folder / "keys.txt").write_text("anna:key-of-anna\n")
    for name in ("FILE", "text.txt"):
        (folder / name).write_text("A text of some words, again and again. " * 30)
    body = {"prompt": "Hello", "max_tokens": 3}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (folder / "requests.jsonl").write_text(json.dumps(line) + "\n")
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    for index, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(folder / "cert.pem", append=index > 0)
    config = model("/models/llama-3.1-8b", folder) / "config.json"
    (folder / "config.json").write_text(json.dumps(json.loads(config.read_text())))


def run_here(words: list[str], folder: Path) -> list[str]:
    """A command's words with stand-ins for its models and folders; a server listens on 127.0.0.1."""
    command, *rest = words[: words.index(">")] if ">" in words else words
    taken: list[str] = []
    for index, word in enumerate(rest):
        before = rest[index - 1] if index else ""
        is_model = before in ("--model-path", "--model") or (index == 0 and command in NAMED_FIRST)
        if command == "convert" and index == 1:  # what it writes, and a later command may read
            taken.append(str(folder / "models" / slug(word)))
        elif is_model and not word.startswith("-"):
            taken.append(str(folder / word if word == "config.json" else model(word, folder)))
        elif word in FOLDERS:
            made = folder / "out" / slug(word)
            made.mkdir(parents=True, exist_ok=True)
            taken.append(str(made))
        else:
            taken.append("127.0.0.1" if before == "--host" else word)
    return [command, *taken]
