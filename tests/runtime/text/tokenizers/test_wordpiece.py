"""WordPiece of folders with vocab.txt alone, against transformers, and the types of a pair's tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers import Tokenizer as HfTokenizer
from transformers import BertTokenizer, MPNetTokenizer

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

WORDS = ["the", "cap", "##ital", "of", "france", "Paris", "is", "##s", "an", "e", "été", "ete", *"!?,中a"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
MPNET = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, "[UNK]", "<mask>"]
TEXTS = ["The capital of France is Paris!", "été, 中 a", "", "a" * 120, "[SEP] the [MASK]", "caps\tof\n", "\u200bEte"]


def folder_of(folder: Path, vocabulary: list[str], config: dict[str, Any] | None) -> Path:
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (None, {}),
        ({"tokenizer_class": "BertTokenizer", "do_lower_case": False}, {"do_lower_case": False}),
        ({"tokenizer_class": "DistilBertTokenizer", "strip_accents": False}, {"strip_accents": False}),
        ({"tokenizer_class": "BertTokenizerFast", "tokenize_chinese_chars": False}, {"tokenize_chinese_chars": False}),
    ],
)
def test_as_transformers_reads_it(tmp_path: Path, config: dict[str, Any] | None, options: dict[str, Any]) -> None:
    ours = Tokenizer.load(folder_of(tmp_path, BERT, config))
    theirs = BertTokenizer(vocab={word: number for number, word in enumerate(BERT)}, **options)
    for text in TEXTS:
        for special in (True, False):
            assert ours.encode(text, special) == theirs.encode(text, add_special_tokens=special), text
    pair = theirs("the capital", "of france?")
    found = ours.encode_pair("the capital", "of france?")
    assert (found.ids, list(found.token_types)) == (pair["input_ids"], pair["token_type_ids"])
    assert ours.decode(found.ids) == theirs.decode(found.ids, skip_special_tokens=True)


def test_mpnet(tmp_path: Path) -> None:
    """Two separators between the texts of a pair, whose tokens are of one type."""
    ours = Tokenizer.load(folder_of(tmp_path, MPNET, {"tokenizer_class": "MPNetTokenizer"}))
    theirs = MPNetTokenizer(vocab={word: number for number, word in enumerate(MPNET)})
    for text in TEXTS[:4]:
        assert ours.encode(text) == theirs.encode(text), text
    found = ours.encode_pair("the capital", "of france")
    assert (found.ids, found.token_types) == (theirs.encode("the capital", "of france"), b"")


def test_a_vocabulary_without_its_special_tokens(tmp_path: Path) -> None:
    without = [word for word in BERT if word != "[SEP]"]
    with pytest.raises(ConfigError, match=r"\[SEP\]"):
        Tokenizer.load(folder_of(tmp_path, without, {"tokenizer_class": "BertTokenizer"}))


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bytes"])
def test_types_of_a_pair_in_each_form_of_tokenizer_json(tmp_path: Path, kind: str) -> None:
    """As its post-processor has them; a cut pair keeps them beside its tokens."""
    special = ["<s>", "</s>", "<unk>"]
    if kind == "wordpiece":
        vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
        theirs = HfTokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
        theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind == "unigram":
        pieces = [*((token, 0.0) for token in special), *((f"▁{word}", -1.0) for word in WORDS)]
        theirs = HfTokenizer(models.Unigram(pieces, unk_id=2))
        theirs.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        theirs = HfTokenizer(models.BPE({word: i for i, word in enumerate([*special, *alphabet])}, []))
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    theirs.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    theirs.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    ours = Tokenizer.load(tmp_path)
    expected = theirs.encode("the cap", "of france a")
    found = ours.encode_pair("the cap", "of france a")
    assert (found.ids, list(found.token_types)) == (expected.ids, expected.type_ids)
    assert set(found.token_types) == {0, 1}
    cut = ours.encode_pair("the cap", "of france a", True, len(found.ids) - 1)
    assert list(cut.token_types) == expected.type_ids[:-1]
    plain = theirs.encode("the cap", "a", add_special_tokens=False)
    assert list(ours.encode_pair("the cap", "a", False).token_types) == plain.type_ids
