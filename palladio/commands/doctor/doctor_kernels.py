"""`palladio doctor --kernels`: tries the kernels of a model on this machine, then its weights and a first answer, and
writes a report for a bug report."""

import dataclasses
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from palladio.commands.doctor.doctor_checks import redact
from palladio.flags.default_model import default_model_path
from palladio.flags.gpu_memory import gpu_memory
from palladio.flags.server_args import names_model, parse_server_args
from palladio.processes.child import python_path
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError

REPORT: Final = "palladio-kernels.json"
_MOST_PROCESSES: Final = 12  # each but the last ended in a trial
_COMMAND: Final = [sys.executable, "-P", "-m", "palladio.commands.doctor.kernels_worker"]
_PATH: Final = re.compile(r"(?:~|(?<![\w/]))(?:/[\w.@+~-]+){2,}/?")
_FLAGS: Final = (  # that decide kernels and shapes; none of them names a file
    *("attention_backend", "cpu_kernels", "kernel_check", "device", "dtype", "kv_cache_dtype", "quantization"),
    *("page_size", "context_length", "max_running_requests", "chunked_prefill_size", "max_total_tokens"),
    *("tp_size", "dp_size", "ep_size", "nnodes", "enable_dp_attention", "deterministic", "speculative_algorithm"),
)
_VARIABLES: Final = ("JAX_PLATFORMS", "XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclasses.dataclass(frozen=True, slots=True)
class KernelReport:
    """What was found.

    Attributes:
        facts: device, versions, data sheet and model, as the worker prints them; empty: no process came so far.
        results: of each kernel, its verdict and figures.
        weights: what was read back of the weights; empty: the process did not come so far.
        answer: how the first answer compares; empty: as above.
        failure: why the checks are incomplete; empty: they are not.
    """

    facts: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    answer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failure: str = ""

    @property
    def works(self) -> bool:
        """Whether every kernel works, and weights and answer are right."""
        kernels = all(one["verdict"]["outcome"] == "ok" for one in self.results)
        return kernels and not self.failure and not self.problems

    @property
    def problems(self) -> list[str]:
        """What is wrong with weights and answer."""
        wrong = self.weights.get("outcome") == "wrong", self.answer.get("outcome") == "differs"
        return [str(one["text"]) for one, is_wrong in zip((self.weights, self.answer), wrong, strict=True) if is_wrong]

    def notes(self) -> Iterator[str]:
        """Return a line for weights and one for the answer, of what is right or could not be looked at."""
        match self.weights:
            case {"outcome": "ok", "bytes": num_bytes}:
                yield f"weights: samples of {num_bytes / 2**30:.2f} GiB, read back from devices, are as in the files"
            case {"outcome": "unread", "text": text}:
                yield f"weights: not read back: {text}"
        match self.answer:
            case {"outcome": "ok", "differences": differences, "bound": bound, "portable": portable}:
                mean = sum(differences) / len(differences)
                yield f"first answer: as {portable} gives it: log-probabilities {mean:.2g} apart, bound {bound:g}"
            case {"outcome": "not compared", "text": text}:
                yield f"first answer: not compared: {text}"

    def table(self) -> Iterator[str]:
        """Return the lines of a table: a line for each case of a kernel that works, one for each other kernel."""
        head = ("kernel", "shapes", "error", "ms", "GB/s", "memory", "matrix")
        rows = [head]
        for result in self.results:
            verdict = result["verdict"]
            if verdict["outcome"] != "ok":
                rows.append((verdict["kernel"], verdict["case"], verdict["outcome"], "", "", "", ""))
            error = "" if verdict["error"] is None else f"{verdict['error']:.1e}"
            name, all_figures = verdict["kernel"], result["figures"]
            rows.extend((name, figures["case"], error, *self._speed(figures)) for figures in all_figures)
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    def _speed(self, figures: Mapping[str, Any]) -> tuple[str, str, str, str]:
        """Return milliseconds, GB/s, and shares of the data sheet's bandwidth and matrix rate."""
        seconds, chip = max(figures["seconds"], 1e-9), self.facts.get("chip")
        rate, flops = figures["bytes"] / seconds, figures["flops"] / seconds
        shares = ("", "") if chip is None else (f"{rate / chip['bandwidth']:.0%}", f"{flops / chip['flops']:.0%}")
        return f"{1e3 * seconds:.3f}", f"{rate / 1e9:.1f}", *shares


def check_kernels(words: Sequence[str], environment: Mapping[str, str]) -> tuple[KernelReport, dict[str, Any]]:
    """Try the kernels of a model.

    Args:
        words: flags of `palladio serve`; without a model, that of the embedded one.
        environment: of the processes that try.

    Returns:
        What was found, and the content of the report file.

    Raises:
        ConfigError: a flag is wrong, or there are several hosts.
    """
    named = words if names_model(words) else [f"--model-path={default_model_path()}", *words]
    config = parse_server_args(named).args.engine_config()
    if config.parallel.num_hosts > 1:
        raise ConfigError(
            f"--nnodes {config.parallel.num_hosts}: `palladio doctor --kernels` looks at one host; run it on each, "
            "without --nnodes, and with the --tp-size that the devices of one host allow"
        )
    folder = config.execution.cache_path(environment)
    execution = dataclasses.replace(config.execution, compilation_cache_dir="" if folder is None else str(folder))
    config = dataclasses.replace(config, execution=execution)
    report = _try_all(config, {**environment, **gpu_memory(environment), "PYTHONPATH": python_path()})
    return report, _content(report, config, environment)


def write_report(path: Path, content: Mapping[str, Any]) -> None:
    """Write the report file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write --report {path}: {error.strerror}") from error


def _try_all(config: EngineConfig, environment: Mapping[str, str]) -> KernelReport:
    """Try in one process after the other: each goes on behind the kernel that ended the one before."""
    facts: Mapping[str, Any] = {}
    weights: Mapping[str, Any] = {}
    answer: Mapping[str, Any] = {}
    results: list[dict[str, Any]] = []
    for _ in range(_MOST_PROCESSES):
        done = [one["verdict"]["kernel"] for one in results]
        skipped = [one["verdict"]["kernel"] for one in results if one["verdict"]["outcome"] != "ok"]
        begun, stage, ended, failure = "", "", False, ""
        for line in _lines({"config": config, "done": done, "skipped": skipped}, environment):
            match line:
                case {"platform": _}:
                    facts = line
                case {"begin": name}:
                    begun = name
                    print(f"        (trying {name} …)", file=sys.stderr, flush=True)
                case {"verdict": _}:
                    results.append(line)
                    begun = ""
                case {"stage": name}:
                    stage = name
                    print(f"        (looking at {stage} …)", file=sys.stderr, flush=True)
                case {"weights": found}:
                    weights = found
                case {"answer": found}:
                    answer = found
                case {"end": _}:
                    ended = True
                case {"failure": text}:
                    failure = failure or text
        if ended:
            return KernelReport(facts, results, weights, answer)
        if not begun:
            when = f"while it looked at {stage}: " if stage else ""
            return KernelReport(facts, results, weights, answer, when + (failure or "the process ended"))
        verdict = {"kernel": begun, "outcome": "died", "case": "", "shapes": "", "text": failure, "error": None}
        results.append({"verdict": {**verdict, "bound": None, "seconds": 0.0}, "figures": []})
    return KernelReport(facts, results, failure=f"{_MOST_PROCESSES} processes ended in trials")


def _lines(request: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Start a process that tries; return what it prints, and at last how it failed."""
    with subprocess.Popen(_COMMAND, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(msgspec.json.encode(request))
            child.stdin.close()
            for text in child.stdout:
                if text.startswith(b"{"):
                    yield json.loads(text)
        finally:
            if sys.exc_info()[0] is not None:
                child.kill()
    code = child.returncode
    if code:
        ended = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        yield {"failure": f"the process ended with {ended}"}


def _content(report: KernelReport, config: EngineConfig, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of the report file: no paths of the user, no secrets, no prompts."""
    flags = {name: value for name, value in config.flags().items() if name in _FLAGS}
    variables = {name: environment[name] for name in _VARIABLES if name in environment}
    found = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **report.facts,
        "flags": flags,
        "variables": variables,
        "failure": report.failure,
        "kernels": list(report.results),
        "weights": dict(report.weights),
        "first answer": dict(report.answer),
    }
    cleaned: dict[str, Any] = _clean(found, environment)
    return cleaned


def _clean(value: Any, environment: Mapping[str, str]) -> Any:
    match value:
        case str():
            return _PATH.sub(lambda path: f"…/{path[0].rstrip('/').rsplit('/', 1)[-1]}", redact(value, environment))
        case dict():
            return {key: _clean(one, environment) for key, one in value.items()}
        case list() | tuple():
            return [_clean(one, environment) for one in value]
    return value
