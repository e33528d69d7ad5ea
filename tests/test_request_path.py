"""One request's line through the product does not grow unnoticed: see scripts/request_path.py."""

from scripts import request_path
from tests import compile_cache

MOST_FILES = 79  # of the front and of the engine: most hold one concept in 100 to 250 lines
MOST_CALLS = 220  # of Python for each step of the engine

SHARE = "runtime/scheduling/policy/batch_share.py"


async def test_a_streamed_chat_request_runs_through_no_more_files():
    threads = await request_path.follow_request(compilation_cache_dir=str(compile_cache.folder() / "xla"))
    files = request_path.all_files(threads)
    assert {"http/chat/chat_run.py", "runtime/scheduling/scheduler.py", "runtime/core/engine_core.py"} <= files
    assert "runtime/scheduling/dp_scheduler.py" not in files, "there is one rank"
    assert SHARE not in files, "there are no background requests"
    assert len(files) <= MOST_FILES, sorted(files)
    assert request_path.calls_per_step(threads) <= MOST_CALLS
