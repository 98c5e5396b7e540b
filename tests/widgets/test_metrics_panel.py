"""The panels: numbers given, picture read; and one look at the real server."""

from __future__ import annotations

import re

import pytest

from workshop.batch.progress import Progress
from workshop.course.drawing.figure import to_html
from workshop.course.topics import timeline
from workshop.course.topics.timeline import Span
from workshop.course.widgets.batch.view import BatchProgress
from workshop.course.widgets.batch.view import picture as progress_html
from workshop.course.widgets.metrics import view as metrics_view
from workshop.course.widgets.metrics.view import MetricsPanel
from workshop.engine.metrics import Metrics
from workshop.errors import BadInput


def look(second: float, running: int = 0, kv: float = 0.0, tokens: float = 0.0) -> Metrics:
    return Metrics(
        time=1000 + second,
        requests_running=running,
        requests_waiting=2,
        kv_cache_usage=kv,
        prompt_tokens_total=10 * second,
        generation_tokens_total=tokens,
        preemptions_total=0,
    )


LOOKS = [look(0), look(1, 4, 0.25, 100), look(2, 4, 0.5, 300), look(3, 0, 0.0, 300)]


def test_rates_and_usage_are_what_the_looks_say():
    requests, tokens, kv = metrics_view.charts(LOOKS)
    assert requests[3][0][2] == [0, 4, 4, 0] and requests[2] == [0, 1, 2, 3]
    assert (
        tokens[3][0][2] == [100, 200, 0]
        and tokens[3][1][2] == [10, 10, 10]
        and tokens[2] == [1, 2, 3]
    )
    assert kv[3][0][2] == [0, 25, 50, 0]


def test_the_picture_says_the_numbers_of_now_in_words():
    label = re.search(r'aria-label="([^"]+)"', metrics_view.picture(LOOKS[:3]))[1]
    assert "running 4" in label and "generation 200 tokens/s" in label and "KV cache 50 %" in label


def test_a_higher_usage_is_drawn_higher():
    def heights(usage):
        drawn = metrics_view.picture([look(0, kv=0.0), look(1, kv=usage)])
        return float(re.findall(r'points="[^"]*,([\d.]+)"', drawn)[-1])

    assert heights(0.9) < heights(0.5) < heights(0.1)


def test_the_axis_ends_at_a_round_number(subtests):
    for largest, top in [(0, 5), (3, 5), (7, 10), (11, 20), (21, 50), (640, 1000)]:
        with subtests.test(str(largest)):
            drawn = metrics_view.chart(
                "Requests", "", [0.0, 1.0], [("running", "blue", [0.0, largest])], last=False
            )
            assert re.findall(r">([\d,]+)</text>", drawn) == ["0", f"{top:,}"]


def test_a_server_that_is_away_is_said_in_the_panel():
    panel = MetricsPanel("http://127.0.0.1:9/v1")
    assert panel.look() is None and "does not answer" in panel.picture.value
    with pytest.raises(BadInput):
        MetricsPanel("http://127.0.0.1:9/v1", every_s=0)


def test_progress_shows_rows_rates_errors_and_kv_cache():
    drawn = progress_html(
        Progress(
            rows=200,
            done=50,
            errors=10,
            new=50,
            seconds=5,
            rows_per_s=10,
            generation_tokens_per_s=160,
            in_flight=8,
            limit=8,
            running=7,
            waiting=1,
            kv_cache_usage=0.4,
            message="<b>",
        )
    )
    assert 'aria-valuenow="25"' in drawn and "width:25.00%" in drawn and "width:5.00%" in drawn
    assert (
        "160 tokens/s" in drawn
        and "10 errors" in drawn
        and "14 s left" in drawn
        and drawn.count("40 %") == 1
    )
    assert "&lt;b&gt;" in drawn
    view = BatchProgress()
    view(Progress(4, 4, 0, 4, 1.0, 4.0, 8.0, 0, 4))
    assert "4 of 4 rows" in view.picture.value


def test_the_timeline_draws_each_request_at_its_times():
    spans = [Span("1: 8 tokens", 0.0, 1.0, 4.0, 8), Span("<2>", 2.0, 3.0, 4.0, 8)]
    made = timeline.draw(spans)
    bars = {(bar.get_x(), bar.get_width()) for bar in made.axes[0].patches}
    assert {(0, 1), (1, 3), (2, 1), (3, 1)} <= bars, (
        "waited, then tokens came; the second was sent after 2 s"
    )
    drawn = to_html(made)
    assert "<2>" not in drawn and "&lt;2&gt;" in drawn


@pytest.mark.live
def test_the_panel_sees_the_requests_of_a_real_server(client):
    # a server that shares two cores with others may answer /metrics only when it is done
    for _ in range(3):
        panel = MetricsPanel(client, every_s=0.25)
        panel.look()  # before they are sent, however late the thread begins
        panel.start()
        spans = timeline.ask(client, ["Boston is a"] * 4, 4, [600] * 4, temperature=1.0)
        looks = panel.stop()
        if max(look.requests_running for look in looks) >= 2:
            break
    assert max(look.requests_running for look in looks) >= 2
    assert looks[-1].generation_tokens_total - looks[0].generation_tokens_total >= 1200
    assert all(0 <= span.sent <= span.first <= span.ended for span in spans)
    assert "KV cache" in panel.picture.value
