"""`palladio list --architectures`, and the table of docs/models.md: what is served, from the registry's table."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Self

from palladio.model.config.architectures import ARCHITECTURES, STATES, Architecture
from palladio.model.config.encoders import ENCODERS, NOTHING
from palladio.model.config.registry import entry_points
from palladio.model.gguf.gguf_config import CLASSES

COLUMNS = ("`architectures`", "Models", "Cache", "Quantized files", "Drafts", "Compared with", "Notes")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """An architecture as people see it.

    Attributes:
        architecture: as config.json names it.
        models: published models.
        cache: what layers keep of a sequence.
        quantization: formats of quantized checkpoints that are read.
        drafts: kinds of speculative decoding.
        compared: what results are compared with.
        notes: what is special.
    """

    architecture: str
    models: str
    cache: str
    quantization: str
    drafts: str
    compared: str
    notes: str

    @classmethod
    def of(cls, name: str, found: Architecture) -> Self:
        formats = ["all of safetensors"]
        formats += ["MXFP4"] if name == "GptOssForCausalLM" else []
        formats += ["GGUF"] if name in CLASSES.values() else []
        inner = [ARCHITECTURES[text or name] for text in found.texts.values()] or [found]
        drafts = not all(STATES in each.cache or each.cache == NOTHING for each in inner)
        return cls(
            architecture=name,
            models=found.models,
            cache=found.cache or "as its text model",
            quantization=", ".join(formats),
            drafts="NGRAM" if drafts else "none",
            compared=found.compared,
            notes="; ".join(note for note in (found.notes, "text only" if found.texts else "") if note),
        )

    def has(self, word: str) -> bool:
        """Return whether the architecture's name or a model's holds a word, whatever the case."""
        return word.lower() in f"{self.architecture}\n{self.models}".lower()


def rows() -> list[Row]:
    """Return a row for each architecture of this tree."""
    return [Row.of(name, found) for name, found in sorted({**ARCHITECTURES, **ENCODERS}.items())]


def _outside() -> Iterator[Row]:
    for name, point in entry_points():
        yield Row(name, "", "", "", "", "", f"entry point {point.name} = {point.value}")


def table() -> str:
    """Return the table of docs/models.md."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows():
        name, *cells = dataclasses.astuple(row)
        lines.append(f"| {' | '.join((f'`{name}`', *cells))} |".replace("|  |", "| |"))
    return "\n".join(lines)


def print_architectures(word: str, *, as_json: bool) -> int:
    """Print the architectures that are served, those of installed packages as well; return the exit code.

    Args:
        word: a part of the name of an architecture or a model; "": all.
    """
    every = [*rows(), *_outside()]
    found = [row for row in every if row.has(word)]
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in found], indent=2))
        return 0 if found else 1
    for row in found:
        cells = [f"{name} {value}".strip() for name, value in _named(row) if value]
        print(f"{row.architecture}  {row.models}".rstrip())
        print(f"  {'; '.join(cells)}")
    print(f"{len(found)} of {len(every)} architectures" + (f" whose name or models hold {word!r}" if word else ""))
    return 0 if found else 1


def _named(row: Row) -> tuple[tuple[str, str], ...]:
    return (
        ("cache:", row.cache),
        ("quantized files:", row.quantization),
        ("drafts:", row.drafts),
        ("compared with", row.compared),
        ("", row.notes),
    )
