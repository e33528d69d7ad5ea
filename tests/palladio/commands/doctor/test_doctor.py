"""`palladio doctor`: what it finds, that it never hangs, and that its output has no secrets."""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from palladio.__main__ import main
from palladio.commands.doctor import doctor, doctor_checks
from palladio.commands.doctor.doctor_checks import (
    check_devices,
    check_folders,
    check_holders,
    check_limits,
    check_memory,
    check_port,
    check_variables,
    check_versions,
    probe_devices,
    redact,
)
from palladio.runtime.devices.accelerators import Machine

CPU = {"devices": [{"platform": "cpu", "kind": "cpu", "bytes": None}], "computes": True, "seconds": 0.5}
GPU = {"devices": [{"platform": "gpu", "kind": "H100", "bytes": 80 << 30}] * 2, "computes": True, "seconds": 1.0}
BARE = Machine({}, {"jax": "0.11.0", "jaxlib": "0.11.0"}, "3.12.1")
WITH_GPU = Machine({"cuda": "/dev/nvidia0"}, {"jax": "0.11.0", "jaxlib": "0.11.0"}, "3.12.1")


@pytest.mark.parametrize(
    ("probe", "machine", "environment", "verdict", "text", "fix"),
    [
        (CPU, BARE, {}, "ok", "1 x cpu (cpu), ready in 0.5 s", ""),
        (GPU, WITH_GPU, {}, "ok", "2 x H100 (gpu, 85.9 GB each)", ""),
        (CPU, WITH_GPU, {}, "broken", "although there is an NVIDIA GPU", "jax-cuda12-plugin is not installed"),
        (CPU, WITH_GPU, {"JAX_PLATFORMS": "cpu"}, "warn", "although there is an NVIDIA GPU", "unset JAX_PLATFORMS"),
        ({**GPU, "computes": False}, WITH_GPU, {}, "broken", "computes wrong sums", "driver"),
        ({"error": ""}, BARE, {"JAX_PLATFORMS": "tpu"}, "broken", "nothing that JAX_PLATFORMS=tpu", "unset JAX_PLAT"),
        ({"error": "no answer within 9 s: another"}, BARE, {"JAX_PLATFORMS": "cpu"}, "broken", "9 s", "less busy"),
        ({"error": "already in use by process with pid 7"}, WITH_GPU, {}, "broken", "in use", "process 7 is using the"),
    ],
)
def test_devices(
    probe: Mapping[str, Any], machine: Machine, environment: Mapping[str, str], verdict: str, text: str, fix: str
) -> None:
    _, found = check_devices(probe, machine, environment)
    assert found.verdict == verdict
    assert text in found.text
    assert fix in found.fix
    assert bool(found.fix) == (verdict != "ok")


def test_a_device_that_somebody_holds_does_not_hang_it() -> None:
    start = time.monotonic()
    found = probe_devices([sys.executable, "-c", "import time; time.sleep(20)"], os.environ, 0.3)
    assert found == {"error": "no answer within 0.3 s: another process may hold the device"}
    assert time.monotonic() - start < 15
    said = probe_devices([sys.executable, "-c", "print('noise'); print('{\"devices\": []}')"], os.environ, 60)
    assert said == {"devices": []}
    broken = probe_devices([sys.executable, "-c", "raise SystemExit('no module named jax')"], os.environ, 60)
    assert broken == {"error": "the process that looks for devices ended: no module named jax"}


def test_who_holds_a_tpu(tmp_path: Path) -> None:
    device = tmp_path / "accel0"
    device.touch()
    process = tmp_path / "proc" / "123"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("python\n")
    (process / "fd" / "5").symlink_to(device)
    (found,) = check_holders([str(tmp_path / "accel*")], tmp_path / "proc")
    assert (found.verdict, found.text) == ("warn", "process 123 (python) holds it")
    assert found.fix == "stop it first: kill 123"
    (process / "fd" / "5").unlink()
    (free,) = check_holders([str(tmp_path / "accel*")], tmp_path / "proc")
    assert free.verdict == "ok"
    assert list(check_holders([str(tmp_path / "none*")])) == []


def test_memory_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable: 60000000 kB\n")
    (found,) = check_memory(tmp_path, tmp_path)
    assert found.verdict == "ok"
    (tmp_path / "memory.max").write_text(f"{5 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{3 << 30}\n")
    (found,) = check_memory(tmp_path, tmp_path)
    assert (found.verdict, "this container may have 5.4 GB" in found.text) == ("warn", True)


def test_folders_ports_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    environment = {"PALLADIO_CACHE_DIR": str(tmp_path / "file"), "PALLADIO_DATA_DIR": str(tmp_path / "new")}
    cache, data, _ = check_folders(environment)
    assert (cache.verdict, cache.fix) == ("broken", "export PALLADIO_CACHE_DIR=/some/folder")
    assert "(not made yet)" in data.text
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (found,) = check_port(port)
        assert (found.verdict, f"palladio serve --port {port + 1}" in found.fix) == ("warn", True)
    monkeypatch.setattr("palladio.commands.doctor.doctor_checks.resource.getrlimit", lambda which: (1024, 65536))
    files, shm = check_limits(tmp_path)
    assert (files.verdict, files.fix, shm.about) == ("warn", "ulimit -n 65536", "shared memory")


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "_version", {"jax": "0.11.1", "jaxlib": "0.10.2", "numpy": "2"}.get)
    _, packages, versions = check_versions()
    assert (packages.verdict, packages.text.startswith("flax, transformers, ")) == ("broken", True)
    assert (versions.verdict, versions.fix) == ("broken", "pip install jax==0.11.1 jaxlib==0.11.1")


def test_nothing_secret_is_told() -> None:
    environment = {"HF_TOKEN": "topsecret", "HOME": "/home/alice", "HF_ENDPOINT": "https://me:pass@hub/x"}
    text = " ".join(redact(found.text, environment) for found in check_variables(environment))
    assert "HF_TOKEN is set" in text
    for secret in ("topsecret", "me:pass", "alice", "hf_abcdefghijk"):
        assert secret not in redact(f"{text} /home/alice/x hf_abcdefghijk topsecret", environment)


def test_the_command_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "probe_devices", lambda command, environment, limit: dict(CPU))
    monkeypatch.setattr(Machine, "look", lambda: BARE)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("HF_TOKEN", "hf_verysecrettoken")
    assert main(["doctor", "--json", "--port", "0"]) == 0
    told = capsys.readouterr().out
    assert {finding["verdict"] for finding in json.loads(told)} <= {"ok", "warn"}
    assert "verysecret" not in told
    for words, message in (
        (["--port", "99999"], "--port must be in 0 … 65535, got 99999"),
        (["--timeout", "0"], "--timeout must be over 0 and finite, got 0"),
    ):
        assert main(["doctor", *words]) == 2
        assert capsys.readouterr().err == f"error: {message}\n"
    monkeypatch.setenv("PALLADIO_CACHE_DIR", str(tmp_path / "file" / "x"))
    (tmp_path / "file").touch()
    assert main(["doctor", "--port", "0"]) == 1
    told = capsys.readouterr().out
    assert "BROKEN  compiled programs: " in told
    assert "→ export PALLADIO_CACHE_DIR=/some/folder" in told
    assert told.splitlines()[-1].startswith("1 broken, ")
