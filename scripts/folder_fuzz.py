"""Damages model folders and starts on them; prints what ended in anything but an answer or an error with one line."""

import argparse
import collections
import contextlib
import logging
import os
import resource
import secrets
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["JAX_PLATFORMS"] = "cpu"

import transformers  # noqa: E402, F401 (once, before the processes of all damages)

from palladio.commands.models.list_models import describe_problem  # noqa: E402
from palladio.http.prompts.template_format import TemplateFacts  # noqa: E402
from palladio.model.config.config import ModelConfig, read_model_dir  # noqa: E402
from palladio.model.loading.orbax_weights import convert  # noqa: E402
from palladio.model.loading.stored_config import agree_with_weights  # noqa: E402
from palladio.model.pooling.pooling_files import read_pooling  # noqa: E402
from palladio.model.pooling.text_settings import TextSettings  # noqa: E402
from palladio.runtime.front.offline.offline_engine import Engine  # noqa: E402
from palladio.runtime.interface.config.model_source import ModelSource  # noqa: E402
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError  # noqa: E402
from palladio.runtime.multihost.config_digest import model_hash  # noqa: E402
from palladio.runtime.text.hub.hub import read_sampling_defaults, resolve_source  # noqa: E402
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer  # noqa: E402
from tests.damaged_folders import make_folders, pick  # noqa: E402

SECONDS, WALL_SECONDS = 10, 120  # of CPU time; a pipe that is read from takes none
ENGINE_SECONDS = 60  # of CPU time, most of which compiles another model's programs
MOST_BYTES = 2 << 30
SHARE = 20  # of so many folders whose model is unharmed, one answers a request
KINDS = ("plain", "divided", "awq", "gguf", "converted")
FLAGS = {
    "device": "cpu",
    "dtype": "float32",
    "compile": "lazy",
    "max_running_requests": 1,
    "max_total_tokens": 128,
    "context_length": 64,
    "chunked_prefill_size": 16,
}
REFUSED, READ, ANSWERED = 0, 10, 11  # exit codes of a damage's process


def main() -> int:
    """Returns the exit code: 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, default=secrets.randbelow(2**31), help="repeats a run")
    parser.add_argument("--count", type=int, default=2000, help="damages (2000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (0)")
    parser.add_argument("--only", type=int, help="this one, with its traceback")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="of folders")
    parser.add_argument("--no-engine", action="store_true", help="read the folders, and answer no request")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="palladio-folder-fuzz-") as name:
        root = Path(name)
        folders = make_folders(root)
        if "converted" in args.kinds:
            out = root / "converted"
            folders["converted"] = _in_process(lambda: _convert(folders["plain"], out), out)
        folders = {kind: folders[kind] for kind in args.kinds}
        found = Fuzz(folders, args.seed, root, has_engine=not args.no_engine)
        numbers = range(args.first, args.first + args.count) if args.only is None else [args.only]
        begun, outcomes = time.monotonic(), collections.Counter[str]()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for number, text, verdict, said in pool.map(found.run, numbers):
                outcomes[verdict] += 1
                if verdict not in ("refused", "read", "answered") or args.only is not None:
                    print(f"{verdict}: {args.seed} --only {number}: {text}\n{said}", flush=True)
    print(f"{dict(sorted(outcomes.items()))} in {time.monotonic() - begun:.0f} s")
    return int(not set(outcomes) <= {"refused", "read", "answered"})


class Fuzz:
    """Runs each damage in a process of its own, forked before jax has begun."""

    def __init__(self, folders: Mapping[str, Path], seed: int, root: Path, *, has_engine: bool) -> None:
        self._folders, self._seed, self._root, self._has_engine = folders, seed, root, has_engine
        self._fork_lock = threading.Lock()
        self._whole = {kind: _read(path) for kind, path in folders.items()}

    def run(self, number: int) -> tuple[int, str, str, str]:
        """Number, what was done, verdict, and what the process said."""
        place = self._root / f"damaged-{number}"
        kind, path, text = pick(self._folders, self._seed, number, place)
        log = self._root / f"log-{number}"
        with self._fork_lock:  # filelock forbids two forks at once
            child = os.fork()
        if child == 0:
            self._child(kind, path, number, log)
        verdict = _wait(child)
        said = log.read_text(errors="replace") if log.exists() else ""
        shutil.rmtree(place)
        log.unlink(missing_ok=True)
        if verdict == "refused" and (len(said.splitlines()) > 1 or "Traceback" in said or len(said) > 3000):
            verdict = "MANY LINES"
        return number, text, verdict, said[-6000:]

    def _child(self, kind: str, path: Path, number: int, log: Path) -> None:
        """Never returns."""
        code = 1
        try:
            logging.disable(logging.CRITICAL)
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for descriptor in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)  # a library's last words; ours come from `report`
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            try:
                describe_problem(path)
                config = _read(path)
                code = READ
                if self._has_engine and (config != self._whole[kind] or number % SHARE == 0):
                    resource.setrlimit(resource.RLIMIT_CPU, (ENGINE_SECONDS, resource.RLIM_INFINITY))
                    _answer(self._folders[kind], path, self._root)
                    code = ANSWERED
            except (ConfigError, InvalidRequestError) as error:  # an engine that is dead is no refusal
                os.write(out, str(error).encode())
                code = REFUSED
            except BaseException:  # noqa: BLE001 (also Rust's panics)
                code = 1
                os.write(out, traceback.format_exc().encode(errors="replace"))
        finally:
            os._exit(code)


def _read(path: Path) -> ModelConfig:
    """Read a folder as the front and the engine do."""
    source = resolve_source(ModelSource(model_path=str(path)))
    folder = Path(source.model_path)
    read_sampling_defaults(folder)
    tokenizer = Tokenizer.load(folder)
    templates = tokenizer.chat_template
    for text in templates.values() if isinstance(templates, dict) else [templates] if templates else []:
        TemplateFacts.of(text)
    with contextlib.suppress(InvalidRequestError):
        tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "Hello, aaaaaaaa!"}]))
    tokenizer.decode(tokenizer.encode("Hello, world! aaaaaaaaaaaaaaaaaaaaaaaaa 123 \u00e9"))
    read_pooling(folder)
    TextSettings.of(folder)
    config = ModelConfig.from_hf(*read_model_dir(folder))
    agreed = agree_with_weights(folder, config, "auto")
    model_hash(source)
    return agreed


def _answer(whole: Path, path: Path, root: Path) -> None:
    """A start and one answer; then an update to the damaged folder of an engine that has the whole one."""
    flags = FLAGS | {"compilation_cache_dir": str(root / "programs")}
    with Engine(model_path=path, **flags) as engine:
        assert "text" in engine.generate("Hello", {"max_new_tokens": 2, "ignore_eos": True})
    if path.is_dir() and whole.is_dir() and not (whole / "parameters").is_dir():
        with Engine(model_path=whole, **flags) as engine:
            with contextlib.suppress(InvalidRequestError):
                engine.update_weights_from_disk(path)
            assert "text" in engine.generate("Hello", {"max_new_tokens": 2})


def _convert(source: Path, out: Path) -> None:
    config = agree_with_weights(source, ModelConfig.from_hf(*read_model_dir(source)), "safetensors")
    convert(source, out, config, "float32", lambda *_: None)


def _in_process(work: Callable[[], None], result: Path) -> Path:
    """Done in a process of its own: jax must not begin in this one."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 (told by the exit code)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, "it failed"
    return result


def _wait(child: int) -> str:
    begun = time.monotonic()
    for pause in _pauses():
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if _resident(child) > MOST_BYTES or time.monotonic() - begun > WALL_SECONDS:
            too_large = _resident(child) > MOST_BYTES
            os.kill(child, 9)
            os.waitpid(child, 0)
            return "TOO LARGE" if too_large else "HANGS"
        time.sleep(pause)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "TOO SLOW" if number in (24, 9) else f"SIGNAL {number}"
    names = {REFUSED: "refused", READ: "read", ANSWERED: "answered"}
    return names.get(os.WEXITSTATUS(status), "TRACEBACK")


def _pauses() -> Iterator[float]:
    pause = 0.005
    while True:
        yield pause
        pause = min(0.1, pause * 1.3)


def _resident(child: int) -> int:
    try:
        return int(Path(f"/proc/{child}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
