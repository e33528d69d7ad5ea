"""Makes tokenizer.json: a byte-level BPE of 2048 ids over the corpus.

Capitalized words and digits never take the space before them, and words never take a mark: so a name is the same tokens
in a sentence, after a quotation mark and at the beginning of a line, and copying one is copying tokens.
"""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers.pre_tokenizers import ByteLevel

from training.corpus import training_sample
from training.network import SHAPE

NUM_SAMPLES = 40_000
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISIBLE = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPLIT = r"'(?:s|t|re|ve|m|ll|d)\b| ?\p{Ll}+|\p{Lu}+\p{Ll}*|\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def train(seed: int) -> Tokenizer:
    """The tokenizer of the corpus with this seed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=int(SHAPE["vocab_size"]) - len(SPECIAL) - len(VISIBLE),
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in VISIBLE])
    if tokenizer.get_vocab_size() != SHAPE["vocab_size"]:
        raise ValueError(f"the corpus gives {tokenizer.get_vocab_size()} ids, not {SHAPE['vocab_size']}")
    return tokenizer


def load_or_train(path: Path, seed: int) -> Tokenizer:
    """Read the tokenizer at `path`; train it if it does not exist."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(train(seed).to_str(), encoding="utf-8")
    return Tokenizer.from_file(str(path))


def _texts(seed: int) -> Iterator[str]:
    for number in range(NUM_SAMPLES):
        text = "".join(piece for piece, _ in training_sample(seed, number))
        for token in (*SPECIAL, *VISIBLE):
            text = text.replace(token, "\n")
        yield text
