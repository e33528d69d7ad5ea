"""Prompts with embeddings, for tests that run a core without a front: it reads the rows from files."""

import dataclasses
from pathlib import Path

import numpy as np

from palladio.model.functional import unflatten_model
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.prompt_parts import Media, PromptPart, Rows, join_parts
from palladio.runtime.interface.request.sampling_params import SamplingParams
from tests.runtime.tiny_engine import Collector


def rows_of(core: EngineCore, ids: list[int]) -> Rows:
    """The embeddings of tokens, f32[T, D]."""
    executor = core._runner.executor
    model = unflatten_model(executor.programs.design.model.structure, executor.state.weights)
    return np.asarray(model.embedding.table.take(np.array(ids, np.int32), np.dtype(np.float32)))


def kept(folder: Path, rows: Rows) -> Media:
    """A medium with its file, as the front makes it."""
    media = Media.of(rows)
    path = folder / media.digest
    path.write_bytes(media.content)
    return dataclasses.replace(media, content=b"", path=str(path))


def send(collector: Collector, name: str, parts: list[PromptPart], **params: object) -> None:
    given = {"max_tokens": 8, "temperature": 0.0, "seed": 0, **params}
    ids, media = join_parts(parts)
    collector.send(GenerationRequest(name, ids, SamplingParams(**given), (), 0.0, media=media))  # type: ignore[arg-type]
