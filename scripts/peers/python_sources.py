"""Read constants, annotations and dataclass fields from Python sources without importing them."""

import ast
import dataclasses
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

MISSING: Final = object()
"""Stands for a value that the source does not say in plain constants."""


class Sources:
    """The Python files of a wheel, or of a folder, by their path within it."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    @classmethod
    def read(cls, place: Path) -> Self:
        """Read every `.py` file of a wheel or a folder."""
        if place.is_dir():
            files = {path.relative_to(place).as_posix(): path.read_bytes() for path in sorted(place.rglob("*.py"))}
        else:
            with zipfile.ZipFile(place) as wheel:
                files = {name: wheel.read(name) for name in sorted(wheel.namelist()) if name.endswith(".py")}
        return cls({name: content.decode("utf-8", errors="replace") for name, content in files.items()})

    def tree(self, path: str) -> ast.Module:
        """Parse one file, given by the end of its path.

        Raises:
            SystemExit: no file or several files end so.
        """
        found = [name for name in self._texts if name == path or name.endswith("/" + path)]
        if len(found) != 1:
            raise SystemExit(f"{path}: found {len(found)} such files; is this the right package?")
        return ast.parse(self._texts[found[0]])

    def below(self, folder: str) -> Iterator[ast.Module]:
        """Parse all files directly in a folder, given by a part of its path."""
        for name, text in self._texts.items():
            if f"/{folder}/" in f"/{name}" and "/" not in f"/{name}".partition(f"/{folder}/")[2]:
                yield ast.parse(text)

    def all_texts(self) -> Iterator[str]:
        """Give the text of every file outside of tests."""
        return (text for name, text in self._texts.items() if "test" not in name)


@dataclasses.dataclass(frozen=True)
class Field:
    """One annotated name of a class body."""

    name: str
    annotation: ast.expr
    default: ast.expr | None


class Scope:
    """What names stand for: constants of modules and fields of classes."""

    def __init__(self) -> None:
        self.constants: dict[str, ast.expr] = {}
        self.classes: dict[str, ast.ClassDef] = {}

    def add(self, tree: ast.Module) -> None:
        """Add a module's assignments and classes."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                self._add_text(node.targets[0], node.value)
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.constants.setdefault(node.target.id, node.value)

    def _add_text(self, target: ast.expr, value: ast.Constant) -> None:
        """Add a text that a function gives a name, as for a prefix of flags."""
        if isinstance(target, ast.Name) and isinstance(value.value, str):
            self.constants.setdefault(target.id, value)

    def fields(self, class_name: str) -> dict[str, Field]:
        """Give a class's annotated names and those of its bases, bases first."""
        node = self.classes.get(class_name)
        if node is None:
            return {}
        found: dict[str, Field] = {}
        for base in node.bases:
            if isinstance(base, ast.Name):
                found |= self.fields(base.id)
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found[item.target.id] = Field(item.target.id, item.annotation, item.value)
        return found

    def value(self, node: ast.expr | None) -> Any:
        """Give what an expression of constants is, as JSON has it; else `MISSING`."""
        match node:
            case ast.Constant(value=str() | int() | float() | None):
                return node.value
            case ast.JoinedStr():
                parts = [
                    self.value(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values
                ]
                return "".join(parts) if all(isinstance(part, str) for part in parts) else MISSING
            case ast.List() | ast.Tuple() | ast.Set():
                values = [self.value(item) for item in node.elts]
                return MISSING if MISSING in values else values
            case ast.UnaryOp(op=ast.USub()):
                number = self.value(node.operand)
                return MISSING if number is MISSING else -number
            case ast.BinOp():
                return self._sum(node)
            case ast.Name():
                return self.value(self.constants[node.id]) if node.id in self.constants else MISSING
            case ast.Attribute(value=ast.Name(id=owner)):
                field = self.fields(owner).get(node.attr)
                return MISSING if field is None else self.value(field.default)
            case ast.Call():
                return self._call(node)
        return MISSING

    def _sum(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if MISSING in (left, right):
            return MISSING
        match node.op:
            case ast.Add():
                return left + right
            case ast.Mult():
                return left * right
            case ast.Pow():
                return left**right
            case ast.LShift():
                return left << right
        return MISSING

    def _call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name == "get_field" and len(node.args) == 2 and isinstance(node.args[0], ast.Name):
            field = self.fields(node.args[0].id).get(str(self.value(node.args[1])))
            return MISSING if field is None else self.value(field.default)
        if name in ("Field", "field"):
            if "default" in given:
                return self.value(given["default"])
            made = given.get("default_factory")
            if isinstance(made, ast.Lambda):
                return self.value(made.body)
            if isinstance(made, ast.Name) and made.id in ("list", "dict"):
                return [] if made.id == "list" else {}
            return self.value(node.args[0]) if node.args else MISSING
        return MISSING

    def types(self, node: ast.expr) -> list[ast.expr]:
        """Give the members of an annotation's union; aliases are resolved, `None` is left out."""
        match node:
            case ast.Constant(value=str()):
                return self.types(ast.parse(node.value, mode="eval").body)
            case ast.Constant(value=None):
                return []
            case ast.BinOp(op=ast.BitOr()):
                return [*self.types(node.left), *self.types(node.right)]
            case ast.Subscript(value=ast.Name(id="Optional" | "SkipValidation" | "ClassVar")):
                return self.types(node.slice)
            case ast.Subscript(value=ast.Name(id="Union")):
                members = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                return [each for member in members for each in self.types(member)]
            case ast.Subscript(value=ast.Name(id="Annotated" | "A")) if isinstance(node.slice, ast.Tuple):
                return self.types(node.slice.elts[0])
            case ast.Name() if node.id in self.constants:
                return self.types(self.constants[node.id])
        return [node]

    def kind(self, node: ast.expr) -> tuple[str, list[Any]]:
        """Give an annotation's kind (`bool`, `int`, `float`, `str`, `json`, or `ints` …) and its choices, if any."""
        members = self.types(node)
        names = [member.id for member in members if isinstance(member, ast.Name)]
        if "bool" in names:
            return ("str" if "str" in names else "bool"), []
        choices: list[Any] = []
        for member in members:
            if isinstance(member, ast.Subscript) and isinstance(member.value, ast.Name):
                if member.value.id == "Literal":
                    choices += self._literal(member)
                elif member.value.id.lower() in ("list", "tuple", "set"):
                    element = member.slice.elts[0] if isinstance(member.slice, ast.Tuple) else member.slice
                    inner, choices = self.kind(element)
                    return (inner if inner in ("json",) else inner.rstrip("s") + "s"), choices
        if choices:
            kind = "int" if all(isinstance(choice, int) for choice in choices) else "str"
            return kind, [] if "str" in names else choices
        for kind in ("int", "float", "str"):
            if kind in names:
                return ("float" if kind == "int" and "float" in names else kind), []
        members_of = [member for name in names for member in self._enum_members(name)]
        if members_of:
            return "str", members_of
        return ("json" if any(self._is_object(member) for member in members) else "str"), []

    def _enum_members(self, name: str) -> list[str]:
        node = self.classes.get(name)
        if node is None or not any("Enum" in ast.unparse(base) for base in node.bases):
            return []
        assigned = (item.targets[0] for item in node.body if isinstance(item, ast.Assign))
        return [target.id for target in assigned if isinstance(target, ast.Name)]

    def _is_object(self, member: ast.expr) -> bool:
        if isinstance(member, ast.Subscript):
            return ast.unparse(member.value) in ("dict", "Dict")
        return isinstance(member, ast.Name) and (member.id == "dict" or bool(self.fields(member.id)))

    def _literal(self, node: ast.Subscript) -> list[Any]:
        found: list[Any] = []
        for member in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            if isinstance(member, ast.Name):  # another alias of a Literal
                found += self.kind(member)[1]
            elif (value := self.value(member)) is not MISSING:
                found.append(value)
        return found
