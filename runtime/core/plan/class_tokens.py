"""Tokens in place of a head that classifies: their ids, from the tokenizer's file."""

import dataclasses
from pathlib import Path

import tokenizers

from palladio.model.config.config import ModelConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer_files import check_tokenizer_file
from palladio.runtime.text.tokenizers.tokenizer_probe import check_divides, panics_as_errors


def with_class_tokens(model: ModelConfig, folder: Path) -> ModelConfig:
    """The model with the token ids that its labels stand for.

    Args:
        folder: folder of the tokenizer.

    Raises:
        ConfigError: one is no token of the vocabulary.
    """
    classifier, key = model.classifier, "classifier_from_token"
    if classifier is None or not classifier.tokens:
        return model
    known: dict[str, int] = {}
    if any(isinstance(token, str) for token in classifier.tokens):
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{key}: {list(classifier.tokens)} need {file}; give token ids instead")
        known = vocabulary(file)
    ids = []
    for token in classifier.tokens:
        token_id = token if isinstance(token, int) else known.get(token, -1)
        if not 0 <= token_id < model.vocab_size:
            raise ConfigError(f"{key}: {token!r} is not a token of this model (ids 0 … {model.vocab_size - 1})")
        ids.append(token_id)
    return dataclasses.replace(model, classifier=dataclasses.replace(classifier, tokens=tuple(ids)))


def vocabulary(file: Path) -> dict[str, int]:
    """The id of each token that a tokenizer.json knows.

    Raises:
        ConfigError: it cannot be read.
    """
    check_tokenizer_file(file.parent, file)
    try:
        with panics_as_errors("its tokenizer is malformed"):
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        check_divides(tokenizer)  # transformers may take another pattern than the file's; grammars do not
        return tokenizer.get_vocab()
    except Exception as error:
        raise ConfigError(f"{file} is not a valid tokenizer: {error}") from error
