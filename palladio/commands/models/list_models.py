"""`palladio list`: the models that this machine has in its caches, and which of them can be served."""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from palladio.cli.parsing import make_parser, size
from palladio.commands.models.architectures import print_architectures
from palladio.flags.default_model import DEFAULT_MODEL_NAME, default_model_path
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.files.small_files import read_text
from palladio.runtime.interface.errors import PalladioError
from palladio.runtime.text.hub.catalogue import catalogue
from palladio.runtime.text.hub.hub import why_not_servable
from palladio.runtime.text.hub.hub_download import Repository, hub_cache

_UNFINISHED = ("models--*/blobs/*.incomplete", "palladio/*/*.incomplete")
_MAX_REF_BYTES = 4096  # a commit has 40


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A model on the disk.

    Attributes:
        revision: commit, and the names that lead to it; title and licence of a short name.
        size: bytes. changed: seconds since the epoch.
        path: empty: it has not been downloaded.
        problem: why it cannot be served; None: it can be.
    """

    name: str
    revision: str
    size: int
    path: str
    changed: float
    problem: str | None


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "list",
        "Lists the embedded model, those in the local cache and those that have a short name: size, revision, path, "
        "and whether `palladio serve` takes them.",
        [
            "palladio list",
            "palladio list --servable                      # only those",
            "palladio list --architectures                 # what can be served, whether it is here or not",
            "palladio list --architectures Qwen3.6         # of that name",
            "palladio list --download-dir /mnt/models --json",
        ],
    )
    found.add_argument("--download-dir", metavar="DIR", help="cache folder (default: the hub cache, HF_HOME)")
    found.add_argument("--servable", action="store_true", help="leave out what cannot be served")
    found.add_argument(
        "--architectures",
        metavar="WORD",
        nargs="?",
        const="",
        help="list the architectures that are served, and their models; WORD: those whose name or models hold it",
    )
    found.add_argument("--json", action="store_true", help="print JSON")
    return found


def list_models(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    made = parser()
    args = made.parse_args(argv)
    if args.architectures is not None:
        if args.servable or args.download_dir is not None:
            made.error("--architectures lists what can be served, on this machine or not: it takes --json alone")
        return print_architectures(args.architectures, as_json=args.json)
    cache = hub_cache(args.download_dir)
    models = [
        _model(DEFAULT_MODEL_NAME, "embedded", default_model_path()),
        *_named(cache),
        *scan(cache),
    ]
    if args.servable:
        models = [model for model in models if model.problem is None]
    if args.json:
        print(json.dumps([dataclasses.asdict(model) for model in models], indent=2))
        return 0
    here = [model for model in models if model.path]
    width = max(len(model.name) for model in here)
    for model in here:
        verdict = "ready to serve" if model.problem is None else f"not servable: {model.problem}"
        day = time.strftime("%Y-%m-%d", time.localtime(model.changed))
        print(f"{model.name:<{width}}  {size(model.size):>9}  {day}  {model.revision:<16}  {verdict}")
        print(f"{'':<{width}}  {model.path}")
    left = {pattern: sum(file.stat().st_size for file in cache.glob(pattern)) for pattern in _UNFINISHED}
    where = f"in {cache}" if cache.is_dir() else f"in {cache}, which does not exist"
    sizes = {model.path: model.size for model in here}  # a short name may be that of a snapshot
    print(f"{len(sizes) - 1} in the hub cache ({where}), {size(sum(sizes.values()))} in all")
    for model in models:
        if not model.path:
            print(f"{model.name} ({model.revision}) is {model.problem}")
    for pattern, bytes_ in left.items():
        if bytes_:
            print(f"Interrupted downloads have left {size(bytes_)}: rm {cache}/{pattern}")
    return 0


def _named(cache: Path) -> Iterator[Found]:
    """Yield the models with short names, downloaded or not."""
    for model in catalogue():
        file, known = model.file_in(cache), f"{model.title}, {model.licence}"
        if model.is_in(cache):
            yield Found(model.name, known, file.stat().st_size, str(file), file.stat().st_mtime, None)
        elif (snapshot := _main(Repository(model.repository, None, str(cache), ()).folder)) is not None:
            yield _model(model.name, known, snapshot)
        else:
            yield Found(model.name, known, 0, "", 0.0, f"not downloaded: palladio pull {model.name}")


def _snapshots(folder: Path) -> list[Path]:
    """Return the snapshots of a repository.

    Args:
        folder: the repository's in the hub cache; it may be missing.
    """
    return [path for path in sorted((folder / "snapshots").glob("*")) if path.is_dir()]


def _main(folder: Path) -> Path | None:
    """The snapshot of a repository's main branch; None: it is not here."""
    refs = dict(_refs(folder / "refs"))
    return next((snapshot for snapshot in _snapshots(folder) if refs.get(snapshot.name) == "main"), None)


def scan(cache: Path) -> Iterator[Found]:
    """The snapshots of a hub cache, by name."""
    for folder in sorted(cache.glob("models--*")):
        name = folder.name.removeprefix("models--").replace("--", "/")
        refs = dict(_refs(folder / "refs"))
        for snapshot in (snapshots := _snapshots(folder)):
            revision = f"{refs[snapshot.name]} {snapshot.name[:7]}" if snapshot.name in refs else snapshot.name[:12]
            yield _model(name, revision, snapshot)
        if not snapshots:
            yield Found(name, "-", _size(folder), str(folder), folder.stat().st_mtime, "nothing of it is complete")


def _refs(folder: Path) -> Iterator[tuple[str, str]]:
    """Commits and their names: branches, tags, and requests to merge (refs/pr/1)."""
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.is_file() and (commit := read_text(folder, name, _MAX_REF_BYTES)) is not None:
            yield commit.strip(), name


def _model(name: str, revision: str, folder: Path) -> Found:
    return Found(name, revision, _size(folder), str(folder), folder.stat().st_mtime, describe_problem(folder))


def describe_problem(folder: Path) -> str | None:
    """Return why a folder cannot be served; None: its settings show no reason."""
    problem = why_not_servable(folder)
    if problem is not None:
        return problem.removeprefix(f"{folder} is ").removeprefix(f"{folder} has ")
    try:
        ModelConfig.from_hf(*read_model_dir(folder))
    except (PalladioError, OSError, ValueError) as error:
        return " ".join(str(error).split())
    return None


def _size(folder: Path) -> int:
    """Bytes of what its links lead to."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
