"""Writes docs/flags.md: every flag of the launch command, from the docstrings of the configs and the flag tables.

python scripts/gen_flag_docs.py
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import docstring_parser

from palladio.runtime.interface.foreign_flags import ForeignFlag, load_foreign_flags
from palladio.runtime.interface.sglang_flags import SglangFlag, load_sglang_flags
from palladio.server_args import ServerArgs, own_flags

PATH = Path(__file__).resolve().parent.parent / "docs" / "flags.md"

HEAD = """# Flags

Flags of `palladio serve` and `python -m palladio.launch_server`. Write them with dashes or underscores, as
`--flag value` or `--flag=value`; the last one wins. `make docs` generates this page from the source.

You can give the model without a flag, first or after a `--flag=value`: `palladio serve MODEL` is the same as
`palladio serve --model-path MODEL`.

Aliases: `--model` for `--model-path`; `--tp` and `--tensor-parallel-size` for `--tp-size`; `--ep` and
`--expert-parallel-size` for `--ep-size`; `--dp` and `--data-parallel-size` for `--dp-size`. `--no-x` turns a switch
`--x` off. `--served-model-name`, `--api-key`, `--admin-api-key` and `--allowed-…` take several values. Many
[flags of other servers](#flags-of-other-servers) also work or name their replacement.
"""

FOREIGN = """
## SGLang's other flags

Other flags of SGLang's launch command, and what they do in Palladio:

| Flag | In SGLang | In Palladio |
|---|---|---|
"""

OTHERS = """
## Flags of other servers

Flags of vLLM, of JetStream and its engines, and newer flags of SGLang. `*` matches any suffix.

| Flag | Server | In Palladio |
|---|---|---|
"""


def own_tables() -> str:
    text = ""
    for group in dataclasses.fields(ServerArgs):
        docs = docstring_parser.parse(group.type.__doc__)  # type: ignore[union-attr, arg-type]
        meanings = {param.arg_name: " ".join((param.description or "").split()).rstrip(".") for param in docs.params}
        text += f"\n## {(docs.short_description or '').rstrip('.')}\n\n| Flag | Default | Meaning |\n|---|---|---|\n"
        for field in dataclasses.fields(group.type):  # type: ignore[arg-type]
            text += f"| `{option(field.name)}` | {shown(own_flags()[field.name])} | {cell(meanings[field.name])} |\n"
    return text


def foreign_table() -> str:
    rows = [flag for flag in load_sglang_flags() if flag.name not in own_flags()]
    return FOREIGN + "".join(f"| `{row.option}` | {cell(row.meaning)} | {cell(fate(row))} |\n" for row in rows)


def fate(flag: SglangFlag) -> str:
    match flag.verdict:
        case "W":
            return f"accepted with a warning, no effect: {flag.reason}"
        case "E":
            return f"error: {flag.reason}"
        case _ if flag.always_on:
            return f"always on: {flag.always_on}"
        case _:
            hint = f" ({flag.reason})" if flag.reason else ""
            absent = flag.default is None or flag.default is False
            wanted = "an error if given" if absent else f"an error unless {flag.default!r}"
            return f"not supported yet, {wanted}{hint}"


def others_table() -> str:
    def same(flag: ForeignFlag) -> tuple[str, str, str]:
        return flag.of, flag.verdict, flag.here

    text = OTHERS
    for (of, verdict, here), group in itertools.groupby(load_foreign_flags(), same):
        fates = {
            "alias": f"alias of `{option(here)}`",
            "accepted": f"accepted, no effect: {here}",
            "refused": f"error: {here}",
        }
        text += f"| {', '.join(f'`{flag.option}`' for flag in group)} | {of} | {cell(fates[verdict])} |\n"
    return text


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def shown(default: Any) -> str:
    return "" if default is None else f"`{' '.join(default)}`" if isinstance(default, tuple) else f"`{default}`"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


def render() -> str:
    return HEAD + own_tables() + foreign_table() + others_table()


def main() -> None:
    PATH.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
