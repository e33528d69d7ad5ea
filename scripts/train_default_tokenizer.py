"""Makes palladio/default_tokenizer.json: a byte-level BPE of 4096 ids, trained on this repository's text and on the
docstrings of Python's standard library. Run it only to change the tokenizer: its output is committed, because merges
depend on the text and on the version of `tokenizers`.

    python scripts/train_default_tokenizer.py
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers.pre_tokenizers import ByteLevel

ROOT = Path(__file__).resolve().parent.parent
VOCAB_SIZE = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VISIBLE = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPLIT = (  # Qwen2's: contractions, words, single digits, punctuation, line ends, spaces
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts() -> Iterator[str]:
    for pattern in ("LICENSE", "*.md", "docs/*.md", "palladio/*.py", "runtime/*.py"):
        yield from (path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern)))
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(VISIBLE),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in VISIBLE])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        sys.exit(f"the text gave {tokenizer.get_vocab_size()} ids, not {VOCAB_SIZE}")
    (ROOT / "palladio" / "default_tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")


if __name__ == "__main__":
    main()
