"""What a prompt brings to an engine that makes embeddings, beside its tokens."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.errors import InvalidRequestError

VectorKind = Literal["dense", "sparse", "tokens"]
"""What a model makes of a text: one vector, weights of tokens of the vocabulary, or a vector for each of its tokens."""

MAX_TYPE = 255  # a byte each


@dataclasses.dataclass(frozen=True, slots=True)
class PoolingParams:
    """How a prompt is pooled.

    Attributes:
        token_types: a byte for each token, the number of the text of a pair that it belongs to; empty: all are 0.
        num_skipped: tokens at its beginning that do not count in pooling.
        kinds: what is made of it.
    """

    token_types: bytes = b""
    num_skipped: int = 0
    kinds: tuple[VectorKind, ...] = ("dense",)

    def of_prompt(self, num_tokens: int) -> "PoolingParams":
        """The same for a prompt of which the first tokens are left.

        Raises:
            InvalidRequestError: it has more tokens than there are types.
        """
        if self.token_types and len(self.token_types) < num_tokens:
            message = f"the prompt has {num_tokens} tokens, and types of {len(self.token_types)}"
            raise InvalidRequestError(message, param="prompt")
        if len(self.token_types) <= num_tokens:
            return self
        return dataclasses.replace(self, token_types=self.token_types[:num_tokens])


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedText:
    """A text, or a pair of texts, as token ids.

    Attributes:
        token_types, num_skipped: see PoolingParams.
    """

    ids: list[int]
    token_types: bytes = b""
    num_skipped: int = 0

    def pooling(self, kinds: tuple[VectorKind, ...] = ("dense",)) -> PoolingParams:
        """The parameters of a request for these tokens."""
        return PoolingParams(self.token_types, self.num_skipped, kinds)


def types_of(type_ids: list[int]) -> bytes:
    """Token types as a tokenizer gives them, a byte each; empty where all are 0."""
    return bytes(min(one, MAX_TYPE) for one in type_ids) if any(type_ids) else b""
