"""The commands, in the order in which the help lists them. Imports nothing that takes time."""

from typing import Final, NamedTuple


class Command(NamedTuple):
    """Attributes:
    module, function: what runs it, imported when it is needed: signal handlers are set before that.
    summary: a line of the help. usage: what follows the command's name.
    takes_serve_flags: it takes the flags of `serve` in addition to its own.
    """

    group: str
    usage: str
    summary: str
    module: str
    function: str
    takes_serve_flags: bool = False


_ROOM = "palladio.commands"
_START, _ANSWER, _MODELS, _CHECK = "start here", "many answers", "models", "this machine"
COMMANDS: Final = {
    "run": Command(_START, "[MODEL]", "chat with a model in this terminal", f"{_ROOM}.chat.run", "run", True),
    "serve": Command(
        _START,
        "[MODEL]",
        "serve a model with OpenAI's API (MODEL: smollm2, hub id or directory; default: a tiny one)",
        "palladio.server.launch",
        "launch",
        True,
    ),
    "chat": Command(
        _START, "--base-url URL", "chat in this terminal with a server that runs", f"{_ROOM}.chat.chat", "chat"
    ),
    "doctor": Command(
        _START,
        "",
        "find out what is wrong with this machine, and what to type",
        f"{_ROOM}.doctor.doctor",
        "doctor",
        takes_serve_flags=True,
    ),
    "migrate": Command(
        _START,
        "'COMMAND'",
        "another server's launch command, as the one that does the same here",
        f"{_ROOM}.migrate",
        "migrate",
    ),
    "batch": Command(
        _ANSWER,
        "FILE -o OUT",
        "answer the requests of a file without a server; goes on after a kill",
        f"{_ROOM}.batch",
        "batch",
        True,
    ),
    "bench": Command(_ANSWER, "--base-url URL", "measure a server under load, up to an SLO", f"{_ROOM}.bench", "bench"),
    "eval": Command(
        _ANSWER,
        "--perplexity FILE",
        "perplexity of a text, or lm-eval's tasks (--tasks), in this process",
        f"{_ROOM}.eval.evaluate",
        "evaluate",
        True,
    ),
    "pull": Command(
        _MODELS, "MODEL", "download a model: smollm2, or a repository of the hub", f"{_ROOM}.models.pull", "pull"
    ),
    "list": Command(
        _MODELS,
        "",
        "list the models of the local cache, and which can be served",
        f"{_ROOM}.models.list_models",
        "list_models",
    ),
    "convert": Command(
        _MODELS, "HF_DIR OUT", "write a model's weights as an Orbax checkpoint", f"{_ROOM}.offline.convert", "convert"
    ),
    "migrate-storage": Command(
        _MODELS,
        "--database-url URL",
        "copy a server's records of files, batches and responses from SQLite to PostgreSQL",
        f"{_ROOM}.migrate_storage",
        "migrate_storage",
    ),
    "plan": Command(
        _MODELS,
        "[MODEL]",
        "memory needs and speed limits on hardware that you do not have",
        f"{_ROOM}.plan.plan",
        "plan",
        True,
    ),
    "compile": Command(
        _CHECK,
        "[MODEL]",
        "build the programs of `serve` with the same flags ahead of its start",
        f"{_ROOM}.offline.compile_programs",
        "compile_programs",
        True,
    ),
    "tune": Command(
        _CHECK,
        "",
        "measure this machine's CPU, so that `serve` chooses the fastest products",
        f"{_ROOM}.offline.tune",
        "tune",
    ),
    "replay": Command(
        _CHECK,
        "DUMP",
        "run the requests of a crash dump again, and compare their tokens",
        f"{_ROOM}.replay",
        "replay",
        True,
    ),
    "completion": Command(
        _CHECK,
        "bash|zsh|fish",
        "print the shell's completion of these commands and flags",
        "palladio.cli.completion",
        "completion",
    ),
}
OTHERS: Final = {"version": "print the version", "help": "print this"}


def render_help() -> str:
    """The text of `palladio help`."""
    lines = ["usage: palladio <command> [arguments]", ""]
    group = ""
    for name, command in COMMANDS.items():
        if command.group != group:
            lines += ["", f"{command.group}:"] if group else [f"{command.group}:"]
            group = command.group
        lines.append(f"  {f'{name} {command.usage}'.rstrip():<24} {command.summary}")
    lines += [f"  {name:<24} {summary}" for name, summary in OTHERS.items()]
    return "\n".join(
        [
            *lines,
            "",
            "`palladio <command> --help` has flags, examples and exit codes. Commands end with 0 when all went well, 1",
            "when something failed, 2 for a wrong flag, name or file, 75 when another process has the TPU or GPU, and",
            "130 after Ctrl-C.",
            "",
        ]
    )
