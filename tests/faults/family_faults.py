"""Faults of what families bring beside their weights: tokenizers, templates, parsers."""

from tests.faults.fault import Fault

_STORED = ("tests/runtime/text/test_stored_tokenizers.py",)

FAMILY_FAULTS: tuple[Fault, ...] = (
    Fault(
        "Chinese is cut as other letters are",
        "runtime/text/stored_tokenizers.py",
        'r"[\\p{Han}]+",',
        'r"[\\p{Han}]{1}",',
        _STORED,
    ),
    Fault(
        "a piece that is a token is merged together all the same",
        "runtime/text/stored_tokenizers.py",
        "Split(pattern, whole_first=True)",
        "Split(pattern)",
        _STORED,
    ),
    Fault(
        "only one way to put a token together is known",
        "runtime/text/bpe_tokenizers.py",
        "            if left is not None and right is not None:",
        "            if left is not None and right is not None and place == len(token) - 1:",
        _STORED,
    ),
    Fault(
        "a piece keeps its name where the configuration has another",
        "runtime/text/sentencepiece_model.py",
        "[names.get(number, piece) for",
        "[piece for",
        _STORED,
    ),
)
