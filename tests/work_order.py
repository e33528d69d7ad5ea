"""How the workers share the tests: a file each, but files that use one server together; the longest first.

With the longest last, one worker would run them while the others have nothing left to do.
"""

import pytest
from xdist.scheduler import LoadFileScheduling

INTEGRATION = "tests/integration/"
# Files whose server is the same process: one worker starts it once.
TOGETHER = {
    INTEGRATION + file: group
    for group, files in {
        "the shared server": (
            *("test_aborts.py", "test_background_compile.py", "test_bad_input.py", "test_logprob_eval.py"),
            *("test_observability.py", "test_sampling_effects.py", "test_structured_output.py", "test_thinking.py"),
            *("test_several_hosts.py", "test_under_pressure.py"),
            *("seeds/test_around_the_cells.py", "seeds/test_batch_cells.py", "seeds/test_cells.py"),
        ),
        "the embedded model's server": ("test_default_model_talks.py", "test_examples.py"),
    }.items()
    for file in files
}
# By CPU time, measured: the order alone matters, and only roughly.
LONGEST = (
    "the shared server",
    "the embedded model's server",
    "tests/runtime/core/test_compile_modes.py",
    "tests/runtime/core/test_data_parallel.py",
    "tests/runtime/core/test_expert_parallel.py",
    "tests/runtime/core/test_determinism.py",
    "tests/runtime/core/test_embedding_engine.py",
    "tests/integration/test_survival.py",
    "tests/integration/test_offline_engine.py",
    "tests/integration/test_bad_start.py",
    "tests/integration/test_embedding_server.py",
    "tests/integration/test_secrets.py",
    "tests/model/",
    "tests/pallas_kernels/",
    "tests/runtime/core/",
    "tests/runtime/execution/",
    "tests/runtime/process/",
    "tests/runtime/",
    "tests/docs/",
    "tests/palladio/",
)


def scope(nodeid: str) -> str:
    """What one worker runs as a whole."""
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file, file)


def rank(nodeid: str) -> int:
    """The lowest runs first."""
    name = scope(nodeid)
    return next((rank for rank, prefix in enumerate(LONGEST) if name.startswith(prefix)), len(LONGEST))


class WorkOrder(LoadFileScheduling):
    """See this file's head."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def sort(items: list[pytest.Item]) -> None:
    """Those of one scope stay together, in their own order."""
    items.sort(key=lambda item: rank(item.nodeid))
