"""POST /embed, /embed_all, /embed_sparse and /predict, as Text Embeddings Inference has them: the requests."""

from typing import Annotated, Literal

from pydantic import PlainValidator, WithJsonSchema

from palladio.http.wire.protocol import PromptFields
from palladio.http.wire.protocol_completions import PromptField


class TextFields(PromptFields):
    """Fields of all of these routes."""

    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None


class EmbedRequest(TextFields):
    """Vectors, of texts or of their tokens."""

    inputs: PromptField
    prompt_name: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None


class SparseRequest(TextFields):
    """Sparse vectors, or vectors of tokens."""

    inputs: PromptField
    prompt_name: str | None = None


def _check_inputs(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) and all(isinstance(text, str) for text in item) for item in value):
            return value
    raise ValueError("must be a string, a pair of strings, or a list of lists of one or two strings")


_TEXTS = {"type": "array", "items": {"type": "string"}}
PredictInputs = Annotated[
    str | list[str] | list[list[str]],
    PlainValidator(_check_inputs),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, {"type": "array", "items": _TEXTS}]}),
]


class PredictRequest(TextFields):
    """Classes of texts, or of pairs of texts."""

    inputs: PredictInputs
    raw_scores: bool | None = None
