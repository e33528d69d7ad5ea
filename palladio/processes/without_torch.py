"""Keeps torch out of processes that serve: where it is installed, transformers imports it with its tokenizers, which
takes a second and 180 MiB, and nothing here uses it."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def hide_torch_from_transformers() -> None:
    """Makes transformers, once it is imported, believe that there is no torch; others, such as the code of a checkpoint
    (--trust-remote-code), import it as ever. For a process of our own, before anything imports transformers."""
    if "transformers" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds transformers as the other finders do, for a loader that hides torch."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "transformers":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithoutTorch(spec.loader)
        return spec


class _WithoutTorch(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """It asks for torch while it is imported, and keeps the answer."""
        modules: dict[str, Any] = sys.modules
        is_hidden = "torch" not in modules
        if is_hidden:
            modules["torch"] = None  # "not there", to those who ask
        try:
            self._loader.exec_module(module)
        finally:
            if is_hidden:
                del modules["torch"]
