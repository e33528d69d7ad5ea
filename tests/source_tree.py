"""The product's files, for the tests that hold the house rules."""

import ast
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("palladio", "http", "runtime", "model", "pallas_kernels")  # from the face down; imports go only downwards
# Rooms of palladio/ itself, which has the other folders too, as links.
FACE_ROOMS = tuple(
    sorted(
        folder.name for folder in (ROOT / "palladio").iterdir() if any(folder.glob("*.py")) and not folder.is_symlink()
    )
)
FACE_PATTERNS = ("*.py", *(f"{room}/**/*.py" for room in FACE_ROOMS))


@dataclasses.dataclass(frozen=True)
class Source:
    """One of our files: `path` from the root, `room` its top folder, `module` its dotted name."""

    path: str
    room: str
    module: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and full dotted name of everything that is imported, `from a import b` as a.b."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: import absolutely"
                yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Qualified name and node of every function."""

        def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{prefix}{child.name}", child
                    yield from walk(child, f"{prefix}{child.name}.")
                else:
                    yield from walk(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

        return walk(self.tree, "")

    def owner(self, line: int) -> str:
        """`path:function` of the innermost function around a line."""
        around = [(node.lineno, name) for name, node in self.functions() if node.lineno <= line <= node.end_lineno]
        return f"{self.path}:{max(around)[1] if around else '<module>'}"


def _read_sources() -> list[Source]:
    sources = []
    for room in ROOMS:
        patterns = FACE_PATTERNS if room == "palladio" else ("**/*.py",)  # the rooms are linked into palladio/
        for file in sorted(file for pattern in patterns for file in (ROOT / room).glob(pattern)):
            path = file.relative_to(ROOT).as_posix()
            parts = [*([] if room == "palladio" else ["palladio"]), *path.removesuffix(".py").split("/")]
            module = ".".join(parts).removesuffix(".__init__")
            sources.append(Source(path, room, module, file.read_text(encoding="utf-8")))
    return sources


SOURCES = _read_sources()
