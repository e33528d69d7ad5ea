"""docs/operations.md names the metrics that there are, and shows the memory plan as it is logged."""

import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from palladio.http.app import create_app
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.core.plan.memory import MemoryPlan
from palladio.runtime.interface.messages.engine_stats import MemoryReport
from tests.fake_engine import FakeEngine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def test_every_metric_is_named_and_exists() -> None:
    server: httpx.Client = TestClient(
        create_app(FakeEngine(None), HttpConfig(), ObservabilityConfig(collect_tokens_histogram=True))
    )
    families = text_string_to_metric_families(server.get("/metrics").text)
    served = {f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in families}
    section = PAGE.read_text(encoding="utf-8").split("### Metrics")[1].split("\n### ")[0]
    # One has not quite these figures; the other is of accelerators.
    elsewhere = {"vllm:spec_decode_num_drafts_total", "palladio:hbm_used_bytes"}
    assert set(re.findall(r"`((?:sglang|palladio|vllm):[a-z]\w+)", section)) - elsewhere == served


def test_the_memory_plan_is_shown_as_it_is_logged() -> None:
    sizes = (79.25, 0.92 * 79.25, 14.96, 53.5, 0.33, 1.98)
    report = MemoryReport(*(int(size * 2**30) for size in sizes))
    table = MemoryPlan(num_pages=438_272 // 16 + 1, page_size=16, report=report).table()
    assert "".join(f"{line}\n" for line in ["```text", *table, "```"]) in PAGE.read_text(encoding="utf-8")
