"""Minutes from `git clone` to the embedded model's first answer, with cold and with warm caches.

    python benchmarks/serving/first_answer.py [--json out.json]

cold: a home folder in which nothing is, so pip fetches every wheel and all programs are compiled. warm: another clone
with the same home folder, so wheels and programs are there. again: `make serve` once more in that clone, which installs
nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the repository, for the other rooms


import openai

from benchmarks.support.report import report
from benchmarks.support.server_process import exit_on_sigterm, free_port, provenance
from palladio.utils import terminate_process

ROOT = Path(__file__).resolve().parents[2]
QUESTION = "List 3 countries and their capitals."


def first_answer(source: str, clone: Path, home: Path, limit: float) -> dict[str, Any]:
    """Seconds from the start until cloned, installed and answered; and the answer. A `clone` that is there is used."""
    start = time.perf_counter()
    if not clone.is_dir():
        subprocess.run(["git", "clone", "--quiet", source, str(clone)], check=True)
    seconds = {"cloned": time.perf_counter() - start}
    port = free_port()
    # What names the caches of this very machine is left out: they are to be those of `home`.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PALLADIO_", "XDG_", "JAX_"))}
    environment = kept | {"HOME": str(home), "PYENV_ROOT": os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))}
    with (home / "log").open("w") as log:
        command = ["make", "serve", f"PORT={port}"]
        process = subprocess.Popen(
            command, cwd=clone, env=environment, stdout=log, stderr=log, text=True, start_new_session=True
        )
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="None", max_retries=0, timeout=limit)
    try:
        while (answer := _ask(client)) is None:
            passed = time.perf_counter() - start
            if "installed" not in seconds and (clone / ".venv" / ".installed").exists():
                seconds["installed"] = passed
            if process.poll() is not None or passed > limit:
                raise RuntimeError(f"no answer after {passed:.0f} s; the log ends with:\n{_end_of(home / 'log')}")
            time.sleep(0.1)
        seconds["answered"] = time.perf_counter() - start
    finally:
        terminate_process(process)
    return {"seconds": {name: round(value, 1) for name, value in seconds.items()}, "answer": answer}


def _ask(client: openai.OpenAI) -> str | None:
    """Ask for an answer; None: no server answers yet."""
    try:
        model = client.models.list().data[0].id
        messages: Any = [{"role": "user", "content": QUESTION}]
        done = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=64)
    except (openai.APIConnectionError, openai.InternalServerError):
        return None
    answer: str | None = done.choices[0].message.content  # an overloaded call with an Any is Any
    return answer


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", default=str(ROOT), help="what is cloned; default: this repository")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that one turn may take")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    exit_on_sigterm()
    turns = {}
    with tempfile.TemporaryDirectory() as folder:
        home, first, second = (Path(folder) / name for name in ("home", "first", "second"))
        home.mkdir()
        for name, clone in (("cold", first), ("warm", second), ("again", second)):
            turns[name] = first_answer(args.source, clone, home, args.limit)
    report("serving/first_answer.py", argv, provenance() | turns, args.json)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as failure:
        sys.exit(f"error: {failure}")
