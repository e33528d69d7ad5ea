"""Faults of the dashboard: its history, its map of pages, who sees what; and what is asked of Prometheus."""

from tests.faults.fault import Fault

DASHBOARD_FAULTS = (
    Fault(
        "cached pages that somebody uses count as cached alone",
        "runtime/scheduling/page_map.py",
        "                if node.lock_count == 0:\n",
        "                if node.lock_count >= 0:\n",
        ("tests/runtime/scheduling/test_page_map.py",),
    ),
    Fault(
        "the map of a large pool has as many runs as it has pages",
        "runtime/scheduling/page_map.py",
        "pages_per_cell = -(-(num_pages - 1) // MAX_CELLS)",
        "pages_per_cell = 1",
        ("tests/runtime/scheduling/test_page_map.py",),
    ),
    Fault(
        "prompt tokens are not counted as they are computed",
        "runtime/core/step_logger.py",
        "self._num_prefill_tokens += num_tokens - batch.num_decodes",
        "self._num_prefill_tokens += 0",
        ("tests/runtime/core/test_observers.py",),
    ),
    Fault(
        "old rows of the history lose nine tenths of what was counted",
        "http/observability/history.py",
        "        merged, gauges = rows[-1].copy(), slice(1, self.columns.first_counter)\n",
        "        merged, gauges = rows[0].copy(), slice(1, self.columns.first_counter)\n",
        ("tests/http/observability/test_history.py",),
    ),
    Fault(
        "an engine that was started again counts backwards",
        "http/observability/series.py",
        "np.where(after < before, after, after - before)",
        "after - before",
        ("tests/http/observability/test_history.py",),
    ),
    Fault(
        "percentiles fall to the lower end of their bucket",
        "http/observability/series.py",
        "edges[place] + (edges[place + 1] - edges[place]) * inside",
        "edges[place] + 0 * inside",
        ("tests/http/observability/test_history.py",),
    ),
    Fault(
        "an owner sees the errors of others",
        "http/observability/recent_errors.py",
        "if note.owner is None or caller.may_see(note.owner))",
        "if note.owner is None or caller)",
        ("tests/http/observability/test_recent_errors.py",),
    ),
    Fault(
        "an API key opens the dashboard beside an admin key",
        "http/security/admin_access.py",
        "if not callers.has_admin_keys or caller.owner == ADMIN:",
        "if not callers.has_admin_keys or caller.owner:",
        ("tests/http/routes/test_dashboard.py",),
    ),
    Fault(
        "every visitor has the engine map its pages anew",
        "http/observability/sampler.py",
        "self._next = self._clock() + max(MAP_INTERVAL, cost / MAP_SHARE)",
        "self._next = self._clock()",
        ("tests/http/routes/test_dashboard.py",),
    ),
    Fault(
        "the server is still sampled with --no-ui",
        "http/app.py",
        "Sampler(context.engine, context.observer) if context.config.ui else None",
        "Sampler(context.engine, context.observer)",
        ("tests/http/routes/test_dashboard.py",),
    ),
    Fault(
        "an alert asks for a metric that there is not",
        "deploy/alerts.yaml",
        "increase(palladio:compiles_after_ready_total[1h])",
        "increase(palladio:recompiles_total[1h])",
        ("tests/http/observability/test_deploy.py",),
    ),
    Fault(
        "lines of batches that succeed count as failed",
        "http/observability/request_record.py",
        'self.batch_lines["completed" if succeeded else "failed"] += 1',
        'self.batch_lines["completed" if not succeeded else "failed"] += 1',
        ("tests/http/batches/test_batches.py",),
    ),
)
