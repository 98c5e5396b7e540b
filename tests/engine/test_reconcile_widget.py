"""The widget: a trait is set and its picture read, without a browser."""

from __future__ import annotations

from workshop.course.widgets import style
from workshop.course.widgets.reconcile import view as widget
from workshop.course.widgets.reconcile.view import LOGS, picture
from workshop.engine.reconcile.compare import Quantity, Reconciliation, reconcile


def test_every_recorded_log_is_drawn():
    view = widget.ReconcileView()
    assert len(view.choice.options) >= 10
    for label in view.choice.options[:-1]:
        view.choice.value = label
        assert "KV cache size" in view.picture.value and "What to change" in view.picture.value
        assert 'role="img" aria-label="Plan beside log.' in view.picture.value


def test_the_picture_has_the_numbers_of_the_log():
    view = widget.ReconcileView()
    view.choice.value = next(
        label for label in view.choice.options if label.startswith("llama-3.1-8b")
    )
    assert "914,304" in view.picture.value and "--kv-cache-dtype fp8" in view.picture.value


def test_a_path_of_ones_own_is_read_and_asks_for_what_is_missing():
    path = LOGS / "llama-3.1-8b_tp1_h200.log"
    view = widget.ReconcileView(path)
    assert view.choice.value == widget.OWN and view.own.layout.display == ""
    assert "does not name its GPU" in view.picture.value
    view.gpu.value = "h200"
    assert "914,304" in view.picture.value
    view.path.value = "/no/such.log"
    assert "No such file" in view.picture.value
    view.path.value = ""
    assert "Give the path" in view.picture.value


def test_a_bar_goes_to_the_side_of_its_error_and_ends_at_the_axis(subtests):
    for error, place, colour in [
        (2.5, "left:50.00%;width:25.00%", style.ORANGE),
        (-2.5, "left:25.00%;width:25.00%", style.ORANGE),
        (40.0, "left:50.00%;width:50.00%", style.BAD),
        (0.2, "left:50.00%;width:2.00%", style.GOOD),
    ]:
        with subtests.test(str(error)):
            html = picture(Reconciliation([Quantity("x", 1.0, 1.0, "GiB", error, "why")], []))
            assert f"{place};background:{colour}" in html


def test_what_a_log_says_cannot_become_markup():
    row = Quantity("<b>x</b>", 1.0, 1.0, "GiB", 0.0, '<img src=x onerror="alert(1)">')
    html = picture(Reconciliation([row], [], ["<script>"], 'quote " here'))
    assert "<img" not in html and "<script>" not in html and "<b>x</b>" not in html


def test_the_picture_is_a_grid_which_themes_leave_alone():
    path = LOGS / "llama-3.1-405b-fp8_tp4_h200.log"
    assert "<table" not in picture(reconcile(path, gpu="h200"))
