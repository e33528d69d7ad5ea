"""`palladio doctor --kernels`: goes on behind a kernel that ends its process; a table; a report without paths."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from palladio.__main__ import main
from palladio.commands.doctor import doctor_kernels, kernels_worker
from palladio.commands.doctor.doctor_kernels import KernelReport, check_kernels
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, ReadBackError

FACTS = {
    "platform": {"device": "tpu TPU v6 lite", "packages": "jax 0.12", "compiler": "libtpu", "kernels": "1"},
    "devices": 4,
    "model": {"layers": 2},
    "chip": {"bandwidth": 1640e9, "flops": 918e12, "name": "TPU v6e"},
}
VERDICT = {"case": "decode", "shapes": "s", "text": "", "error": 0.003, "bound": 0.0078, "seconds": 2.0}
FIGURES = {"case": "decode: rows", "shapes": "s", "seconds": 1e-3, "bytes": 820_000_000, "flops": 459_000_000_000}
WEIGHTS = {"outcome": "ok", "text": "", "bytes": 2**30}
ANSWER = {"outcome": "ok", "text": "", "attention": "tpu", "portable": "xla", "differences": [0.01, 0.03], "bound": 0.1}


def verdict(kernel: str, outcome: str = "ok", **more: Any) -> dict[str, Any]:
    found = {**VERDICT, "kernel": kernel, "outcome": outcome, **more}
    return {"verdict": found, "figures": [FIGURES] if outcome == "ok" else []}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Lines of the processes: the second kernel ends the first one. Returns what they were asked."""
    asked: list[Mapping[str, Any]] = []

    def lines(request: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        asked.append(request)
        yield FACTS
        if len(asked) == 1:
            yield {"begin": "a/tpu"}
            yield verdict("a/tpu")
            yield {"begin": "b/tpu"}
            yield {"failure": "the process that tried it ended with SIGABRT"}
            return
        yield {"begin": "c/tpu"}
        yield verdict("c/tpu", "wrong", text="wrong by 3, see /home/me/.cache/palladio/x.so and /opt/a/b")
        yield {"stage": "the weights"}
        yield {"weights": WEIGHTS}
        yield {"stage": "the first answer"}
        yield {"answer": ANSWER}
        yield {"end": True}

    monkeypatch.setattr(doctor_kernels, "_lines", lines)
    return asked


def test_it_goes_on_behind_a_kernel_that_ends_the_process(processes: list[Mapping[str, Any]]) -> None:
    report, content = check_kernels(["--tp-size", "4"], {"HOME": "/home/me", "XLA_FLAGS": "--xla_dump_to=/home/me/d"})
    assert not report.works
    outcomes = {one["verdict"]["kernel"]: one["verdict"]["outcome"] for one in report.results}
    assert outcomes == {"a/tpu": "ok", "b/tpu": "died", "c/tpu": "wrong"}
    assert [(one["done"], one["skipped"]) for one in processes] == [([], []), (["a/tpu", "b/tpu"], ["b/tpu"])]
    assert (content["weights"], content["first answer"]) == (WEIGHTS, ANSWER)
    weights, answer = report.notes()
    assert "1.00 GiB" in weights
    assert "0.02 apart" in answer
    lines = list(report.table())
    assert "820.0" in lines[1]  # GB/s
    assert lines[1].split()[-2:] == ["50%", "50%"]
    text = json.dumps(content)
    assert "/home" not in text
    assert "me/" not in text
    assert "/opt" not in text
    assert content["flags"]["tp_size"] == 4
    assert content["platform"] == FACTS["platform"]
    assert "model_path" not in content["flags"]


def test_a_process_that_tries_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_kernels, "_lines", lambda request, environment: iter([{"failure": "exit code 2"}]))
    report, _ = check_kernels([], {"HOME": "/home/me"})
    assert (report.works, report.failure, report.results) == (False, "exit code 2", [])


def test_nothing_to_try_is_no_failure() -> None:
    report = KernelReport(FACTS, [], WEIGHTS, ANSWER)
    assert report.works
    assert len(list(report.table())) == 1


@pytest.mark.parametrize(
    ("weights", "answer"),
    [
        ({"outcome": "wrong", "text": "a differs", "bytes": None}, {}),
        (WEIGHTS, {**ANSWER, "outcome": "differs", "text": "a differs"}),
    ],
)
def test_wrong_weights_and_a_wrong_answer_are_problems(weights: dict[str, Any], answer: dict[str, Any]) -> None:
    report = KernelReport(FACTS, [verdict("a/tpu")], weights, answer)
    assert (report.works, report.problems) == (False, ["a differs"])


def test_a_process_that_ends_while_it_loads_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [FACTS, {"stage": "the weights"}, {"failure": "out of memory"}, {"failure": "exit code 2"}]
    monkeypatch.setattr(doctor_kernels, "_lines", lambda request, environment: iter(lines))
    report, _ = check_kernels([], {"HOME": "/home/me"})
    assert not report.works
    assert "the weights" in report.failure
    assert "out of memory" in report.failure


def test_several_hosts_are_refused() -> None:
    with pytest.raises(ConfigError, match="--nnodes"):
        check_kernels(["--nnodes", "2", "--dist-init-addr", "127.0.0.1:43501", "--tp-size", "2"], {"HOME": "/home/me"})


def test_the_process_says_that_weights_are_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(config: EngineConfig, *_: Any) -> None:
        raise ReadBackError("on this device")

    monkeypatch.setattr(kernels_worker, "check_start", check)
    kernels_worker._check_start(EngineConfig.from_flags({"model_path": "x"}), set(), ProgressDisplay(bar=False))
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found[0] == {"stage": "the weights"}
    assert found[1]["weights"]["outcome"] == "wrong"
    assert len(found) == 2


def test_the_flags_of_serve_need_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--tp-size", "2"])
    assert ended.value.code == 2
    assert "--tp-size" in capsys.readouterr().err


@pytest.mark.slow
def test_kernels_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Those for TPUs, interpreted."""
    monkeypatch.setenv("PALLADIO_CACHE_DIR", str(tmp_path / "cache"))
    report = tmp_path / "report.json"
    flags = ["--attention-backend", "tpu", "--context-length", "64", "--max-running-requests", "2"]
    main(["doctor", "--kernels", "--report", str(report), *flags])
    found = json.loads(report.read_text())
    assert found["failure"] == ""
    outcomes = {one["verdict"]["kernel"]: one["verdict"]["outcome"] for one in found["kernels"]}
    assert outcomes == {"ragged_paged_attention/tpu": "ok", "kv_cache_update/tpu": "ok"}
    assert (found["weights"]["outcome"], found["first answer"]["outcome"]) == ("ok", "ok")
    assert found["first answer"]["attention"] == "tpu"
    assert str(tmp_path) not in report.read_text()
    assert "ragged_paged_attention/tpu" in capsys.readouterr().out
