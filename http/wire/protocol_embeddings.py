"""POST /v1/embeddings, SGLang's POST /encode, vLLM's POST /pooling and Cohere's POST /v2/embed: the requests."""

from typing import Annotated, Any, Literal

from pydantic import Field

from palladio.http.wire.protocol import PromptFields, RequestFields
from palladio.http.wire.protocol_completions import PromptField
from palladio.http.wire.protocol_generate import NativeFields
from palladio.http.wire.protocol_scores import ClassFields

EmbeddingType = Literal["float", "base64", "binary", "ubinary", "sparse", "tokens"]
EmbeddingTypes = Annotated[list[EmbeddingType], Field(min_length=1, max_length=16, fail_fast=True)]


class EmbeddingRequest(PromptFields):
    input: PromptField
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    input_type: str | None = None
    embedding_types: EmbeddingTypes | None = None
    truncation_side: Literal["left", "right"] | None = None


class EncodeRequest(NativeFields):
    dimensions: int | None = None


class PoolingRequest(ClassFields):
    """Embeddings or classes, whichever the model has."""

    input: PromptField
    task: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    input_type: str | None = None


class CohereEmbedRequest(RequestFields):
    """Embeddings as Cohere's second API has them, of texts alone."""

    model: str | None = None
    texts: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)] | None = None
    input_type: str | None = None
    embedding_types: EmbeddingTypes | None = None
    output_dimension: int | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    priority: int | None = None
    images: Any = None
    inputs: Any = None
