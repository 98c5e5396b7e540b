"""Write docs/monitoring/grafana.json: a Grafana dashboard whose panels answer the questions of the notebooks.

python docs/dashboard.py        # tests/engine/test_dashboard.py compares its metrics with a running server's
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

OUTPUT = Path(__file__).parent / "monitoring" / "grafana.json"
SERVERS = 'instance=~"$server"'  # the variable of the dashboard: one server, or all of a class
WINDOW = "$__rate_interval"
COLUMNS = 24  # of Grafana's grid
HEIGHT = 8
LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}


@dataclass(frozen=True)
class Panel:
    """One picture: the question that it answers, what to look for, and its lines (legend → PromQL)."""

    question: str
    help: str
    lines: dict[str, str]
    unit: str = "short"
    most: float | None = None  # end of the axis, where it has one


def gauge(metric: str) -> str:
    """Return the value of each server."""
    return f"sum by (instance) (vllm:{metric}{{{SERVERS}}})"


def per_second(metric: str) -> str:
    """Return how fast a counter grows, for each server."""
    return f"sum by (instance) (rate(vllm:{metric}{{{SERVERS}}}[{WINDOW}]))"


def quantile(share: float, metric: str) -> str:
    """Return a percentile of a histogram in the last minutes, for each server."""
    buckets = f"rate(vllm:{metric}_bucket{{{SERVERS}}}[{WINDOW}])"
    return f"histogram_quantile({share}, sum by (instance, le) ({buckets}))"


def share(part: str, whole: str) -> str:
    """Return one counter's growth as a share of another's."""
    return f"{per_second(part)} / {per_second(whole)}"


PANELS = (
    Panel(
        "Are requests waiting?",
        "Waiting requests for more than a moment: the server has reached max_num_seqs or its KV cache is full "
        "(notebook 6).",
        {
            "running, {{instance}}": gauge("num_requests_running"),
            "waiting, {{instance}}": gauge("num_requests_waiting"),
        },
    ),
    Panel(
        "Is the KV cache full?",
        "Near 100 % the server preempts requests and computes them again (notebooks 1 and 11).",
        {"{{instance}}": gauge("kv_cache_usage_perc")},
        "percentunit",
        1.0,
    ),
    Panel(
        "How long until the first token?",
        "p50 and p95 of the time to first token (notebook 6). It grows before anything else does.",
        {
            "p50, {{instance}}": quantile(0.5, "time_to_first_token_seconds"),
            "p95, {{instance}}": quantile(0.95, "time_to_first_token_seconds"),
        },
        "s",
    ),
    Panel(
        "How fast do answers come?",
        "Time per output token of one request. 0.1 s is about the speed of reading (notebook 6).",
        {
            "p50, {{instance}}": quantile(0.5, "request_time_per_output_token_seconds"),
            "p95, {{instance}}": quantile(0.95, "request_time_per_output_token_seconds"),
        },
        "s",
    ),
    Panel(
        "How much does it answer?",
        "Tokens per second of all requests together: read (prompts) and written (answers).",
        {
            "written, {{instance}}": per_second("generation_tokens_total"),
            "read, {{instance}}": per_second("prompt_tokens_total"),
        },
    ),
    Panel(
        "Do prefixes hit?",
        "Share of prompt tokens that were in the prefix cache. A class with one system prompt, and agents, should be "
        "high (notebook 13).",
        {"{{instance}}": share("prefix_cache_hits_total", "prefix_cache_queries_total")},
        "percentunit",
        1.0,
    ),
    Panel(
        "Are requests preempted?",
        "Preemptions per second. More than now and then: give fewer max_num_seqs, or more KV cache (notebook 11).",
        {"{{instance}}": per_second("num_preemptions_total")},
    ),
    Panel(
        "Where does the time go?",
        "Seconds that a request spends in the queue, reading its prompt and writing its answer (median).",
        {
            "queue, {{instance}}": quantile(0.5, "request_queue_time_seconds"),
            "prefill, {{instance}}": quantile(0.5, "request_prefill_time_seconds"),
            "decode, {{instance}}": quantile(0.5, "request_decode_time_seconds"),
        },
        "s",
    ),
    Panel(
        "How do answers end?",
        "stop: the model ended by itself. length: cut at max_tokens. abort: the client left (notebook 4).",
        {
            "{{finished_reason}}": f"sum by (finished_reason) (rate(vllm:request_success_total{{{SERVERS}}}[{WINDOW}]))"
        },
    ),
)


def expressions() -> list[str]:
    """Return every expression of the dashboard."""
    return [expression for panel in PANELS for expression in panel.lines.values()]


def dashboard() -> dict:
    """Return the dashboard in Grafana's form (schema 39, Grafana 10 and later)."""
    source = {"type": "prometheus", "uid": "${source}"}
    width = COLUMNS // 3
    panels = []
    for number, panel in enumerate(PANELS):
        targets = []
        for letter, (legend, expression) in zip("ABCDEF", panel.lines.items(), strict=False):
            targets.append(
                {
                    "refId": letter,
                    "datasource": source,
                    "expr": expression,
                    "legendFormat": legend,
                }
            )
        defaults: dict = {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}}
        if panel.most is not None:
            defaults["max"] = panel.most
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.question,
                "description": panel.help,
                "datasource": source,
                "gridPos": {
                    "x": number % 3 * width,
                    "y": number // 3 * HEIGHT,
                    "w": width,
                    "h": HEIGHT,
                },
                "fieldConfig": {"defaults": defaults, "overrides": []},
                "options": {"legend": LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
                "targets": targets,
            }
        )
    server = {
        "name": "server",
        "label": "Server",
        "type": "query",
        "datasource": source,
        "query": {"query": "label_values(vllm:num_requests_running, instance)", "refId": "server"},
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }
    prometheus = {
        "name": "source",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }
    return {
        "title": "vLLM: a server, or a class of servers",
        "uid": "workshop-vllm",
        "schemaVersion": 39,
        "tags": ["vllm"],
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "10s",
        "timezone": "browser",
        "templating": {"list": [prometheus, server]},
        "panels": panels,
    }


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
