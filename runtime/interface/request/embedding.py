"""Embeddings and classes: what an engine makes of texts, and its vectors and probabilities as callers get them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from palladio.model.spec.classifier import ClassActivation
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.pooling_params import VectorKind
from palladio.runtime.interface.request.sampling_params import SamplingParams

Values = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class ClassSpec:
    """The classes that an engine distinguishes, see model/spec/classifier.py.

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
        """The format of a query and a document as a prompt, see runtime/text/tokenizers/pair_prompts.py."""
        return "judged" if self.judges else "joined" if self.joins else "paired"

    def without_padding(self, prompt_ids: list[int]) -> list[int]:
        """A prompt up to its last token that counts; of one that has none, the first token, as in transformers."""
        count = len(prompt_ids)
        while count > 1 and prompt_ids[count - 1] == self.pad_token_id:
            count -= 1
        return prompt_ids if count == len(prompt_ids) else prompt_ids[:count]

    def values(self, logits: Values, use_activation: bool = True) -> Values:
        """Convert logits f32[N, L] to probabilities f32[N, L]; without activation return them unchanged."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """The embeddings that an engine makes.

    Attributes:
        size: numbers of one.
        pooling: of which hidden states: the methods of a PoolingSpec, "+" between several.
        normalized: their length is 1.
        classes: they are the logits of these classes; None: they are embeddings.
        prompts: texts that the model wants before a text, by name. default_prompt: the name of the one that stands
            where a request names none.
        lowers_case: texts are made lower case.
        includes_prompt: false: tokens of a prompt do not count in pooling.
        kinds: what the engine makes, the usual kind first.
        token_size: numbers of a token's vector; 0: there are none.
        is_encoder: the model sees both ways, and knows the texts of a pair by their types.
    """

    size: int
    pooling: str
    normalized: bool
    classes: ClassSpec | None = None
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str | None = None
    lowers_case: bool = False
    includes_prompt: bool = True
    kinds: tuple[VectorKind, ...] = ("dense",)
    token_size: int = 0
    is_encoder: bool = False

    def prepared(self, text: str) -> str:
        """A text, with its prompt, as the model's tokenizer gets it."""
        return text.lower() if self.lowers_case else text

    def prompt(self, name: str | None) -> str:
        """The text that stands before texts.

        Args:
            name: of one of the model's prompts. Usual names ("query", "document", "classification", "clustering") also
                find those of usual other names, and none where the model has none for them. None: the default one.

        Raises:
            InvalidRequestError: the model has no such prompt.
        """
        if name is None:
            return "" if self.default_prompt is None else self.prompts[self.default_prompt]
        if name in self.prompts:
            return self.prompts[name]
        kind = next((others for others in _SAME_PROMPTS if name in others), None)
        if kind is None:
            names = ", ".join(self.prompts) or "none"
            message = "{param} {name!r} is not one of this model's prompts: {names}"
            raise InvalidRequestError.of(message, param="input_type", name=name[:100], names=names)
        return next((self.prompts[other] for other in kind if other in self.prompts), "")


_SAME_PROMPTS = (  # names that models have for the same kind of text
    ("query", "search_query", "retrieval.query", "web_search_query", "s2p_query"),
    ("document", "search_document", "passage", "retrieval.passage", "corpus"),
    ("classification",),
    ("clustering", "separation"),
)

EMBEDDING_PARAMS = SamplingParams(max_tokens=0, temperature=0.0)  # of every request to an engine that makes embeddings
_TINY = 1e-12  # as in the pooler

Vectors = npt.NDArray[np.float32]


def check_dimensions(dimensions: int | None, spec: EmbeddingSpec) -> None:
    """Check the size of embeddings that a client asks for.

    Raises:
        InvalidRequestError: it is not in 1 … the model's size, or the model makes classes, not embeddings.
    """
    if dimensions is None:
        return
    if spec.classes is not None:
        raise InvalidRequestError(
            "dimensions is a field for embeddings; this model classifies texts", param="dimensions"
        )
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= spec.size:
        raise InvalidRequestError(
            f"dimensions must be in 1 … {spec.size}, which is the size of this model's embeddings, got {dimensions!r}",
            param="dimensions",
        )


def embedded(output: RequestOutput) -> RequestOutput:
    """The output, which has an embedding.

    Raises:
        PalladioError: it has none, and why.
    """
    if output.embedding is None:
        finish = output.finish
        raise (finish or FinishReason("abort")).error("the request was aborted")
    return output


def read_vectors(embeddings: Sequence[bytes], dimensions: int | None, spec: EmbeddingSpec) -> Vectors:
    """The vectors f32[N, D] of N embeddings.

    Args:
        embeddings: see TokenOutput.
        dimensions: how many of a vector's first numbers are kept (Matryoshka); None: all. What had length 1 gets it
            again.
    """
    vectors: Any = np.frombuffer(b"".join(embeddings), "<f4").reshape(len(embeddings), spec.size)
    if dimensions is None or dimensions == spec.size:
        return vectors  # type: ignore[no-any-return]
    vectors = vectors[:, :dimensions]
    return normalized(vectors) if spec.normalized else np.ascontiguousarray(vectors)


def normalized(vectors: Vectors) -> Vectors:
    """Vectors f32[N, D] of length 1."""
    found: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY)
    return found


def read_token_vectors(stored: bytes, spec: EmbeddingSpec) -> Vectors:
    """The vectors f32[T, D'] of a text's T tokens.

    Args:
        stored: see TokenOutput.
    """
    return np.frombuffer(stored, "<f4").reshape(-1, max(1, spec.token_size))


def largest_similarity(query: Vectors, document: Vectors) -> float:
    """MaxSim, as ColBERT has it: for each token of the query the largest product with a token of the document, in sum.

    Args:
        query: f32[Tq, D]. document: f32[Td, D].
    """
    if not len(query) or not len(document):
        return 0.0
    return float((query @ document.T).max(axis=1).sum())


def cosine(one: Vectors, other: Vectors) -> float:
    """The cosine of two vectors f32[D]; 0 if one has no length."""
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(one @ other) / max(lengths, _TINY)
