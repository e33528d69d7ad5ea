"""`palladio batch FILE -o OUT`: answers the requests of a file, without a server; goes on after a kill."""

import argparse
import asyncio
import contextlib
import dataclasses
import shutil
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from palladio.cli.parsing import make_parser
from palladio.flags.gpu_memory import gpu_memory
from palladio.flags.server_args import ServerArgs
from palladio.http.app import create_app, create_observer
from palladio.http.batches.batch import LIVE, Batch
from palladio.http.batches.batch_store import BatchStore
from palladio.http.batches.batch_worker import BatchWorker
from palladio.http.batches.offline_file import OfflineFile, Requests
from palladio.http.files.file_store import FileStore
from palladio.http.server import ServableEngine
from palladio.http.storage.storage import Storage
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.errors import ConfigError, EngineDeadError, PalladioError
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.server.launch import read_command, report_error

_POLL = 0.2  # seconds between looks at how far it is
_LINE_INTERVAL = 10.0  # seconds between two lines, where there is no terminal for a bar


def parser() -> argparse.ArgumentParser:
    found = make_parser(
        "batch",
        "Answers each line of FILE, a request as of OpenAI's batches, and writes the answers to OUT.",
        [
            "palladio batch requests.jsonl -o answers.jsonl",
            "palladio batch requests.jsonl -o answers.jsonl --model-path Qwen/Qwen3-0.6B --tp-size 4",
            "palladio batch requests.jsonl -o answers.jsonl     # the same again after a kill: goes on",
        ],
        {
            1: "some lines failed (they are in the error file), or the engine did: the same command goes on",
            75: "another process has the device",
        },
        usage="palladio batch FILE -o OUT [flags] [flags of `palladio serve`]",
        more="Until the end, all that is done is in OUT.state. Each line's answer is kept as soon as it is there, and "
        "no line\nis answered twice.",
    )
    found.add_argument("file", metavar="FILE", type=Path, help="requests, a JSON object a line; comes first")
    found.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help="answers, in the lines' order")
    found.add_argument("--errors", metavar="FILE", type=Path, help="lines that failed (default: OUT.errors)")
    found.add_argument("--state", metavar="DIR", type=Path, help="what is done so far (default: OUT.state)")
    found.add_argument("--overwrite", action="store_true", help="replace an OUT that is there")
    return found


def batch(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    paths, flags = parser().parse_known_args(argv)
    work = _Work.of(paths)
    try:
        work.check(overwrite=paths.overwrite)
        requests = Requests.read(work.file)
        args = read_command(["--log-level=warning", *flags], environment)
        ended = asyncio.run(run_batch(work, requests, args, _engine(args, environment)))
    except (OSError, sqlite3.Error) as error:
        return report_error(EngineDeadError(f"{error}; the same command goes on once there is room"))
    except PalladioError as error:
        return report_error(error)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on", file=sys.stderr)
        return 130
    return _report(ended, work)


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """The command's paths."""

    file: Path
    output: Path
    errors: Path
    state: Path

    @classmethod
    def of(cls, paths: argparse.Namespace) -> "_Work":
        def default(suffix: str) -> Path:
            return Path(f"{paths.output}{suffix}")

        return cls(paths.file, paths.output, paths.errors or default(".errors"), paths.state or default(".state"))

    def check(self, *, overwrite: bool) -> None:
        """
        Raises:
            ConfigError: there is nothing to read, or something that would be lost.
        """
        if not self.file.is_file():
            hint = "a directory" if self.file.is_dir() else "no such file"
            hint = "FILE comes first: palladio batch FILE -o OUT" if str(self.file).startswith("-") else hint
            raise ConfigError(f"FILE {self.file}: {hint}")
        if self.output.exists() and not overwrite:
            raise ConfigError(f"-o {self.output} is there already: give another name, or --overwrite")
        if not self.output.absolute().parent.is_dir():
            raise ConfigError(f"-o {self.output}: there is no such directory")


def _engine(args: ServerArgs, environment: Mapping[str, str]) -> ServableEngine:
    return AsyncEngine(args.engine_config(), ProcessTransport(environment=gpu_memory(environment)))


async def run_batch(work: _Work, requests: Requests, args: ServerArgs, engine: ServableEngine) -> Batch:
    """Answers all lines, and writes the files of results.

    Raises:
        ConfigError: a flag, or the state folder is of something else.
        EngineDeadError: it could not start, or has failed for good.
        OSError, sqlite3.Error: such as a full disk.
    """
    http = dataclasses.replace(args.http, max_batch_lines=max(args.http.max_batch_lines, requests.num_lines))
    with contextlib.ExitStack() as at_end:
        storage = Storage(work.state)
        at_end.callback(storage.close)
        observer = create_observer(engine, http, args.observability)
        at_end.callback(observer.close)
        app = create_app(engine, http, args.observability, observer, storage)
        worker: BatchWorker = app.state.batch_worker
        files, store = FileStore(storage.database, storage.blobs), BatchStore(storage.database)
        offline = OfflineFile(files, store, requests, args.source.model_path)
        begun = await offline.find_or_create()
        if begun.status in LIVE:
            await engine.start()
            try:
                await engine.wait_ready()
                await worker.start()
                begun = await _follow(offline, begun, engine)
            finally:
                await worker.stop()
                await engine.shutdown(0.0)
        await offline.write_results(begun, work.output, work.errors)
    shutil.rmtree(work.state, ignore_errors=True)
    return begun


async def _follow(offline: OfflineFile, begun: Batch, engine: ServableEngine) -> Batch:
    """Shows how far it is, until the batch has ended."""
    draws, last_line = sys.stderr.isatty(), time.monotonic()
    goes_on = begun.status != "validating"  # a new one has that status
    columns, rows = shutil.get_terminal_size()
    bar: tqdm[Any] | None = None
    try:
        while begun.status in LIVE:
            if engine.state == "dead":
                raise EngineDeadError(f"{engine.failure}; the same command goes on")
            done = begun.completed + begun.failed
            if begun.total and bar is None:
                bar = tqdm(
                    *(), total=begun.total, initial=done, desc="Answering", unit=" lines", ncols=columns, nrows=rows,
                    disable=not draws,
                )  # fmt: skip
                if goes_on:
                    print(f"Going on: {done} of {begun.total} lines are done", file=sys.stderr, flush=True)
            if bar is not None:
                bar.update(done - bar.n)
                bar.set_postfix(failed=begun.failed, refresh=False)
            if not draws and time.monotonic() - last_line > _LINE_INTERVAL:
                last_line = time.monotonic()
                print(f"{done} of {begun.total} lines, {begun.failed} failed", file=sys.stderr, flush=True)
            await asyncio.sleep(_POLL)
            begun = await offline.get(begun.id)
        if bar is not None:
            bar.update(begun.completed + begun.failed - bar.n)
    finally:
        if bar is not None:
            bar.close()
    return begun


def _report(ended: Batch, work: _Work) -> int:
    if ended.status == "failed":
        print(f"error: FILE {work.file}: {ended.errors}", file=sys.stderr)
        return 2
    usage = f"{ended.input_tokens} tokens in, {ended.output_tokens} out"
    print(f"{ended.completed} of {ended.total} lines answered ({usage}): {work.output}")
    if ended.error_file_id is not None:
        print(f"{ended.total - ended.completed} failed: {work.errors}", file=sys.stderr)
        return 1
    return 0
