"""Ollama's POST /api/chat, /api/generate, /api/embed, /api/embeddings and /api/show: the requests."""

from typing import Annotated, Any, Literal

from pydantic import Field

from palladio.http.wire.protocol import AtMost, WireModel
from palladio.http.wire.protocol_chat import Objects
from palladio.runtime.interface.request.sampling_params import MAX_STOP_STRINGS


class OllamaOptions(WireModel):
    """Ranges are checked by SamplingParams."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    stop: Annotated[str | Annotated[list[str], Field(fail_fast=True)] | None, AtMost(MAX_STOP_STRINGS, "strings")] = (
        None
    )
    # how other samplers are set, for the values that switch them off
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None
    penalize_newline: bool | None = None
    # how Ollama loads a model
    num_ctx: int | None = None
    num_keep: int | None = None
    num_gqa: int | None = None
    rope_frequency_base: float | None = None
    rope_frequency_scale: float | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    embedding_only: bool | None = None


class OllamaFields(WireModel):
    """What both routes have."""

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: str | float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None
    return_progress: bool | None = None


class OllamaChatRequest(OllamaFields):
    """What messages and tools look like is checked when they are read."""

    messages: Objects | None = None
    tools: Objects | None = None


class OllamaGenerateRequest(OllamaFields):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[Any] | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[Any] | None = None


LOADING = frozenset(  # options that say how Ollama loads a model
    (
        *("num_ctx", "num_keep", "num_gqa", "rope_frequency_base", "rope_frequency_scale", "num_batch", "num_gpu"),
        *("main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock"),
        "embedding_only",
    )
)


class OllamaEmbedRequest(WireModel):
    model: Annotated[str, Field(min_length=1)]
    input: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: OllamaOptions | None = None
    keep_alive: str | float | None = None


class OllamaEmbeddingsRequest(WireModel):
    model: Annotated[str, Field(min_length=1)]
    prompt: str | None = None
    options: OllamaOptions | None = None
    keep_alive: str | float | None = None


class ShowRequest(WireModel):
    """`name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
