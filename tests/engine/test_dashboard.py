"""The Grafana dashboard (docs/monitoring/grafana.json): its form, and every metric that it asks for is one of a running server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from workshop.engine import metrics

ROOT = Path(__file__).parents[2]

METRIC = re.compile(r"vllm:[a-z_]+")
DASHBOARD = json.loads((ROOT / "docs/monitoring/grafana.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_panels_lie_side_by_side_and_have_a_question_and_a_help():
    panels = DASHBOARD["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == 9
    for panel in panels:
        assert panel["title"].endswith("?") and panel["description"].endswith(".")
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_variables_and_options_have_the_keys_of_grafanas_published_types():
    """Of @grafana/schema 13.2.3: VariableModel, VariableOption, VizLegendOptions, VizTooltipOptions."""
    for variable in DASHBOARD["templating"]["list"]:
        assert "definition" not in variable
        assert set(variable.get("current", {"text": "", "value": ""})) == {"text", "value"}
    for panel in DASHBOARD["panels"]:
        assert {"calcs", "displayMode", "placement", "showLegend"} <= set(
            panel["options"]["legend"]
        )
        assert set(panel["options"]["tooltip"]) == {"mode", "sort"}


def test_an_expression_is_balanced_and_asks_one_server_or_all(subtests):
    for expression in EXPRESSIONS:
        with subtests.test(expression):
            assert expression.count("(") == expression.count(")")
            assert expression.count("{") == expression.count("}") == len(METRIC.findall(expression))
            assert 'instance=~"$server"' in expression


def test_prometheus_scrapes_what_the_dashboard_draws():
    (job,) = yaml.safe_load((ROOT / "docs/monitoring/prometheus.yml").read_text())["scrape_configs"]
    assert job["metrics_path"] == "/metrics" and job["authorization"] == {"credentials_file": "key"}


@pytest.mark.live
def test_the_running_server_publishes_every_metric(server):
    headers = {"Authorization": f"Bearer {server.api_key}"}
    page = httpx.get(metrics.metrics_url(server.url), headers=headers, trust_env=False).text
    published = set()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            published.add(sample.name)
    for expression in EXPRESSIONS:
        for name in METRIC.findall(expression):
            assert name in published, name
