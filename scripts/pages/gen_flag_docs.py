"""Writes docs/flags.md, all flags of the launch command, and the tables of docs/migrating/, all flags of other servers.

They are made of the docstrings of the configs and of the flag tables.

python scripts/pages/gen_flag_docs.py
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import docstring_parser

from palladio.flags.server_args import ServerArgs, own_flags
from palladio.runtime.interface.flags.foreign_flags import ForeignFlag, load_foreign_flags
from palladio.runtime.interface.flags.peer_flags import load_peer_flags
from palladio.runtime.interface.flags.sglang_flags import SglangFlag, load_sglang_flags

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PATH: Final = DOCS / "flags.md"
MIGRATING: Final = DOCS / "migrating"
SERVERS: Final = ("SGLang", "SGLang-JAX", "vLLM", "JetStream")
# Flags of a server without a file of its flags that it has under a name of ours, and that mean the same.
SAME: Final = {"JetStream": ("tokenizer_path", "port")}

HEAD = """# Flags

Flags of `palladio serve` and `python -m palladio.launch_server`. Write them with dashes or underscores, as
`--flag value` or `--flag=value`; the last one wins, and two names of one flag must have the same value. `make docs`
generates this page from the source.

You can give the model without a flag, first or after a `--flag=value`: `palladio serve MODEL` is the same as
`palladio serve --model-path MODEL`.

Aliases: `--model` for `--model-path`; `--tp` and `--tensor-parallel-size` for `--tp-size`; `--ep` and
`--expert-parallel-size` for `--ep-size`; `--dp` and `--data-parallel-size` for `--dp-size`. `--no-x` turns a switch
`--x` off. `--served-model-name`, `--api-key`, `--admin-api-key` and `--allowed-…` take several values. Many
[flags of other servers](#flags-of-other-servers) also work or name their replacement.

Integers may have a unit in `--context-length`, `--max-total-tokens`, `--max-prefill-tokens` and their other names:
`32k` is 32,000, `32K` is 32,768.

`--config FILE` reads flags from a YAML file, as SGLang and vLLM do: `name: value`, one a line, with dashes or
underscores; `true` and `false` for switches, a list for several values. A flag of the command line wins. Keys that are
unknown or doubled are errors with their line.
"""

FOREIGN = """
## Flags of other servers

You come from another server? These pages have each of its flags, and what it does here:
[SGLang](migrating/sglang.md), [SGLang-JAX](migrating/sglang-jax.md), [vLLM](migrating/vllm.md),
[JetStream](migrating/jetstream.md). `palladio migrate 'COMMAND'` prints the command that does the same here.
"""

START, END = "<!-- flags -->\n", "<!-- end of flags -->\n"


def own_tables() -> str:
    text = ""
    for group in dataclasses.fields(ServerArgs):
        docs = docstring_parser.parse(group.type.__doc__)  # type: ignore[union-attr, arg-type]
        meanings = {param.arg_name: " ".join((param.description or "").split()).rstrip(".") for param in docs.params}
        text += f"\n## {(docs.short_description or '').rstrip('.')}\n\n| Flag | Default | Meaning |\n|---|---|---|\n"
        for field in dataclasses.fields(group.type):  # type: ignore[arg-type]
            text += f"| `{option(field.name)}` | {shown(own_flags()[field.name])} | {cell(meanings[field.name])} |\n"
    return text


def foreign_tables(server: str) -> str:
    """Return the text between the marks of a server's page."""
    rows = [flag for flag in load_foreign_flags() if server in flag.of]
    parts = [
        *([same_as_sglang(), same(newer(server)), other_sglang()] if server == "SGLang" else others(server)),
        of_verdict(rows, "alias", "Flags with another name here", "The flag works, and sets"),
        of_verdict(rows, "sets", "Flags that stand for others", "The flag works, as"),
        of_verdict(rows, "accepted", "Flags without effect", "Accepted, because"),
        of_verdict(rows, "refused", "Flags that are refused", "The error says"),
    ]
    return "\n".join(part for part in parts if part)


def others(server: str) -> list[str]:
    """Tables of a server whose flags are not in SGLang's table, or in part."""
    names = set(declared(server))
    theirs = [flag for flag in load_sglang_flags() if {flag.name, *flag.aliases} & names]
    return [same(SAME.get(server) or newer(server)), other_sglang(theirs) if names else ""]


def declared(server: str) -> list[str]:
    """Names of a server's flags, by the file of them."""
    return list(dict.fromkeys(load_peer_flags().get(server, {})))


def newer(server: str) -> list[str]:
    """A server's flags that have a name of ours, and are not in the table of SGLang's flags on the same page."""
    table = {name for flag in load_sglang_flags() if flag.name in own_flags() for name in (flag.name, *flag.aliases)}
    ours = own_flags().keys() | table | {"config"}
    return [name for name in declared(server) if name in ours and not (server == "SGLang" and name in table)]


def same(names: Iterable[str]) -> str:
    text = "## Flags with the same name\n\nThey mean the same: [flags](../flags.md) describes them.\n\n"
    return text + ", ".join(f"`{option(name)}`" for name in names) + ".\n"


def same_as_sglang() -> str:
    rows = [flag for flag in load_sglang_flags() if flag.name in own_flags()]
    head = "| Flag | In SGLang | Default there | Default here |\n|---|---|---|---|\n"
    text = f"## Flags with the same meaning\n\n[Flags](../flags.md) has more about each.\n\n{head}"
    for row in rows:
        names = ", ".join(f"`{option(name)}`" for name in (row.name, *row.aliases))
        meaning = row.meaning + (f". Here: {row.reason}" if row.reason else "")
        text += f"| {names} | {cell(meaning)} | {shown(row.default)} | {shown(own_flags()[row.name])} |\n"
    return text


def other_sglang(flags: Iterable[SglangFlag] | None = None) -> str:
    rows = [flag for flag in flags or load_sglang_flags() if flag.name not in own_flags()]
    text = "## Other flags of SGLang\n\n| Flag | In SGLang | Here |\n|---|---|---|\n"
    return text + "".join(f"| `{row.option}` | {cell(row.meaning)} | {cell(fate(row))} |\n" for row in rows)


def fate(flag: SglangFlag) -> str:
    match flag.verdict:
        case "W":
            return f"accepted with a warning, no effect: {flag.reason}"
        case "E":
            return f"error: {flag.reason}"
        case _ if flag.always_on:
            return f"always on: {flag.always_on}"
        case _:
            reason = flag.reason or flag.feature
            hint = f" ({reason})" if reason else ""
            absent = flag.default is None or flag.default is False
            wanted = "an error if given" if absent else f"an error unless {flag.default!r}"
            return f"not supported yet, {wanted}{hint}"


def of_verdict(rows: Iterable[ForeignFlag], verdict: str, title: str, column: str) -> str:
    """One table; flags with the same fate share a row."""
    fates: dict[str, list[str]] = {}
    for flag in rows:
        if flag.verdict == verdict:
            here = cell(flag.here) if verdict in ("accepted", "refused") else works_as(flag)
            fates.setdefault(here, []).append(f"`{flag.option}`")
    text = "".join(f"| {', '.join(flags)} | {here} |\n" for here, flags in fates.items())
    return f"## {title}\n\n| Flag | {column} |\n|---|---|\n{text}" if text else ""


def works_as(flag: ForeignFlag) -> str:
    """What a flag sets, by its values where that depends on them."""
    words = f"`{option(flag.here)}`" if flag.verdict == "alias" else f"`{flag.here.replace('{}', 'N')}`"
    if flag.computed:
        words = "`--ep-size` of all devices; with several data-parallel ranks also `--enable-dp-attention`"
    found = [words] if flag.here or flag.computed else []
    found += [f"{value}: {f'`{there}`' if there else 'nothing'}" for value, there in (flag.values or {}).items()]
    if flag.otherwise:
        found.append(f"another value is an error: {flag.otherwise}")
    text = "; ".join(found) + (f". {flag.note}" if flag.note else "")
    return cell(text)


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def shown(default: Any) -> str:
    """A default as it is typed; "" if there is none."""
    if isinstance(default, float) and default.is_integer():
        return f"`{default:.0f}`"
    return "" if default in (None, "") else f"`{' '.join(default)}`" if isinstance(default, tuple) else f"`{default}`"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


def render() -> str:
    """docs/flags.md."""
    return HEAD + own_tables() + FOREIGN


def render_page(server: str) -> str:
    """A page of docs/migrating: its own text, with the tables brought up to date."""
    before, _, rest = page_of(server).read_text(encoding="utf-8").partition(START)
    return f"{before}{START}\n{foreign_tables(server)}\n{END}{rest.partition(END)[2]}"


def page_of(server: str) -> Path:
    return MIGRATING / f"{server.lower()}.md"


def main() -> None:
    PATH.write_text(render(), encoding="utf-8")
    for server in SERVERS:
        page_of(server).write_text(render_page(server), encoding="utf-8")


if __name__ == "__main__":
    main()
