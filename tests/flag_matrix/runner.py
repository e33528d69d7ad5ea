"""Runs a row of the flag matrix: starts `palladio serve` in a process of its own, sends one request, and compares."""

import dataclasses
import math
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx

from palladio.pallas_kernels.cpu_native.library import COMPILERS
from palladio.utils import terminate_process
from tests.flag_matrix.files import Folder
from tests.flag_matrix.rows import Row

PROMPT: Final = [3 + 101 * number % 380 for number in range(40)]
NUM_NEW: Final = 4
LIMITS: Final = (
    "--host 127.0.0.1 --skip-tokenizer-init --random-seed 0 --max-running-requests 2 --max-total-tokens 512 "
    "--context-length 256 --chunked-prefill-size 64"
)
LAZY: Final = "--compile lazy"  # of rows that are not about compiling
SECONDS: Final = 600.0  # for a row
PALLADIO: Final = (sys.executable, "-m", "palladio")
SERVE: Final = (*PALLADIO, "serve")
# Scripts in place of the compiler. One makes an object of the same arguments only once, for all rows; their folders of
# native code stay empty. The other leaves out most optimizations, which take half of its time.
KEEPS_OBJECTS: Final = """#!/usr/bin/env bash
set -euo pipefail
real={real} kept={kept} out="" key=""
case " $* " in *" -c "*) ;; *) exec "$real" "$@" ;; esac
words=("$@")
for ((i = 0; i < $#; i++)); do
  if [ "${{words[i]}}" = -o ]; then i=$((i + 1)); out=${{words[i]}}; else key+="${{words[i]}} "; fi
done
object=$kept/$(sha256sum <<<"$key" | cut -c1-16).o
if [ ! -f "$object" ]; then
  "$real" "$@"
  cp "$out" "$object.$$"
  mv "$object.$$" "$object"
fi
cp "$object" "$out"
"""
QUICK: Final = """#!/usr/bin/env bash
exec {real} "${{@/#-O3/-O1}}"
"""


class RowFailed(Exception):
    """A failed row; the message has the end of its log."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """
    Attributes:
        mean: log-probability of the prompt's tokens; None: the start was refused, as it ought to be.
        difference: of it and the usual one.
    """

    mean: float | None
    difference: float = 0.0


def compiler(folder: Path, script: str) -> Path:
    """A folder for PATH whose compiler is that of this machine, called by `script`; without a compiler it is empty.

    Args:
        folder: that does not exist.
        script: KEEPS_OBJECTS or QUICK.
    """
    (folder / "objects").mkdir(parents=True)
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is not None:
        path = folder / COMPILERS[0]
        path.write_text(script.format(real=found, kept=folder / "objects"))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


@dataclasses.dataclass(frozen=True)
class Runner:
    """
    Attributes:
        files: to serve.
        environment: of the servers, in place of ours.
        cache: --compilation-cache-dir of all rows, with the folder of native code; None: each row has an empty one.
        seconds: for a row.
    """

    files: Folder
    environment: Mapping[str, str]
    cache: Path | None = None
    seconds: float = SECONDS

    def usual(self, row: Row) -> float:
        """Return the number that a row is compared with: the mean log-probability by a server without its flags."""
        path = self.files.twin(row.file)
        return self._serve(path, row.usual, dataclasses.replace(row, flags=row.usual, compiles=False))

    def run(self, row: Row, usual: float) -> Outcome:
        """
        Raises:
            RowFailed: the server does not do what the row says.
        """
        path = self.files.path(row.file)
        if row.refused is not None:
            self._refuse(path, row, row.refused)
            return Outcome(None)
        mean = self._serve(path, row.flags, row)
        difference = abs(mean - usual)
        if not difference <= row.tolerance:
            raise RowFailed(f"mean log-probability {mean:.5f}, not {usual:.5f} ± {row.tolerance}")
        return Outcome(mean, difference)

    def _refuse(self, path: Path, row: Row, message: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*SERVE, *_words(path, row.flags, Path(folder)), "--port", "0"],
                env=self._environment(row),
                capture_output=True,
                text=True,
                timeout=self.seconds,
                check=False,
            )
        said = done.stdout + done.stderr
        if done.returncode == 0 or not re.search(f"^error: .*{message}", said, re.MULTILINE):
            raise RowFailed(f"exit status {done.returncode}, not an error that says {message!r}:\n{said[-1500:]}")

    def _serve(self, path: Path, flags: str, row: Row) -> float:
        with tempfile.TemporaryDirectory() as temporary:
            folder, environment = Path(temporary), self._environment(row)
            cache = self.cache or folder / "cache"
            flags = flags.format(programs=folder / "programs")
            if row.compiles:
                self._compile(_words(path, flags, folder / "cache of the compiling process"), environment)
            return self._ask(_words(path, flags, cache), environment, folder / "log")

    def _compile(self, words: list[str], environment: Mapping[str, str]) -> None:
        command = [*PALLADIO, "compile", *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=self.seconds, check=False
        )
        if done.returncode != 0:
            raise RowFailed(f"palladio compile: exit status {done.returncode}:\n{done.stderr[-1500:]}")

    def _environment(self, row: Row) -> dict[str, str]:
        flags = f"{self.environment.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={row.devices}"
        return {**self.environment, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}

    def _ask(self, words: list[str], environment: Mapping[str, str], log: Path) -> float:
        """The mean log-probability of the prompt."""
        port = _free_port()
        command = [*SERVE, *words, "--port", str(port)]
        with log.open("w") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        deadline = time.monotonic() + self.seconds
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=self.seconds) as client:
                while not _is_ready(client):
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RowFailed(f"the server did not start:\n{log.read_text()[-1500:]}")
                    time.sleep(0.1)
                return _mean_of(client, log)
        except httpx.TransportError as error:
            raise RowFailed(f"{error!r}:\n{log.read_text()[-1500:]}") from error
        finally:
            terminate_process(process)


def _words(path: Path, flags: str, cache: Path) -> list[str]:
    lazy = "" if "--compile " in f"{flags} " else LAZY
    usual = f"{LIMITS} {lazy}".split()
    return ["--model-path", str(path), *usual, "--compilation-cache-dir", str(cache), *flags.split()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def _mean_of(client: httpx.Client, log: Path) -> float:
    sampling = {"max_new_tokens": NUM_NEW, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": 0, "sampling_params": sampling}
    answer = client.post("/generate", json=body)
    if answer.status_code != 200:
        raise RowFailed(f"HTTP {answer.status_code} {answer.text[:600]}\n{log.read_text()[-1500:]}")
    found = answer.json()["meta_info"]
    _, *prompt = (value for value, *_ in found["input_token_logprobs"])
    new = [value for value, *_ in found["output_token_logprobs"]]
    if len(prompt) != len(PROMPT) - 1 or len(new) != NUM_NEW or not all(map(math.isfinite, (*prompt, *new))):
        raise RowFailed(f"log-probabilities of the prompt {prompt}, of new tokens {new}")
    return sum(prompt) / len(prompt)


def own_environment(tools: Path, **more: str) -> dict[str, str]:
    """Ours, with a folder of tools before all others."""
    return {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", **more}
