"""What benchmarks/gpu/device_trace.py reads from a trace: gaps against those that were made, and a real one's steps."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from jax.profiler import ProfileData

from benchmarks.gpu.device_trace import Kernel, idle_intervals, read_kernels, step_starts, summarize

pytestmark = pytest.mark.slow  # of a benchmark, not of the server

ROOT = Path(__file__).resolve().parents[2]
LAYERS, GAP, BETWEEN = 3, 4_000.0, 100.0  # ns


def steps_of(count: int) -> list[Kernel]:
    """Each gathers, runs LAYERS times two kernels on two streams, and samples; GAP ns lie between two of them."""
    kernels, now = [], 0.0
    for _ in range(count):
        kernels.append(Kernel("gather", now, now + 500))
        now += 500 + BETWEEN
        for _ in range(LAYERS):
            kernels += [Kernel("gemm", now, now + 2_000), Kernel("norm", now + 1_500, now + 2_500)]
            now += 2_500
        kernels.append(Kernel("sample", now, now + 1_000))
        now += 1_000 + GAP
    return kernels


def test_gaps_lie_between_steps() -> None:
    kernels = steps_of(10)
    found = summarize(kernels, num_steps=11)  # one too many: whoever traces knows about how many there are
    step = 600 + LAYERS * 2_500 + 1_000 + GAP
    assert (found["steps"], found["kernels a step"]) == (10, 2 + 2 * LAYERS)
    assert found["step µs"] == pytest.approx(step / 1e3)
    assert (found["gap µs p50"], found["gap µs p99"]) == (GAP / 1e3, GAP / 1e3)
    span = 10 * step - GAP
    assert found["busy share"] == pytest.approx(1 - (9 * GAP + 10 * BETWEEN) / span)
    assert found["kernels"][0] == {"name": "gemm", "times a step": LAYERS, "µs a step": LAYERS * 2.0}


def test_a_slow_step_shows_in_the_highest_gaps_alone() -> None:
    late = [
        Kernel(kernel.name, kernel.start + 1e6 * (index >= 40), kernel.end + 1e6 * (index >= 40))
        for index, kernel in enumerate(steps_of(10))
    ]
    found = summarize(late, num_steps=10)
    assert found["gap µs p50"] == GAP / 1e3
    assert found["gap µs p99"] > 100 * GAP / 1e3


def test_streams_that_overlap_are_not_idle() -> None:
    assert idle_intervals([Kernel("a", 0, 10), Kernel("b", 2, 4), Kernel("c", 12, 13)]) == [(10, 2)]


def test_one_step_has_no_gap() -> None:
    with pytest.raises(ValueError, match="8 kernels ran, but none of them once a step"):
        summarize(steps_of(1), num_steps=1)


def test_the_mark_is_spread_over_all_steps() -> None:
    crowd = [Kernel("prefill", 10.0 * number, 10.0 * number + 1) for number in range(8)]  # as often, in no time
    decode = [Kernel("decode", 1e3 * number, 1e3 * number + 500) for number in range(1, 9)]
    assert step_starts(crowd + decode, 8) == [kernel.start for kernel in decode]


def test_a_real_trace(tmp_path: Path) -> None:
    script = textwrap.dedent("""\
        import sys, jax, jax.numpy as jnp
        step = jax.jit(lambda x: jnp.sin(x @ x) / 600)
        x = jnp.ones((600, 600)); step(x).block_until_ready()
        with jax.profiler.trace(sys.argv[1]):
            for _ in range(12):
                x = step(x).block_until_ready()
    """)
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    found = summarize(read_kernels(tmp_path), num_steps=12)
    assert found["steps"] == 12
    assert 0.0 < found["busy share"] <= 1.0
    assert found["step µs"] > found["gap µs p50"] > 0.0
    with pytest.raises(ValueError, match=r"no \*\.xplane\.pb there"):
        read_kernels(tmp_path / "nothing")


def test_a_gpus_streams_without_their_copies(tmp_path: Path) -> None:
    """30 µs between steps of two kernels, in which the host's numbers come and go."""
    lines: dict[int, list[tuple[int, int, int]]] = {1: [], 2: [], 3: []}  # name, start and length in ns
    for start in range(0, 500_000, 50_000):
        lines[1] += [(1, start, 8_000), (2, start + 8_000, 12_000)]
        lines[2] += [(3, start + 22_000, 1_500), (4, start + 47_000, 1_500)]
        lines[3] += [(5, start, 50_000)]
    names = ["", "gemm", "norm", "MemcpyD2H", "MemcpyH2D", "jit_forward"]
    events = {
        line: "".join(
            f"events {{ metadata_id: {name} offset_ps: {start * 1000} duration_ps: {length * 1000} }} "
            for name, start, length in found
        )
        for line, found in lines.items()
    }
    text = 'planes { name: "/host:CPU" } planes { name: "/device:GPU:0" '
    for number, name in enumerate(("Stream #7(Compute)", "Stream #8(Memcpy)", "XLA Modules"), 1):
        text += f'lines {{ id: {number} name: "{name}" {events[number]} }} '
    for number, name in enumerate(names[1:], 1):
        text += f'event_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }} '
    (tmp_path / "host.xplane.pb").write_bytes(ProfileData.text_proto_to_serialized_xspace(text + "}"))
    found = summarize(read_kernels(tmp_path), num_steps=10)
    assert (found["steps"], found["kernels a step"]) == (10, 2)
    assert (found["gap µs p50"], found["gap µs p99"]) == (30, 30)
    assert found["step µs"] == 50
    assert [kernel["name"] for kernel in found["kernels"]] == ["norm", "gemm"]


def test_its_command(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/gpu/device_trace.py", str(tmp_path), "--steps", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"{tmp_path}: no *.xplane.pb there\n")
