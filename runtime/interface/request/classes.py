"""Classes as callers get them: which there are, and the probabilities that their logits stand for."""

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from palladio.model.spec.classifier import ClassActivation

Values = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class ClassSpec:
    """The classes that an engine tells apart, see model/spec/classifier.py.

    Attributes:
        labels: of each class.
        activation: what makes probabilities of logits: each by itself, all together, or nothing.
        pad_token_id: does not count at the end of a prompt; None: all tokens count.
        judges: there is one class, and the model says by "yes" or "no" how likely it is, as a reranker does.
        joins: classes are tokens of a causal model's head, so a query and a document are one text.
    """

    labels: list[str]
    activation: ClassActivation
    pad_token_id: int | None = None
    judges: bool = False
    joins: bool = False

    @property
    def pair_format(self) -> Literal["paired", "joined", "judged"]:
        """Of prompts of a query and a document, see runtime/text/tokenizers/pair_prompts.py."""
        return "judged" if self.judges else "joined" if self.joins else "paired"

    def without_padding(self, prompt_ids: list[int]) -> list[int]:
        """A prompt up to its last token that counts; of one that has none, the first token, as in transformers."""
        count = len(prompt_ids)
        while count > 1 and prompt_ids[count - 1] == self.pad_token_id:
            count -= 1
        return prompt_ids if count == len(prompt_ids) else prompt_ids[:count]

    def values(self, logits: Values, use_activation: bool = True) -> Values:
        """Of logits f32[N, L] the probabilities f32[N, L], or, without activation, themselves."""
        found: Any = logits
        if use_activation and self.activation == "sigmoid":
            found = sigmoid(logits)
        elif use_activation and self.activation == "softmax":
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            found = weights / weights.sum(axis=1, keepdims=True)
        return found  # type: ignore[no-any-return]


def sigmoid(logits: Values) -> Values:
    """Without overflow."""
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)
