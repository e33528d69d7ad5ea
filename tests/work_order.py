"""How the workers share the tests: a file each, but files that use one server or engine together; the longest first.

With the longest last, one worker would run them while the others have nothing left to do.
"""

import pytest
from xdist.scheduler import LoadFileScheduling

INTEGRATION = "tests/integration/"
RUNTIME = "tests/runtime/"
# Files whose server is the same process, or whose engine has the same programs: one worker starts it once.
TOGETHER = {
    folder + file: group
    for group, folder, files in (
        (
            "the shared server",
            INTEGRATION,
            (
                *("test_aborts.py", "test_background_compile.py", "test_bad_input.py", "test_logprob_eval.py"),
                *("test_observability.py", "test_sampling_effects.py", "test_structured_output.py", "test_thinking.py"),
                *("test_several_hosts.py", "test_under_pressure.py"),
                *("seeds/test_around_the_cells.py", "seeds/test_batch_cells.py", "seeds/test_cells.py"),
            ),
        ),
        (
            "the embedded model's server",
            INTEGRATION,
            ("test_default_model_talks.py", "test_examples.py", "test_blocks_of_the_docs.py"),
        ),
        (
            "the tiny engine",
            RUNTIME,
            (
                *("core/test_engine_scheduling.py", "core/test_constrained_requests.py", "core/test_determinism.py"),
                *("core/test_drafts.py", "core/test_input_embeds.py", "core/test_prefix_cache.py"),
                *("core/test_engine_core.py", "core/test_logprob_token_ids.py", "core/watch/test_observers.py"),
                *("core/start/test_compile_modes.py", "core/watch/test_timeline_recorder.py"),
                *(
                    "execution/state/test_device_state.py",
                    "execution/compiled/test_out_of_memory.py",
                    "grammar/test_compiler.py",
                ),
                *("core/start/test_kv_events.py", "interface/outputs/test_request_trace.py"),
                *(
                    "scheduling/policy/test_grammar_queue.py",
                    "scheduling/test_preemption.py",
                    "telemetry/test_profiler.py",
                ),
            ),
        ),
    )
    for file in files
}
# By CPU time, measured: the order alone matters, and only roughly.
LONGEST = (
    "the shared server",
    "the tiny engine",
    "the embedded model's server",
    "tests/runtime/core/test_windows.py",
    "tests/runtime/core/weights/test_weight_updates.py",
    "tests/runtime/core/test_data_parallel.py",
    "tests/runtime/core/test_expert_parallel.py",
    "tests/runtime/core/test_embedding_engine.py",
    "tests/flag_matrix/",
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
