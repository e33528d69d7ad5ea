"""Tiny tokenizers for tests, trained in milliseconds: no download.

`build_tiny_tokenizer(directory)` writes a byte-level BPE tokenizer (ChatML template, EOS `<|im_end|>`);
`build_tiny_sentencepiece(directory)` writes a Llama-2-like one (byte fallback, BOS, leading space).
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CHATML_TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\nTools: ' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{- raise_exception('unknown role ' + message.role) }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
CORPUS = [
    "The capital of France is Paris. The capital of Germany is Berlin.",
    "Hello, my name is Palladio and I build houses and villas.",
    "List three countries and their capitals: one, two, three, four, five.",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    "def hello(name):\n    return 'Hello, ' + name + '!'\n",
    "The quick brown fox jumps over the lazy dog, again and again.",
]
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
PLAIN_ADDED_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # added but shown, as in Qwen3


HARMONY_TOKENS = tuple(f"<|{name}|>" for name in ("start", "channel", "message", "constrain", "end", "call", "return"))


def build_tiny_tokenizer(
    directory: Path, *, vocab_size: int = 384, add_bos: bool = False, is_harmony: bool = False
) -> Path:
    """Writes tokenizer.json and tokenizer_config.json into the directory; at most `vocab_size` tokens in all.

    Args:
        is_harmony: with gpt-oss's special tokens, of which one ends a sequence, and without a chat template.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(PLAIN_ADDED_TOKENS) - (len(HARMONY_TOKENS) if is_harmony else 0),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_ADDED_TOKENS])
    if is_harmony:
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in HARMONY_TOKENS])
    if add_bos:
        bos = SPECIAL_TOKENS[0]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0] if add_bos else None,
        "eos_token": "<|return|>" if is_harmony else "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>"],
        "clean_up_tokenization_spaces": False,
        "chat_template": None if is_harmony else CHATML_TEMPLATE,
        "model_max_length": 2048,
    }
    return _write(directory, tokenizer, config)


def build_tiny_sentencepiece(directory: Path, *, vocab_size: int = 384) -> Path:
    """A Llama-2-like tokenizer: `▁` for spaces, byte fallback, BOS added by the post-processor, no chat template."""
    specials = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # no token spans two words
    trained.train_from_iterator(
        [" " + text for text in CORPUS],
        trainers.BpeTrainer(vocab_size=vocab_size - 256, special_tokens=specials, show_progress=False),
    )
    model = json.loads(trained.to_str())["model"]
    vocab = {token: index for index, token in enumerate(specials + byte_tokens)}
    for token in sorted(model["vocab"], key=model["vocab"].__getitem__):
        vocab.setdefault(token, len(vocab))
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
    }
    return _write(directory, tokenizer, config)


def _write(directory: Path, tokenizer: Tokenizer, config: dict[str, object]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return directory
