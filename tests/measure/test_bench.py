"""`vllm bench serve` as the client: its trace, and a real run against the teaching server."""

from __future__ import annotations

import json

import pytest

from workshop.measure.comparison import bench, trace_of
from workshop.servers import records
from workshop.servers.local import TEACHING_FOLDER
from workshop.simulate.arrivals import Arrival, drawn


def test_a_trace_has_the_lengths_and_no_two_prompts_share_a_chunk():
    rows = [
        json.loads(line)
        for line in trace_of([Arrival(0.5, 40, 7), Arrival(1.0, 16, 3)]).splitlines()
    ]
    assert [(row["timestamp"], row["input_length"], row["output_length"]) for row in rows] == [
        (0.5, 40, 7),
        (1.0, 16, 3),
    ]
    assert [row["hash_ids"] for row in rows] == [[0, 1, 2], [3]]  # 16 tokens each


@pytest.mark.live
def test_vllms_client_measures_the_teaching_server(server, live_home, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    (record, *_) = [record for record in records.own() if record.state == "ready"]
    figures = bench(
        record,
        record.model,
        str(TEACHING_FOLDER),
        drawn(burst=4, prompt=(20, 60), output=(4, 8), seed=0),
    )
    assert all(
        0 < figures[name]["p50"] <= figures[name]["p95"] for name in ("ttft", "tpot", "e2el")
    )
    assert figures["tokens_per_s"] > 0
