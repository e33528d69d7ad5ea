"""Write the flags and environment variables of other servers: names, types, defaults and choices, one file a server.

It reads the sources with `ast` and imports nothing of them. A wheel is downloaded unless one is given:

    python scripts/peers/peer_flags.py                              # the versions of PEERS, from the package index
    python scripts/peers/peer_flags.py sglang=WHEEL vllm=WHEEL      # these files; others are left alone
    python scripts/peers/peer_flags.py sglang-jax=FOLDER            # of a clone: its newest version is not on the index

The files are runtime/interface/flags/peers/NAME.json. After a change of names, tests/palladio/flags/test_peer_flags.py
lists what has no row in the tables of foreign flags.
"""

import argparse
import ast
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from python_sources import MISSING, Scope, Sources

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "runtime" / "interface" / "flags" / "peers"
PEERS: Final = {"sglang": "0.5.23", "vllm": "0.32.0", "tpu-inference": "0.32.0", "sglang-jax": "cddbf6f1"}
_FROM_INDEX: Final = ("sglang", "vllm", "tpu-inference")
_NUMBERS: Final = {"int": "int", "float": "float", "human_readable_int": "size", "human_readable_int_or_auto": "size"}
_VARIABLE = re.compile(r"""(?:environ\.get|getenv|environ\.setdefault)\(\s*["']([A-Z][A-Z0-9_]+)["']|environ\[["']"""
                       r"""([A-Z][A-Z0-9_]+)["']\]""")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerFlag:
    """One flag of another server's launch command.

    Attributes:
        name: with underscores, without dashes in front.
        kind: flag takes no value; switch is `--x` or `--no-x`; size takes 8k and 1M too; json one object; ints, floats
            and strs several values; the others one.
        default: MISSING where the source computes it.
    """

    name: str
    kind: str
    default: Any = MISSING
    choices: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """Give the flag as it stands in the file, without what is empty."""
        row: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.default is not MISSING:
            row["default"] = self.default
        lists = (("choices", self.choices), ("aliases", self.aliases))
        return row | {key: list(values) for key, values in lists if values}


def read_sglang(sources: Sources) -> Iterator[PeerFlag]:
    """Read SGLang's: fields annotated with `A[type, Arg(…)]` or `A[type, "help"]`, and a few argparse calls."""
    scope, trees = Scope(), list(sources.below("srt/arg_groups/fields"))
    for tree in (sources.tree("srt/arg_groups/choices.py"), *trees):
        scope.add(tree)
    for name in ("srt/parser/reasoning_parser_names.py", "srt/function_call/parser_names.py"):
        scope.add(sources.tree(name))
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                for field in scope.fields(node.name).values():
                    yield from _sglang_field(scope, field.name, field.annotation, field.default)
    yield from read_calls(scope, sources.tree("srt/server_args.py"))


def _sglang_field(scope: Scope, name: str, annotation: ast.expr, default: ast.expr | None) -> Iterator[PeerFlag]:
    if not (isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple)):
        return
    _, help_or_arg = annotation.slice.elts[:2]
    given: dict[str | None, ast.expr] = {}
    if isinstance(help_or_arg, ast.Call):
        if not (isinstance(help_or_arg.func, ast.Name) and help_or_arg.func.id == "Arg"):
            return
        given = {keyword.arg: keyword.value for keyword in help_or_arg.keywords}
    if scope.value(given.get("no_cli")) is True:
        return
    kind, choices = scope.kind(annotation)
    kind = "flag" if kind == "bool" else kind
    parser = given.get("type_parser")
    if parser is not None:
        word = ast.unparse(parser)
        kind = _NUMBERS.get(word, "json" if "json" in word else "str")
    if "action" in given:
        kind = "switch" if "BooleanOptionalAction" in ast.unparse(given["action"]) else "strs"
    listed = scope.value(given.get("choices"))
    named = scope.value(given.get("cli_name"))
    aliases = scope.value(given.get("aliases"))
    yield PeerFlag(
        name=_field_name(named) if isinstance(named, str) else name,
        kind=kind,
        default=scope.value(default) if default is not None else None,
        choices=tuple(listed if isinstance(listed, list) else choices),
        aliases=tuple(_field_name(alias) for alias in aliases) if isinstance(aliases, list) else (),
    )


def read_vllm(sources: Sources) -> Iterator[PeerFlag]:
    """Read vLLM's: argparse calls whose keywords come from fields of config classes, and the front end's fields."""
    scope = Scope()
    trees = [*sources.below("vllm/config"), sources.tree("vllm/engine/arg_utils.py")]
    front = sources.tree("vllm/entrypoints/launchers/cli_args.py")
    for tree in (*trees, front, sources.tree("vllm/v1/attention/backends/registry.py")):
        scope.add(tree)
    yield from read_calls(scope, trees[-1], _config_kwargs(trees[-1]))
    yield from read_calls(scope, front)
    for field in scope.fields("FrontendArgs").values():
        kind, choices = scope.kind(field.annotation)
        default = scope.value(field.default)
        yield PeerFlag(name=field.name, kind="switch" if kind == "bool" else kind, default=default,
                       choices=tuple(choices))  # fmt: skip


def read_sglang_jax(sources: Sources) -> Iterator[PeerFlag]:
    """Read SGLang-JAX's: argparse calls, with defaults from the fields of its dataclass."""
    scope = Scope()
    trees = [sources.tree("sgl_jax/srt/server_args.py"), sources.tree("sgl_jax/srt/multimodal/common/ServerArgs.py")]
    for tree in trees:
        scope.add(tree)
    for tree in trees:
        yield from read_calls(scope, tree)


def _config_kwargs(tree: ast.Module) -> dict[str, str]:
    """Give which class `x_kwargs = get_kwargs(X)` is about."""
    found = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=owner)]),
            ):
                found[name] = owner
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id=of), slice=key)):
                if of in found and isinstance(key, ast.Constant):  # one field's keywords, changed before their use
                    found[name] = f"{found[of]}.{key.value}"
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Subscript(
                    value=ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=owner)]),
                    slice=ast.Constant(value=key),
                ),
            ):
                found[name] = f"{owner}.{key}"
    return found


def read_calls(scope: Scope, tree: ast.Module, kwargs: dict[str, str] | None = None) -> Iterator[PeerFlag]:
    """Read the `add_argument` calls of a module, with names that begin with two dashes."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr != "add_argument":
            continue
        names = [name for name in map(scope.value, node.args) if isinstance(name, str) and name.startswith("-")]
        long = [name for name in names if name.startswith("--")]
        if not long:
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        first, *others = [_field_name(name) for name in (*long, *(name for name in names if name not in long))]
        yield _of_call(scope, first, tuple(others), given, kwargs or {})


def _of_call(
    scope: Scope, name: str, aliases: tuple[str, ...], given: dict[str | None, ast.expr], kwargs: dict[str, str]
) -> PeerFlag:
    field = _starred(given.get(None), kwargs)
    if field is not None:
        owner, _, key = field.partition(".")
        found = scope.fields(owner).get(key)
        if found is not None:
            kind, choices = scope.kind(found.annotation)
            kind = "switch" if kind == "bool" else kind
            kind = "size" if kind == "int" and key in _sizes(scope) else kind
            default = scope.value(found.default)
            return PeerFlag(name=name, kind=kind, default=default, choices=tuple(choices), aliases=aliases)
    action = ast.unparse(given["action"]).strip("'\"") if "action" in given else ""
    kind = _NUMBERS.get(ast.unparse(given["type"]), "str") if "type" in given else "str"
    kind = "json" if "json" in ast.unparse(given.get("type", ast.Constant(""))) else kind
    if "nargs" in given and scope.value(given["nargs"]) in ("+", "*"):
        kind += "s"
    if action in ("store_true", "store_false") or "StoreTrue" in action:
        kind = "flag"
    elif "BooleanOptional" in action:
        kind = "switch"
    listed = scope.value(given.get("choices"))
    default = scope.value(given["default"]) if "default" in given else (False if kind == "flag" else None)
    return PeerFlag(name=name, kind=kind, default=default, aliases=aliases,
                    choices=tuple(listed) if isinstance(listed, list) else ())  # fmt: skip


def _starred(node: ast.expr | None, kwargs: dict[str, str]) -> str | None:
    """Give `Class.field` for `**x_kwargs["field"]`, also inside of `**{**x_kwargs["field"], …}`."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)) if name in kwargs:
            return f"{kwargs[name]}.{key}"
        case ast.Name(id=name) if name in kwargs:
            return kwargs[name]
        case ast.Dict(values=values):
            return next((found for value in values if (found := _starred(value, kwargs))), None)
    return None


def _sizes(scope: Scope) -> set[str]:
    """Give the fields whose numbers may end with k, M or G."""
    return {"max_num_batched_tokens", "max_num_scheduled_tokens", "kv_cache_memory_bytes", "max_model_len",
            "safetensors_prefetch_block_size", "max_num_queued_tokens"} if scope else set()  # fmt: skip


def read_variables(peer: str, sources: Sources) -> list[str]:
    """Give the names of the environment variables that a server's source reads."""
    names: set[str] = set()
    if peer == "sglang":
        scope = Scope()
        scope.add(sources.tree("srt/environ.py"))
        for item in scope.classes["Envs"].body:
            if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                names.add(item.targets[0].id)
    elif peer in ("vllm", "tpu-inference"):
        scope = Scope()
        scope.add(sources.tree(f"{peer.replace('-', '_')}/envs.py"))
        table = scope.constants["environment_variables"]
        names = (
            {key.value for key in table.keys if isinstance(key, ast.Constant)} if isinstance(table, ast.Dict) else names
        )
    else:
        for text in sources.all_texts():
            names |= {one or two for one, two in _VARIABLE.findall(text)}
    return sorted(name for name in names if re.fullmatch(r"[A-Z][A-Z0-9_]*", name) and not name.startswith("BENCH_"))


READERS: Final[dict[str, Callable[[Sources], Iterator[PeerFlag]]]] = {
    "sglang": read_sglang,
    "vllm": read_vllm,
    "tpu-inference": lambda _: iter(()),  # a plugin of vLLM: it has its flags
    "sglang-jax": read_sglang_jax,
}


def read_peer(peer: str, place: Path) -> dict[str, Any]:
    """Read one server's wheel or folder: what its file holds."""
    sources = Sources.read(place)
    flags: dict[str, PeerFlag] = {}
    for flag in READERS[peer](sources):
        flags.setdefault(flag.name, flag)  # a name that is declared and then added by hand
    return {
        "package": peer,
        "version": PEERS[peer],
        "flags": [flag.row() for flag in flags.values()],
        "environment": read_variables(peer, sources),
    }


def _field_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def write(found: dict[str, Any]) -> Path:
    """Write a server's file, one flag a line."""
    FOLDER.mkdir(exist_ok=True)
    rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in found["flags"])
    flags = f"[\n{rows}\n  ]" if rows else "[]"
    names = ",\n".join(f'    "{name}"' for name in found["environment"])
    path = FOLDER / f"{found['package']}.json"
    path.write_text(
        f'{{\n  "package": "{found["package"]}",\n  "version": "{found["version"]}",\n  "flags": {flags},\n'
        f'  "environment": [\n{names}\n  ]\n}}\n',
        encoding="utf-8",
    )
    return path


def download(peer: str, folder: Path) -> Path:
    """Download a server's wheel, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--python-version", "3.12", "--dest", str(folder), f"{peer}=={PEERS[peer]}"]
    for tag in ("manylinux_2_17", "manylinux_2_28", "manylinux_2_34"):
        command += ["--platform", f"{tag}_x86_64"]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob(f"{peer.replace('-', '_')}-*.whl")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="*", metavar="NAME=PLACE", help="a wheel or a folder of the sources")
    places = dict(word.partition("=")[::2] for word in parser.parse_args().given)
    if not places.keys() <= PEERS.keys():
        raise SystemExit(f"known servers: {', '.join(PEERS)}")
    with tempfile.TemporaryDirectory() as folder:
        for peer in places or _FROM_INDEX:
            place = Path(places[peer]) if places else download(peer, Path(folder))
            found = read_peer(peer, place)
            print(f"{write(found)}: {len(found['flags'])} flags, {len(found['environment'])} variables")


if __name__ == "__main__":
    main()
