"""Whether something else is installed under Palladio's import name. On the registry, `palladio` is another project."""

import importlib.metadata
import sys
from collections.abc import Iterable
from typing import Final

from palladio.version import __version__

DISTRIBUTION: Final = "palladio-serve"  # what pip calls this project
IMPORT_NAME: Final = "palladio"  # what pip called it before, and what another project is called
_SUMMARY: Final = "An LLM inference server on JAX/XLA"  # how ours begins, under either name


def find_conflicts(path: Iterable[str] | None = None) -> list[str]:
    """One line for each distribution that conflicts with this one: what was found, and what to do.

    Args:
        path: folders to look through; None: where modules are imported from.
    """
    folders = sys.path if path is None else list(path)
    ours = list(importlib.metadata.distributions(name=DISTRIBUTION, path=folders))
    lines = []
    for found in importlib.metadata.distributions(name=IMPORT_NAME, path=folders):
        if found.read_text("METADATA") is None:
            continue  # not installed: what a build has left in the source tree
        named = f"{IMPORT_NAME} {found.version} in {found.locate_file('')}"
        if not (found.metadata["Summary"] or "").startswith(_SUMMARY):
            lines.append(
                f"{named} is a different project with the same package name and install folder: run `pip "
                f"uninstall {IMPORT_NAME}`, then install {DISTRIBUTION} again"
            )
        elif ours:
            lines.append(
                f"{named} is this project under its earlier name, installed beside {DISTRIBUTION}: run `pip uninstall "
                f"{IMPORT_NAME}`, then install {DISTRIBUTION} again (uninstalling also removes the command `palladio`)"
            )
    if ours and ours[0].version != __version__:
        lines.append(
            f"{DISTRIBUTION} {ours[0].version} is installed in {ours[0].locate_file('')}, but version "
            f"{__version__} runs from another folder: check the current folder and PYTHONPATH, or install again"
        )
    return lines
