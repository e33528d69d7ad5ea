"""A server that takes requests while most of its programs are still compiled."""

import time

import pytest

from tests.integration.serving import COMPLETIONS

SEEDED = {"prompt": "Hello", "max_tokens": 40, "ignore_eos": True, "seed": 3, "temperature": 0.8, "logprobs": 1}


@pytest.mark.slow
def test_requests_are_answered_before_all_programs_are_there(launch, server, tmp_path):
    young = launch(f"--compile background --compilation-cache-dir {tmp_path / 'cache'}")
    ready = young.http.get("/ready")
    assert ready.status_code == 200
    progress = ready.json()
    assert (progress["state"], progress["phase"]) == ("ready", "compile")
    num_programs = server.stats()["compile"]["num_programs"]
    assert 6 <= progress["done"] < progress["total"] == num_programs
    texts = [server.post(COMPLETIONS, SEEDED | {"seed": seed}).json()["choices"][0]["text"] for seed in range(6)]
    young_texts = [young.post(COMPLETIONS, SEEDED | {"seed": seed}).json()["choices"][0]["text"] for seed in range(6)]
    assert young_texts == texts
    young.check_clean()
    compile_stats = young.stats()["compile"]
    assert len(compile_stats["programs"]) < compile_stats["num_programs"] == num_programs
    assert compile_stats["wait_seconds"] == 0  # no step waited for a program

    start = time.monotonic()
    young.process.terminate()
    assert young.process.wait(timeout=60) == 0  # the program that is being compiled does not hold it up for long
    assert time.monotonic() - start < 30
    assert "Traceback" not in young.log()
