"""Rebuilds tests/runtime/text/tokenizers/stored_tokenizers.json with tiktoken and sentencepiece, as its oracles:

    python tests/runtime/text/tokenizers/make_stored_tokenizers.py

Small vocabularies in the forms of checkpoints without tokenizer.json, and the ids that those libraries give for texts.
"""

import base64
import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

CASES = Path(__file__).parent / "stored_tokenizers.json"
WORDS = r"[\p{%s}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"  # as Kimi's own tokenizer cuts text, written out otherwise
UPPER, LOWER = WORDS % "Lu", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}",
        *(r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"),
    ]
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "The capital of France is Paris. They're building what we've planned, I'm sure; DON'T you?",
    "def hello(name: str) -> None:\n    for number in range(12345):\n        print(f'{name}: {number}')\r\n\r\n",
    "机器学习是人工智能的一个分支。今天天气很好，我们去公园散步吧！机器学习",
    "日本語のテキスト、한국어 텍스트, Ελληνικά, Русский текст, العربية, naïve café ÀÉ",
    "🙂🎉👨‍👩‍👧‍👦🇨🇭 emoji 🙂🎉 and  two   spaces\t\ttabs \n \n ends ",
]
MORE = [
    "",
    " ",
    "\n",
    " a",
    "  a  ",
    "１２３4567",
    "ǅungla ªº 々〇㐀",
    "<|im_end|>",
    "x" * 70,
    "zyxwvu zyxwvu",
    "\u3000\u00a0\x85",
    "It'S 'll",
]


def texts(specials: list[str]) -> list[str]:
    """Pieces of the corpus and of Unicode, with special tokens between."""
    rng = random.Random(0)
    found = [*CORPUS, *MORE]
    for _ in range(30):
        parts = []
        for _ in range(rng.randint(1, 8)):
            line = rng.choice(CORPUS)
            start = rng.randrange(len(line))
            signs = "".join(chr(rng.choice((rng.randint(32, 0x24FF), rng.randint(0x3000, 0xD7FF)))) for _ in range(3))
            parts.append(rng.choice([line[start : start + 25], line[start : start + 4], signs, *specials[:2]]))
        found.append("".join(parts))
    return found


def ranks(pattern: str) -> list[bytes]:
    """Tokens of a byte-level vocabulary, bytes in another order than their own."""
    trained = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    trained.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=520, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(CORPUS * 2, trainer)
    vocabulary = json.loads(trained.to_str())["model"]["vocab"]
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    byte_of = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return [bytes(map(byte_of.__getitem__, token)) for token in sorted(vocabulary, key=vocabulary.__getitem__)]


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def kimi() -> dict[str, Any]:
    found = [*ranks(KIMI), b"zyxwvu"]  # which no merges lead to
    size = len(found)
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 11: "<|tool_calls_section_begin|>"}
    special = {names.get(i, f"<|reserved_token_{size + i}|>"): size + i for i in range(256)}
    oracle = tiktoken.Encoding(
        name="kimi",
        pat_str=KIMI,
        mergeable_ranks={token: rank for rank, token in enumerate(found)},
        special_tokens=special,
    )
    added = {str(size + i): {"content": name, "special": i != 11} for i, name in names.items()}
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": added,
        "bos_token": "[BOS]",
        "eos_token": {"content": "[EOS]"},
        "chat_template": "{{ messages[0].content }}",
    }
    lines = "".join(f"{coded(token)} {rank}\n" for rank, token in enumerate(found))
    samples = texts(["<|im_user|>", "<|tool_calls_section_begin|>", f"<|reserved_token_{size + 200}|>"])
    ids = [oracle.encode(text, allowed_special="all") for text in samples]
    return {"files": {"tiktoken.model": coded(lines.encode())}, "config": config, "texts": samples, "ids": ids}


def tekken() -> dict[str, Any]:
    found = sorted(ranks(TEKKEN), key=lambda token: token if len(token) == 1 else b"\xff\xff")  # first bytes, in order
    oracle = tiktoken.Encoding(
        name="tekken",
        pat_str=TEKKEN,
        mergeable_ranks={token: rank for rank, token in enumerate(found[:-20])},
        special_tokens={},
    )
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
    content = {
        "config": {
            "pattern": TEKKEN,
            "num_vocab_tokens": len(found),
            "default_vocab_size": 30 + len(found) - 20,
            "default_num_special_tokens": 30,
            "version": "v7",
        },
        "vocab": [{"rank": i, "token_bytes": coded(token), "token_str": None} for i, token in enumerate(found)],
        "special_tokens": [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)],
    }
    samples = texts([])
    ids = [[1, *(30 + number for number in oracle.encode(text))] for text in samples]
    return {"files": {"tekken.json": coded(json.dumps(content).encode())}, "config": {}, "texts": samples, "ids": ids}


def spm(kind: str, **settings: Any) -> dict[str, Any]:
    written = io.BytesIO()
    usual = {"model_type": kind, "vocab_size": 420, "byte_fallback": True, "character_coverage": 0.98}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS * 3 for line in text.splitlines()]),
        model_writer=written,
        minloglevel=2,
        hard_vocab_limit=False,
        **usual | settings,
    )
    oracle = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    samples = [text for text in texts([]) if "\u2581" not in text]
    files = {"tokenizer.model": coded(written.getvalue())}
    return {
        "files": files,
        "config": {},
        "texts": samples,
        "ids": [[1, *oracle.encode(text)] for text in samples],
        "decoded": [oracle.decode(oracle.encode(text)) for text in samples],
    }


def main() -> None:
    llama = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    cases = {
        "kimi": kimi(),
        "tekken": tekken(),
        "llama": spm("bpe", split_digits=True, allow_whitespace_only_pieces=True, **llama),
        "no prefix": spm("bpe", add_dummy_prefix=False, normalization_rule_name="identity"),
        "unigram": spm("unigram", **llama),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(case, ensure_ascii=False)}" for name, case in cases.items()]
    CASES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
