"""POST /v1/embeddings and SGLang's POST /encode: the requests."""

from typing import Literal

from palladio.http.wire.protocol import PromptFields
from palladio.http.wire.protocol_completions import PromptField
from palladio.http.wire.protocol_generate import NativeFields


class EmbeddingRequest(PromptFields):
    input: PromptField
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class EncodeRequest(NativeFields):
    dimensions: int | None = None
