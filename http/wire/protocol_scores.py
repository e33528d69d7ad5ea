"""/v1/score, /v1/rerank and /v1/classify: the requests."""

from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from palladio.http.wire.protocol import PromptFields, WireModel
from palladio.http.wire.protocol_completions import PromptField, is_token_ids
from palladio.http.wire.protocol_generate import TokenIds

Texts = str | Annotated[list[str], Field(fail_fast=True)]

_IDS = {"type": "array", "items": {"type": "integer"}}


def _check_query(value: object) -> object:
    if isinstance(value, str) or is_token_ids(value):
        return value
    raise ValueError("must be a string or a list of token ids")


def _check_items(value: object) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and (all(isinstance(item, str) for item in value) or all(map(is_token_ids, value))):
        return value
    raise ValueError("must be a string, a list of strings or a list of lists of token ids")


Query = Annotated[str | list[int], PlainValidator(_check_query), WithJsonSchema({"anyOf": [{"type": "string"}, _IDS]})]
Items = Annotated[
    str | list[str] | list[list[int]],
    PlainValidator(_check_items),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": _IDS},
            ]
        }
    ),
]


class ClassFields(PromptFields):
    """How a model's logits become scores."""

    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None


class ScoreRequest(ClassFields):
    """Scores of pairs of texts, with any of vLLM's names; with `label_token_ids`, SGLang's scores of tokens."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    query: Query | None = None
    items: Items | None = None
    label_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    apply_softmax: bool | None = None
    item_first: bool | None = None
    instruct: str | None = None


class RerankText(WireModel):
    """A document as Cohere's first API has it."""

    text: str


class RerankRequest(ClassFields):
    """With `documents` the form of Jina, Cohere and vLLM; with `texts` that of Text Embeddings Inference."""

    query: str
    documents: Annotated[list[str | RerankText], Field(fail_fast=True)] | None = None
    texts: Annotated[list[str], Field(fail_fast=True)] | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    instruct: str | None = None


class ClassifyRequest(ClassFields):
    """With `input` as in OpenAI's style; with `text` or `input_ids` SGLang's native form."""

    input: PromptField | None = None
    text: Texts | None = None
    input_ids: TokenIds | None = None
