"""Embeddings and classes: how a model pools hidden states, and its vectors and probabilities as callers get them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from palladio.model.base.config_keys import shown
from palladio.model.files.small_files import read_json
from palladio.model.spec.classifier import ClassActivation
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.outputs.token_output import FinishReason
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


PoolingMethod = Literal["last", "mean", "cls"]

_METHODS: dict[str, PoolingMethod] = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
_FLAGS: dict[str, str] = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclasses.dataclass(frozen=True, slots=True)
class Pooling:
    """Attributes:
    method: of a text's hidden states after the final norm: that of its last token, the mean of all, or that of its
        first token.
    normalizes: embeddings have length 1.
    """

    method: PoolingMethod = "last"
    normalizes: bool = True

    @classmethod
    def of(cls, path: Path, default: PoolingMethod = "last") -> Self:
        """Read the pooling of a model directory: `modules.json` and the `config.json` of its module (`1_Pooling`).

        What they do not say is as SGLang has it: normalized, of the last token.

        Args:
            default: the method where no file says one.

        Raises:
            ConfigError: a file cannot be read, or asks for something else.
        """
        modules = _modules(path, "modules.json")
        folder = "1_Pooling" if modules is None else modules.get("Pooling")
        name = None if folder is None else f"{folder}/config.json"
        content = None if name is None else read_json(path, name)
        method: PoolingMethod = default if name is None or content is None else _method(path / name, content)
        return cls(method, modules is None or "Normalize" in modules)

    @property
    def reads_all(self) -> bool:
        """Whether it needs hidden states that were computed before a text's last step; what was cached has none."""
        return self.method != "last"


def _modules(path: Path, name: str) -> dict[str, str] | None:
    """The folder of each module by its class; None: there is no such file."""
    file, content = path / name, read_json(path, name)
    if content is None:
        return None
    folders: dict[str, str] = {}
    for entry in content if isinstance(content, list) else [content]:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("type", "path")):
            raise ConfigError(f"{file} must be a list of objects with `type` and `path`")
        name = entry["type"].rpartition(".")[2]
        if name not in _MODULES:
            raise ConfigError(f"{file}: type {shown(entry['type'])} is not supported; only {', '.join(_MODULES)} are")
        folders[name] = entry["path"]
    return folders


def _method(file: Path, content: Any) -> PoolingMethod:
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must be a JSON object")
    named = content.get("pooling_mode")
    if named is not None:
        if not isinstance(named, str) or named not in _METHODS:
            raise ConfigError(f"{file}: pooling_mode {shown(named)} is not supported; only {', '.join(_METHODS)} are")
        return _METHODS[named]
    wanted = [key for key, value in content.items() if key.startswith("pooling_mode_") and value is True]
    unknown = [key for key in wanted if key not in _FLAGS]
    if unknown:
        raise ConfigError(f"{file}: {unknown[0][:100]} is not supported; only {', '.join(_FLAGS)} are")
    if len(wanted) != 1:
        raise ConfigError(f"{file}: one of {', '.join(_FLAGS)} must be true, found {', '.join(wanted) or 'none'}")
    return _METHODS[_FLAGS[wanted[0]]]


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """The embeddings that an engine makes.

    Attributes:
        size: numbers of one.
        pooling: of which hidden states, see Pooling.
        normalized: their length is 1.
        classes: they are the logits of these classes; None: they are embeddings.
        is_encoder: the model sees both ways, and knows the texts of a pair by their types.
    """

    size: int
    pooling: PoolingMethod
    normalized: bool
    classes: ClassSpec | None = None
    is_encoder: bool = False


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
    vectors = vectors[:, :dimensions].copy()
    if spec.normalized:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _TINY)
    return vectors  # type: ignore[no-any-return]
