"""`palladio doctor --kernels`: goes on behind a kernel that ends its process; a table; a report without paths."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from palladio.__main__ import main
from palladio.commands.doctor import doctor_kernels
from palladio.commands.doctor.doctor_kernels import KernelReport, check_kernels

FACTS = {
    "platform": {"device": "tpu TPU v6 lite", "packages": "jax 0.12", "compiler": "libtpu", "kernels": "1"},
    "devices": 4,
    "model": {"layers": 2},
    "chip": {"bandwidth": 1640e9, "flops": 918e12, "name": "TPU v6e"},
}
VERDICT = {"case": "decode", "shapes": "s", "text": "", "error": 0.003, "bound": 0.0078, "seconds": 2.0}
FIGURES = {"case": "decode: rows", "shapes": "s", "seconds": 1e-3, "bytes": 820_000_000, "flops": 459_000_000_000}


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
        yield {"end": True}

    monkeypatch.setattr(doctor_kernels, "_lines", lines)
    return asked


def test_it_goes_on_behind_a_kernel_that_ends_the_process(processes: list[Mapping[str, Any]]) -> None:
    report, content = check_kernels(["--tp-size", "4"], {"HOME": "/home/me", "XLA_FLAGS": "--xla_dump_to=/home/me/d"})
    assert not report.works
    outcomes = {one["verdict"]["kernel"]: one["verdict"]["outcome"] for one in report.results}
    assert outcomes == {"a/tpu": "ok", "b/tpu": "died", "c/tpu": "wrong"}
    assert [(one["done"], one["skipped"]) for one in processes] == [([], []), (["a/tpu", "b/tpu"], ["b/tpu"])]
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
    report = KernelReport(FACTS, [])
    assert report.works
    assert len(list(report.table())) == 1


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
    assert str(tmp_path) not in report.read_text()
    assert "ragged_paged_attention/tpu" in capsys.readouterr().out
