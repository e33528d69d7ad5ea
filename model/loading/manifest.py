"""The manifest of a converted checkpoint: its parameters, the kinds of its weights, and a checksum of every file."""

import concurrent.futures
import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import CheckpointError
from palladio.model.config.config import DTYPES, DType
from palladio.model.files.folder_files import check_file
from palladio.model.files.small_files import MAX_TABLE_BYTES, read_object
from palladio.model.loading.layout.parameters import Parameters, known_dtype, known_form, scale_form
from palladio.model.loading.layout.relayout import LogicalAxes, stored_shape
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.readers.file_sums import check_sum
from palladio.model.weights.kinds import WeightKind, WeightKinds
from palladio.version import __version__

MANIFEST = "palladio_checkpoint.json"
FORMAT = 5
PARAMETERS = "parameters"
_OF_ACTIVATIONS = re.compile(r"A\d+,")  # in the name of a kind
_NO_MANIFEST = (
    f"no {MANIFEST} in {{path}}: the conversion did not finish, or this is not a converted checkpoint. Run `palladio "
    "convert` again; it resumes where it stopped"
)


def is_converted(path: Path) -> bool:
    """Return whether a directory holds a converted checkpoint, complete or not."""
    return (path / MANIFEST).is_file() or (path / PARAMETERS).is_dir()


@dataclasses.dataclass(frozen=True, slots=True)
class StoredParameter:
    """A parameter in its layout for one device, in which a converted checkpoint stores it.

    Attributes:
        shape: shape of the array.
        dtype: dtype of its numbers.
        kind: name of the kind of its weight, or its dtype if it is not quantized.
        axes: logical axis of each dimension; None: it is never split.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str
    axes: LogicalAxes

    @classmethod
    def of(cls, path: str, parameters: Parameters, layout: TensorLayout) -> Self:
        """Describe a parameter.

        Args:
            parameters: parameters laid out by `layout`, over any number of devices.
        """
        param = parameters.by_path[path][1]
        slot = parameters.slots.get(path) or parameters.slots[path.rpartition(".")[0]]
        dtype, (shape, axes) = str(known_dtype(param)), known_form(param)
        kind = dtype if slot.weight is None else slot.weight.kind_name
        return cls(stored_shape(shape, axes, layout, scale_form(param)), dtype, kind, axes)

    @property
    def of_numbers(self) -> Self:
        """The parameter without the bits of activations, which each device chooses for itself."""
        return dataclasses.replace(self, kind=_OF_ACTIVATIONS.sub(",", self.kind))

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        """Read a parameter's entry of the manifest."""
        axes = tuple(axis if axis is None else str(axis) for axis in content["axes"])
        return cls(tuple(map(int, content["shape"])), str(content["dtype"]), str(content["kind"]), axes)


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a converted checkpoint.

    Attributes:
        parameters: the parameters by path.
        kinds: kinds of the weights.
        dtype: dtype of parameters that are not quantized.
        files: size in bytes and CRC-32 of each file, by its path below the directory.
    """

    parameters: Mapping[str, StoredParameter]
    kinds: WeightKinds
    dtype: DType
    files: Mapping[str, tuple[int, int]]

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read the manifest of a directory.

        Raises:
            CheckpointError: there is none, or it is of another version.
        """
        try:
            content = read_object(path, MANIFEST, MAX_TABLE_BYTES)
            if content is None:
                raise CheckpointError(_NO_MANIFEST.format(path=path))
            if content["format"] != FORMAT:
                raise CheckpointError(
                    f"{path / MANIFEST} has format {shown(content['format'])}; this version reads {FORMAT}: convert "
                    "again"
                )
            parameters = {name: StoredParameter.read(each) for name, each in content["parameters"].items()}
            dense = tuple(map(str, content["dense"]))
            others = tuple((str(name), _read_kind(kind)) for name, kind in content["others"])
            kinds = WeightKinds(content["quantization"] and _read_kind(content["quantization"]), dense, others)
            files = {name: (int(size), int(crc)) for name, (size, crc) in content["files"].items()}
            if content["dtype"] not in DTYPES:
                raise ValueError(f"dtype {content['dtype']!r}")
            return cls(parameters, kinds, content["dtype"], files)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"cannot read {path / MANIFEST}: {shown(error)}") from error

    def write(self, path: Path) -> None:
        content = {
            "palladio": __version__,
            **settings_of(self.kinds, self.dtype),
            "parameters": {name: dataclasses.asdict(each) for name, each in self.parameters.items()},
            "files": self.files,
        }
        unfinished = path / f"{MANIFEST}.unfinished"
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
        unfinished.replace(path / MANIFEST)

    def check_parameters(self, path: Path, wanted: Mapping[str, StoredParameter]) -> None:
        """Compare the parameters with those of the model.

        Raises:
            CheckpointError: they differ: loading casts nothing.
        """
        found = self.parameters
        shapes, others = ({name: each.shape for name, each in both.items()} for both in (wanted, found))
        differing = sorted(name for name in {*shapes, *others} if shapes.get(name) != others.get(name))
        if differing:
            raise CheckpointError(
                f"missing, unexpected or differently shaped keys in checkpoint {path} (compared with its "
                f"config.json): {', '.join(differing[:5])}"
            )
        for name, each in wanted.items():
            if each.dtype != found[name].dtype:
                raise CheckpointError(
                    f"{path} was converted with --dtype {self.dtype}: {name} is {found[name].dtype}, and "
                    f"{each.dtype} is asked for. Use --dtype {self.dtype}, or convert the model again"
                )
            if each.of_numbers != found[name].of_numbers:
                raise CheckpointError(f"{path} holds {name} as {found[name]}, not as {each}: convert the model again")

    def check(self, path: Path) -> None:
        """Check every file by reading it once, several at a time.

        Raises:
            CheckpointError: one is missing, was cut short, has changed, or is a link that leads elsewhere.
        """
        for file in sorted((path / PARAMETERS).rglob("*")):  # Orbax reads some files that no index lists
            if file.is_symlink() or not file.is_dir():
                check_file(path, file)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            checks = [pool.submit(check_sum, path, name, *known) for name, known in self.files.items()]
            for check in checks:
                check.result()


def settings_of(kinds: WeightKinds, dtype: DType) -> dict[str, Any]:
    """Return the entries of the manifest that all groups of a converted checkpoint share."""
    others = [[name, _written_kind(kind)] for name, kind in kinds.others]
    quantization = kinds.kind and _written_kind(kinds.kind)
    return {"format": FORMAT, "dtype": dtype, "quantization": quantization, "dense": [*kinds.dense], "others": others}


def _written_kind(kind: WeightKind) -> dict[str, Any]:
    return {"name": kind.name, **dataclasses.asdict(kind)}


def _read_kind(written: Mapping[str, Any]) -> WeightKind:
    old = {"has_real_zeros": False}
    return WeightKind(**{name: value for name, value in (old | dict(written)).items() if name != "name"})
