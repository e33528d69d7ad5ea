"""Classifier: the head of a checkpoint that classifies or scores texts, as config.json describes it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import ConfigError

ClassActivation = Literal["sigmoid", "softmax", "none"]
"""The function from logits to probabilities: of each by itself, of all together, or none."""

MAX_LABELS = 1 << 16
_PROBLEMS: Mapping[str, ClassActivation] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_FUNCTIONS: Mapping[str, ClassActivation] = {"Sigmoid": "sigmoid", "Softmax": "softmax", "Identity": "none"}
_METHODS = ("no_post_processing", "from_2_way_softmax")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier:
    """The head of a sequence classification or reward model: a logit for each label, from a text's last token.

    Attributes:
        labels: names of the labels.
        activation: turns logits into probabilities.
        has_bias: whether the head has a bias.
        tokens: the rows of the language model's head for these tokens (texts, or ids once the tokenizer is known)
            replace a head of its own: vLLM's classifier_from_token. Empty: it has a head.
        is_difference: two tokens give one logit: the second one's minus the first one's. Its sigmoid is the second
            token's share of both probabilities.
        pad_token_id: trailing ids equal to this one do not count: a text's last token is the last other one, as in
            transformers. None: all count.
    """

    labels: tuple[str, ...]
    activation: ClassActivation
    has_bias: bool = False
    tokens: tuple[str | int, ...] = ()
    is_difference: bool = False
    pad_token_id: int | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the head."""
        return len(self.tokens) or len(self.labels)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of `tokens`. Texts among them must have been resolved."""
        ids = tuple(token for token in self.tokens if isinstance(token, int))
        assert len(ids) == len(self.tokens), "the loader resolves texts first"
        return ids

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read config.json, with the keys of transformers, sentence-transformers and vLLM.

        Raises:
            ConfigError: a key has an unknown value; the message names it.
        """
        tokens, is_difference = _tokens(config)
        labels = _labels(config, None if not tokens else 1 if is_difference else len(tokens))
        pad_token_id = Keys(config).optional_token("pad_token_id")
        return cls(
            labels=labels,
            activation=_activation(config, len(labels)),
            tokens=tokens,
            is_difference=is_difference,
            pad_token_id=pad_token_id,
        )


def _tokens(config: Mapping[str, Any]) -> tuple[tuple[str | int, ...], bool]:
    key = "classifier_from_token"
    tokens, is_reranker = config.get(key), config.get("is_original_qwen3_reranker")
    if tokens is None:
        tokens = ["no", "yes"] if is_reranker is True else []
    if not isinstance(tokens, list) or any(isinstance(t, bool) or not isinstance(t, str | int) for t in tokens):
        raise ConfigError(f"{key} must be a list of tokens, found {shown(tokens)}")
    method = config.get("method", "from_2_way_softmax" if is_reranker is True else _METHODS[0])
    if tokens and method not in _METHODS:
        raise ConfigError(f"method must be one of {', '.join(_METHODS)}, found {shown(method)}")
    is_difference = bool(tokens) and method == "from_2_way_softmax"
    if is_difference and len(tokens) != 2:
        raise ConfigError(f"{key} must be two tokens, the negative one first, found {shown(tokens)}")
    return tuple(tokens), is_difference


def _labels(config: Mapping[str, Any], count: int | None) -> tuple[str, ...]:
    """Read the names of labels.

    Args:
        count: number of labels, if tokens decide it; None: the checkpoint has a head.
    """
    names = config.get("id2label")
    if count is None and isinstance(names, Mapping) and names:
        count = len(names)
    if count is None:
        count = Keys(config).optional_count("num_labels", most=MAX_LABELS, default=2) or 2
    if count > MAX_LABELS:
        raise ConfigError(f"id2label has {count} labels, and at most {MAX_LABELS} are supported")
    if isinstance(names, Mapping) and len(names) == count:
        by_id = {str(key): value for key, value in names.items()}
        if set(by_id) != {str(index) for index in range(count)}:
            raise ConfigError(f"id2label must number the labels from 0 to {count - 1}, found {shown(sorted(by_id))}")
        return tuple(str(by_id[str(index)]) for index in range(count))
    return tuple(f"LABEL_{index}" for index in range(count))


def _activation(config: Mapping[str, Any], num_labels: int) -> ClassActivation:
    """Read the activation; by default a sigmoid for one label, and the softmax for several."""
    own = config.get("sentence_transformers")
    function = own.get("activation_fn") if isinstance(own, Mapping) else None
    function = config.get("sbert_ce_default_activation_function") if function is None else function
    if function is not None:
        return class_activation(function)
    problem = config.get("problem_type")
    if problem is not None:
        if problem not in _PROBLEMS:
            raise ConfigError(f"problem_type must be one of {', '.join(_PROBLEMS)}, found {shown(problem)}")
        if not (problem == "single_label_classification" and num_labels == 1):
            return _PROBLEMS[problem]
    return "sigmoid" if num_labels == 1 else "softmax"


def class_activation(function: object) -> ClassActivation:
    """Return the activation that sentence-transformers names by the path of torch's class.

    Raises:
        ConfigError: it is another one.
    """
    name = str(function).rpartition(".")[2]
    if name not in _FUNCTIONS:
        raise ConfigError(f"activation_fn: {shown(function)} is not supported; only {', '.join(_FUNCTIONS)} are")
    return _FUNCTIONS[name]
