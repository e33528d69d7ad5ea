"""/v1/score, /v1/rerank and /v1/classify: the requests."""

from typing import Annotated

from pydantic import Field

from palladio.http.wire.protocol import PromptFields, WireModel
from palladio.http.wire.protocol_completions import PromptField
from palladio.http.wire.protocol_generate import TokenIds

Texts = str | Annotated[list[str], Field(fail_fast=True)]


class ClassFields(PromptFields):
    """What of a model's logits is told."""

    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None


class ScoreRequest(ClassFields):
    """Of pairs of texts, under any of vLLM's names; or, with `label_token_ids`, SGLang's scores of tokens."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    query: str | list[int] | None = None
    items: str | Annotated[list[str], Field(fail_fast=True)] | list[list[int]] | None = None
    label_token_ids: list[int] | None = None
    apply_softmax: bool | None = None
    item_first: bool | None = None
    instruct: str | None = None


class RerankText(WireModel):
    """A document as Cohere's first API has it."""

    text: str


class RerankRequest(ClassFields):
    query: str
    documents: Annotated[list[str | RerankText], Field(fail_fast=True)]
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    instruct: str | None = None


class ClassifyRequest(ClassFields):
    """With `input` as in OpenAI's style; with `text` or `input_ids` SGLang's native form."""

    input: PromptField | None = None
    text: Texts | None = None
    input_ids: TokenIds | None = None
