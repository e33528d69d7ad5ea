"""The batch log lines: what log parsers of SGLang read in them."""

import re
from types import SimpleNamespace

import pytest

from palladio.runtime.core.step_logger import StepLogger
from palladio.runtime.interface.draft_counts import DraftCounts

DECODE = re.compile(  # as a parser of SGLang's lines reads them
    r"Decode batch\. #running-req: (\d+), #token: (\d+), token usage: ([\d.]+), cuda graph: (True|False), "
    r"gen throughput \(token/s\): ([\d.]+), #queue-req: (\d+)"
)


@pytest.mark.parametrize("uses_cuda_graphs", [True, False])
def test_a_decode_line_says_whether_steps_run_as_cuda_graphs(caplog, uses_cuda_graphs):
    cache = SimpleNamespace(num_used_tokens=32, num_total_tokens=64)
    retractor, limits = SimpleNamespace(take_retractions=list), SimpleNamespace(num_drafts=0)
    rank = SimpleNamespace(cache=cache, retractor=retractor, running=[], limits=limits, drafts=DraftCounts())
    groups = SimpleNamespace(schedulers=[rank])
    batch = SimpleNamespace(kind="decode", chunks=[], num_rows=2, num_decodes=2, num_waiting=3, size=2, num_passes=1)
    logger = StepLogger(groups, 1, uses_cuda_graphs=uses_cuda_graphs)
    with caplog.at_level("INFO", "palladio.engine"):
        logger.after_dispatch(SimpleNamespace(planned=SimpleNamespace(parts=[(0, batch)]), bucket_size=4), [2])
    found = DECODE.search(caplog.text)
    assert found is not None
    assert found.group(1, 2, 3, 4, 6) == ("2", "32", "0.50", str(uses_cuda_graphs), "3")
