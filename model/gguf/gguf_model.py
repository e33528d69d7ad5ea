"""GgufModel: a model in one GGUF file, or in the parts that llama-gguf-split made of one."""

import re
from pathlib import Path
from typing import Final

from palladio.model.base.errors import CheckpointError
from palladio.model.files.folder_files import find_file, find_files
from palladio.model.gguf.gguf_file import MAX_TENSORS, GgufFile, GgufTensor

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)
_MAX_PARTS: Final = 1000
_MAX_SHOWN: Final = 3  # names of files
_COUNT: Final = "split.count"
_PROJECTOR: Final = "mmproj"  # a vision or audio tower, in a file of its own


def parts_of(path: Path) -> tuple[Path, ...]:
    """Return the file alone, or all parts of the model that it is a part of, in their order.

    Raises:
        CheckpointError: a part is missing, no regular file, or lies elsewhere.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    stem, number, count = match[1], int(match[2]), int(match[3])
    if not 1 <= number <= count <= _MAX_PARTS:
        raise CheckpointError(f"{path} is called part {number} of {count}: rename it as it was published")
    parts = tuple(path.with_name(f"{stem}-{each:05}-of-{count:05}{match[4]}") for each in range(1, count + 1))
    missing = [part.name for part in parts if find_file(path.parent, part.name) is None]
    if missing:
        more = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
        raise CheckpointError(
            f"{path} is one of {count} parts, and {', '.join(missing[:_MAX_SHOWN])}{more} missing: download every part "
            "into the same directory"
        )
    return parts


def gguf_in(folder: Path) -> Path | None:
    """Return the GGUF model of a directory, or the first of its parts; None: there is none, or several.

    Raises:
        CheckpointError: a part is missing, or a file is no regular one or lies elsewhere.
    """
    files = [file for file in find_files(folder, "*.gguf") if not is_projector(file)]
    models = {_stem(file): file for file in reversed(files)}
    return parts_of(next(iter(models.values())))[0] if len(models) == 1 else None


def is_projector(file: Path) -> bool:
    """Return whether a file is the vision or audio tower of a model, by its name."""
    return _PROJECTOR in file.name.lower()


def projectors_of(path: Path) -> list[Path]:
    """Return the towers in the directory of a model's file."""
    return [file for file in sorted(path.parent.glob("*.gguf")) if is_projector(file) and file != path]


def _stem(file: Path) -> str:
    """Return the name that all parts of a model share."""
    match = _PART.fullmatch(file.name)
    return file.name if match is None else f"{match[1]} of {match[3]}"


class GgufModel:
    """The open files of a model. Arrays read from them are views of their maps: use them before `close`.

    Attributes:
        path: path of the first file, which has the metadata.
        files: the files by path, in their order.
        metadata: see GgufFile.
        tensors: tensors of all files by name, with the file of each.
    """

    def __init__(self, path: Path) -> None:
        """Open all parts of a model.

        Raises:
            CheckpointError: a part is missing or of another model, or see GgufFile.
        """
        parts = parts_of(path)
        self.path, self.files = parts[0], dict[Path, GgufFile]()
        self.tensors: dict[str, tuple[GgufTensor, GgufFile]] = {}
        for number, part in enumerate(parts):
            self.files[part] = file = GgufFile(part)
            self._check_part(number, file, len(parts))
            if len(self.tensors) + len(file.tensors) > MAX_TENSORS:
                raise CheckpointError(f"{part} and the parts before it have more than {MAX_TENSORS:,} tensors")
            for name, tensor in file.tensors.items():
                if name in self.tensors:
                    raise CheckpointError(f"{file.path} is of another model: {self.path.name} has tensor {name}, too")
                self.tensors[name] = tensor, file
        self.metadata = self.files[self.path].metadata

    def _check_part(self, number: int, file: GgufFile, num_parts: int) -> None:
        count = file.metadata.get(_COUNT) or 1
        if count != num_parts or file.metadata.get("split.no", 0) != number:
            raise CheckpointError(
                f"{file.path} says that it is part {file.metadata.get('split.no', 0)!r:.20} (from 0) of {count!r:.20}, "
                f"but is read as part {number} of {num_parts}: give each part its published name "
                f"(…-{number + 1:05}-of-{num_parts:05}.gguf), or download the model again"
            )

    def close(self) -> None:
        """Close the files. No view of them may be left."""
        for file in self.files.values():
            file.close()
