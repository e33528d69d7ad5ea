"""The page on embeddings shows the fields of its routes, and the kinds of vectors that there are."""

import typing

import pytest

from palladio.http.ollama.protocol_ollama import LOADING, OllamaEmbeddingsRequest, OllamaEmbedRequest, OllamaOptions
from palladio.http.wire.protocol import PromptFields, WireModel
from palladio.http.wire.protocol_embeddings import EmbeddingType
from palladio.http.wire.protocol_text_embeddings import EmbedRequest, PredictRequest, SparseRequest, TextFields
from tests.docs.test_api_docs import names, rows, wire_type


@pytest.mark.parametrize(
    "model", [TextFields, EmbedRequest, SparseRequest, PredictRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest]
)
def test_request_fields(model: type[WireModel]) -> None:
    schema = model.model_json_schema()
    inherited = next((base.model_fields for base in (TextFields, PromptFields) if model.__base__ is base), {})
    expected = {
        name: wire_type(field) + (", required" if name in schema.get("required", ()) else "")
        for name, field in schema["properties"].items()
        if name not in inherited
    }
    assert {names(field)[0]: kind for field, kind, _ in rows(f"fields of {model.__name__}")} == expected


def test_embedding_types() -> None:
    assert [names(kind)[0] for kind, _ in rows("embedding types")] == list(typing.get_args(EmbeddingType))


def test_options_of_ollama_that_say_how_a_model_is_loaded() -> None:
    told = {names(field)[0] for field, _, effect in rows("fields of OllamaOptions") if "how Ollama loads" in effect}
    assert told == LOADING
    assert OllamaOptions.model_fields.keys() > LOADING
