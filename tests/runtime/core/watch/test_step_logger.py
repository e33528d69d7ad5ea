"""The batch log lines: what log parsers of SGLang read in them."""

import re
from types import SimpleNamespace

import pytest

from palladio.runtime.core.watch.step_logger import StepLogger
from palladio.runtime.interface.outputs.counts import DraftCounts

DECODE = re.compile(  # as a parser of SGLang's lines reads them
    r"Decode batch\. #running-req: (\d+), #token: (\d+), token usage: ([\d.]+), cuda graph: (True|False), "
    r"gen throughput \(token/s\): ([\d.]+), #queue-req: (\d+)"
)


def logger_of_one_rank(**options):
    cache = SimpleNamespace(num_used_tokens=32, num_total_tokens=64)
    retractor, limits = SimpleNamespace(retractions=[]), SimpleNamespace(num_drafts=0)
    rank = SimpleNamespace(cache=cache, retractor=retractor, running=[], limits=limits, drafts=DraftCounts())
    return StepLogger(SimpleNamespace(schedulers=[rank]), 1, **options)


def decode(logger):
    batch = SimpleNamespace(
        kind="decode", chunks=[], num_rows=2, num_decodes=2, num_tokens=2, num_waiting=3, size=2, num_passes=1
    )
    logger.after_dispatch(SimpleNamespace(planned=SimpleNamespace(parts=[(0, batch)]), bucket_size=4))


@pytest.mark.parametrize("uses_cuda_graphs", [True, False])
def test_a_decode_line_says_whether_steps_run_as_cuda_graphs(caplog, uses_cuda_graphs):
    logger = logger_of_one_rank(uses_cuda_graphs=uses_cuda_graphs)
    with caplog.at_level("INFO", "palladio.engine"):
        decode(logger)
    found = DECODE.search(caplog.text)
    assert found is not None
    assert found.group(1, 2, 3, 4, 6) == ("2", "32", "0.50", str(uses_cuda_graphs), "3")


def test_the_throughput_counts_no_time_without_requests(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("palladio.runtime.core.watch.step_logger.time.perf_counter", lambda: now[0])
    logger = logger_of_one_rank()
    with caplog.at_level("INFO", "palladio.engine"):
        for idle in (50.0, 55.0):  # before the first request, and before the next one
            now[0] += idle
            logger.after_add(None)
            now[0] += 0.25
            logger.after_add(None)  # one that comes while another one runs
            now[0] += 0.25
            decode(logger)
            logger.after_step(True)
            now[0] += 1.0
            logger.after_step(True)  # a step that finds nothing to do
    assert [DECODE.search(line).group(5) for line in caplog.messages] == ["4.00", "4.00"]
