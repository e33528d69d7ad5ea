"""What is in deploy/ for Prometheus and Grafana asks for metrics and labels that a server has."""

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.messages.engine_stats import CompileStats, EngineStats, ProgramReport, RankStats
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"
ALERTS = DEPLOY / "alerts.yaml"
OF_PROMETHEUS = {"instance"}  # labels that it adds when it scrapes
FUNCTIONS = {"sum", "max", "min", "by", "on", "rate", "increase", "absent", "histogram_quantile"}


def board() -> dict:
    return json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))


def rules() -> list[dict]:
    return [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def queries() -> Iterator[str]:
    for panel in board()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (rule["expr"] for rule in rules())


def wanted(query: str) -> tuple[set[str], dict[str, set[str]], set[str]]:
    """The metrics of a query; the values of labels that its selectors name; and the labels by which it groups."""
    metrics = set(re.findall(r"(?:sglang|palladio):\w+", query))
    selected: dict[str, set[str]] = {}
    for name, value in re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', query):
        selected.setdefault(name, set()).add(value)
    grouped = {label.strip() for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query) for label in group.split(",")}
    return metrics, selected, grouped


@pytest.fixture(scope="module")
def labels() -> dict[str, dict[str, set[str]]]:
    """Of each sample of a server that has seen everything: its labels and their values."""
    engine = FakeEngine(None)
    engine.ranks = [RankStats(3, 2, 160, 10240, 55.5, 0.7, 1, 7, 64, 80, 20, 48, 0, 5, 15, 6, 60), RankStats()]
    stats = engine.stats

    async def with_programs(*args: float) -> EngineStats:
        programs = [ProgramReport("decode[bs=8]", result, 0.5) for result in ("hit", "miss", "exported", "failed")]
        return dataclasses.replace(await stats(*args), compile=CompileStats(4, programs, 1.5), memory_in_use=7)

    engine.stats = with_programs  # type: ignore[method-assign, assignment]
    with running_server(engine, HttpConfig()) as url:
        ids = {"prompt": [1, 2, 3], "max_tokens": 3, "ignore_eos": True}
        httpx.post(url + "/v1/completions", json=ids | {"mystery": 1}).raise_for_status()
        text = httpx.get(url + "/metrics").text
    found: dict[str, dict[str, set[str]]] = {"palladio:batch_lines_total": {"result": {"completed", "failed"}}}
    for family in text_string_to_metric_families(text):
        names = [f"{family.name}_total"] if family.type == "counter" else []  # one that has counted nothing yet
        for sample in family.samples:
            names.append(sample.name)
            for name, value in sample.labels.items():
                found.setdefault(sample.name, {}).setdefault(name, set()).add(value)
        for name in names:
            found.setdefault(name, {}).setdefault("model_name", set())
    return found


def test_every_metric_and_label_exists(labels: dict[str, dict[str, set[str]]]) -> None:
    used = set()
    for query in queries():
        metrics, selected, grouped = wanted(query)
        assert metrics, query
        used |= metrics
        assert metrics <= labels.keys(), f"{metrics - labels.keys()} in {query}"
        for metric in metrics:
            assert not grouped - OF_PROMETHEUS - labels[metric].keys(), f"{metric}: {grouped} in {query}"
        known = {name: {value for metric in metrics for value in labels[metric].get(name, ())} for name in selected}
        for name, values in selected.items():
            assert any(name in labels[metric] for metric in metrics), f"{name} in {query}"
            for value in values - {"$model", "5.."}:
                assert value in known[name], f"{name}={value} in {query}"
    assert len(used) > 45
    bare = {re.sub(r"_(?:bucket|count|sum)$", "", name) for name in labels if not name.endswith(("_count", "_sum"))}
    unused = bare - {re.sub(r"_bucket$", "", name) for name in used}
    constant = {"sglang:context_len", "sglang:page_size"}
    unused -= {name for name in unused if name.startswith("vllm:") or name == "sglang:cache_config_info"}  # for routers
    assert unused == constant | {"sglang:http_requests_total"}, "the board shows all others (the last one by status)"


def test_legends_name_labels_that_their_queries_keep() -> None:
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            legend = set(re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"]))
            assert legend <= wanted(target["expr"])[2], target
    for rule in rules():
        told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        keeps = wanted(rule["expr"])[2] or {"instance", "model_name"}  # without a sum, all labels stay
        assert told <= keeps, rule["alert"]


def test_the_board_is_laid_out_without_gaps() -> None:
    panels = board()["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    titles = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert {"Requests", "Prefix cache", "Drafts", "Data-parallel ranks", "Batches", "XLA", "Engine"} <= set(titles)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 10
    for rule in rules():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.parametrize("source", ["grafana.json", "alerts.yaml"])
def test_queries_are_promql(source: str) -> None:
    """With a parser of PromQL: see `make deploy-check`."""
    parser = pytest.importorskip("promql_parser", reason="needs promql-parser (make deploy-check)")
    found = [rule["expr"] for rule in rules()] if source == "alerts.yaml" else list(queries())
    for query in found:
        parser.parse(query.replace("$__rate_interval", "5m"))
    with pytest.raises(ValueError, match=r"\w"):
        parser.parse("sum by (rate(x[5m])")


def test_rules_are_rules_of_prometheus() -> None:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("needs promtool (Debian: prometheus)")
    subprocess.run([path, "check", "rules", str(ALERTS)], check=True, capture_output=True)
