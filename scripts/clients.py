"""Real clients, as their users use them, against a server of ours: `make clients`.

clients.toml lists them. Each gets an environment of its own (a venv, or a folder with node_modules) under the user's
cache, and runs its file of client_checks/ there. Arguments are names of clients, as the table at the end shows them.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from running_server import running_server

from palladio.flags.default_model import DEFAULT_MODEL_NAME, default_model_path
from palladio.runtime.interface.config.user_dirs import user_cache_dir

HERE = Path(__file__).resolve().parent
CHECKS = HERE / "client_checks"
KEY = "a-key"
# The README's server: no flag here changes an answer. With a key, clients can be refused.
SERVER = f"python3 -m palladio serve --api-key {KEY} --fail-on-recompile --log-level warning"
CLIENT_SECONDS = 900.0  # of a client that starts eight servers, on a busy machine
OK, FAILED = "check ok: ", "check FAILED: "  # the lines of client_checks/checks.py and checks.mjs


@dataclass(frozen=True, slots=True)
class Client:
    """A row of clients.toml.

    Attributes:
        name: in the table.
        folder: of its environment, under the cache.
        packages: requirements with versions, of pip, or of npm for a script that ends in .mjs.
        script: in client_checks/.
        bare: packages that come without their dependencies.
        version_of: packages whose versions the table shows; default: the first one.
    """

    name: str
    folder: str
    packages: tuple[str, ...]
    script: str
    bare: tuple[str, ...] = ()
    version_of: tuple[str, ...] = ()

    @property
    def is_node(self) -> bool:
        return self.script.endswith(".mjs")

    @property
    def versions(self) -> str:
        shown = self.version_of or (package_name(self.packages[0]),)
        found = [requirement for requirement in self.packages if package_name(requirement) in shown]
        return ", ".join(f"{package_name(one)} {re.split('[=@]', one)[-1]}" for one in found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a client's checks: the names of those that passed, and the others with their errors."""

    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the server ends as well
    clients = chosen(read_clients(HERE / "clients.toml"), arguments)
    cache = user_cache_dir(os.environ)
    model_dir = default_model_path()
    folders: dict[str, Path] = {}
    outcomes: dict[str, Outcome] = {}
    for client in clients:
        try:
            folders[client.name] = install(client, cache / "clients", read_date(HERE / "clients.toml"))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:  # no npm, say
            outcomes[client.name] = Outcome(failed=(f"install: {error}",))
    with running_server(SERVER) as url:
        for client in clients:
            if client.name in folders:
                outcomes[client.name] = run_client(client, folders[client.name], url, model_dir)
    return report(clients, outcomes)


def read_clients(path: Path) -> list[Client]:
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["client"]
    return [
        Client(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
        for row in rows
    ]


def read_date(path: Path) -> str:
    """Before which whatever is installed was released."""
    return str(tomllib.loads(path.read_text(encoding="utf-8"))["released_before"])


def chosen(clients: Sequence[Client], names: Sequence[str]) -> list[Client]:
    """Return the clients with these names; all clients without any names."""
    unknown = set(names) - {client.name for client in clients}
    if unknown:
        known = ", ".join(repr(client.name) for client in clients)
        raise SystemExit(f"error: no client is named {', '.join(sorted(unknown))}; there are {known}")
    return [client for client in clients if not names or client.name in names]


def package_name(requirement: str) -> str:
    """`openai[aiohttp]==1.0` → openai, `@ai-sdk/x@1.0` → @ai-sdk/x."""
    return re.split(r"[\[=<>]|(?<!^)@", requirement)[0]


def install(client: Client, root: Path, before: str) -> Path:
    """The client's environment, made anew where its packages or the date have changed."""
    folder, wanted = root / client.folder, json.dumps([client.packages, client.bare, before])
    stamp = folder / "installed.json"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return folder
    print(f"installing {client.versions} in {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if client.is_node:
        npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", f"--before={before}", "--prefix", str(folder)]
        subprocess.run([*npm, *client.packages], cwd=folder, check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        # The pip of this environment, which is locked: that of a new one may be too old to know dates.
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(folder / "bin" / "python")]
        pip += ["install", f"--uploaded-prior-to={before}"]
        bare = [requirement for requirement in client.packages if package_name(requirement) in client.bare]
        subprocess.run([*pip, *(one for one in client.packages if one not in bare)], check=True)
        if bare:
            subprocess.run([*pip, "--no-deps", *bare], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return folder


def run_client(client: Client, folder: Path, url: str, model_dir: Path) -> Outcome:
    """Runs the client's script, which prints a line for each check."""
    print(f"\n{client.name}: {client.versions}", flush=True)
    environment = os.environ | {
        "PALLADIO_URL": url,
        "PALLADIO_KEY": KEY,
        "PALLADIO_MODEL": DEFAULT_MODEL_NAME,
        "PALLADIO_MODEL_DIR": str(model_dir),
        "PALLADIO_SERVE": serve_command(),  # of checks that start servers of their own
        "OPENAI_API_KEY": KEY,  # of clients that take it from there
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.pop("PYTHONPATH", None)
    script = CHECKS / client.script
    if client.is_node:  # modules are looked for beside the script, so it has to lie beside node_modules
        for file in CHECKS.glob("*.mjs"):
            shutil.copy(file, folder)
        command = ["node", str(folder / client.script)]
    else:
        command = [str(folder / "bin" / "python"), str(script)]
    log = folder / f"{Path(client.script).stem}.log"
    with log.open("w", encoding="utf-8") as file:
        try:
            code = subprocess.run(
                command, cwd=folder, env=environment, stdout=file, stderr=file, timeout=CLIENT_SECONDS, check=False
            ).returncode
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            code = None
            file.write(f"\n{FAILED}run: {error}\n")
    outcome = read_outcome(log.read_text(encoding="utf-8", errors="replace"), code)
    for name in outcome.passed:
        print(f"  ok      {name}")
    for line in outcome.failed:
        print(f"  FAILED  {line}")
    if outcome.failed:
        print(f"  ({shlex.join(command)}: all that it wrote is in {log})", flush=True)
    return outcome


def serve_command() -> str:
    """Return the command that starts this tree's server from another environment."""
    path = os.environ.get("PYTHONPATH", "")
    return shlex.join(["env", f"PYTHONPATH={path}", sys.executable, "-m", "palladio", "serve"])


def read_outcome(text: str, code: int | None) -> Outcome:
    """From the output of a client's script and its exit code; None: it did not end by itself."""
    passed = tuple(line.removeprefix(OK) for line in text.splitlines() if line.startswith(OK))
    failed = tuple(line.removeprefix(FAILED) for line in text.splitlines() if line.startswith(FAILED))
    if not failed and (code != 0 or not passed):
        last = text.strip().splitlines()[-1:] or ["nothing was written"]
        failed = (f"run: exit code {code}, {len(passed)} checks: {last[0][:300]}",)
    return Outcome(passed, failed)


def report(clients: Sequence[Client], outcomes: dict[str, Outcome]) -> int:
    """Prints the table; returns the exit code."""
    print(f"\n{'client':27}{'version':48}{'checks':>7}  result")
    for client in clients:
        outcome = outcomes[client.name]
        result = f"FAILED: {outcome.failed[0][:100]}" if outcome.failed else "passed"
        print(f"{client.name:27}{client.versions:48}{len(outcome.passed) + len(outcome.failed):>7}  {result}")
    failed = any(outcome.failed for outcome in outcomes.values())
    print("clients: FAILED" if failed else "clients: passed")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
