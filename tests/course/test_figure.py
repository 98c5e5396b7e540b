"""A figure of numbers: the same from matplotlib and, where that cannot be imported, as SVG."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from workshop.course.drawing import chart, figure, plots
from workshop.course.drawing.figure import (
    colours_of,
    draw,
    keep_apart,
    number,
    series_of,
    to_html,
    words_of,
)
from workshop.course.topics import roofline
from workshop.course.widgets import style
from workshop.errors import BadInput

GROWTH = {"without a cache": {1: 1, 2: 3, 3: 6, 4: 10}, "with a KV cache": {1: 1, 2: 2, 3: 3, 4: 4}}
WEIGHTS = {"float16": {"8B": 16.0, "70B": 140.0}, "INT4": {"8B": 4.0, "70B": 35.0}}
ERRORS = {
    "workshop plan": {"a run": 0.5, "another": -1.0},
    "theirs": {"a run": 90.0, "another": -20.0},
}
WAITED = {
    "": {"1": 0.0, "2": 0.5},
    "sent, no token yet": {"1": 0.1, "2": 0.2},
    "tokens come": {"1": 1.0, "2": 2.0},
}
DRAWINGS = sorted((Path(plots.__file__).parent / "pictures").glob("*.svg"))
CASES = {"line": GROWTH, "barh": WEIGHTS, "stacked": WAITED, "points": ERRORS}


@pytest.fixture
def without_matplotlib(monkeypatch):
    """As in a place where matplotlib is not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def shown(made) -> str:
    """The HTML that a notebook gets."""
    return made._repr_html_() if isinstance(made, chart.Picture) else to_html(made)


def both(kind: str, way: str, **more) -> str:
    made = figure.figure(CASES[kind], kind, xlabel="tokens", ylabel="pairs", limit=60, **more)
    assert isinstance(made, chart.Picture) == (way == "svg")
    return shown(made)


@pytest.fixture(params=["matplotlib", "svg"])
def way(request):
    """Both ways of drawing."""
    if request.param == "svg":
        request.getfixturevalue("without_matplotlib")
    return request.param


def test_bars_are_as_long_as_their_numbers_in_both_ways(way):
    drawn = both("barh", way).replace(" \n", " ")
    if way == "svg":
        wide = [
            float(w) for w in re.findall(r'width="([\d.]+)" height="[\d.]+" rx="2" fill="#', drawn)
        ][:4]
    else:
        edges = re.findall(
            r'd="M ([\d.]+) [\d.]+ L ([\d.]+) [\d.]+ L [^"]*z " clip-path="[^"]*" style="fill: #',
            drawn,
        )[:4]
        wide = [float(right) - float(left) for left, right in edges]
    assert [w / wide[0] for w in wide] == pytest.approx([1, 140 / 16, 4 / 16, 35 / 16], rel=0.01)


def smallest_text(drawn: str, pixels: int) -> float:
    """The pixels of the smallest text of a picture that a page shows so wide, or as wide as it may be."""
    drawn = drawn.split("</style>")[-1]
    units = float(re.search(r'viewBox="0 0 ([\d.]+)', drawn)[1])
    widest = re.search(r"max-width:([\d.]+)px", drawn)
    if widest:
        pixels = min(pixels, float(widest[1]))
    sizes = re.findall(r'font-size="([\d.]+)"|font(?:-size)?: (?:\w+ )?([\d.]+)px', drawn)
    return min(float(size) for pair in sizes for size in pair if size) * pixels / units


def test_each_kind_says_its_labels_and_numbers_in_its_colours_large_enough_in_both_ways(
    way, subtests
):
    title = "Speed with draft tokens, by users at once (planned, α = 0.7)"
    for kind, data in CASES.items():
        with subtests.test(kind):
            *others, last = data
            drawn = both(kind, way, title=title, colours={last: "#123456"})
            aria_label = re.search(r'aria-label="([^"]+)"', drawn)[1]
            assert aria_label.startswith(f"{title}. pairs against tokens. ")
            pieces = re.split(r"<[^>]+>", drawn.split("</style>")[-1])
            texts = [text for text in pieces if text.strip()]
            assert title in " ".join(texts) and max(map(len, texts)) <= 66
            rows = [x for x in data[last] if isinstance(x, str)]
            assert {"tokens", "pairs", *filter(None, data), *rows} <= {*texts}
            for points in (data[label] for label in data if label):
                assert number(list(points.values())[-1]) in aria_label
            colours = colours_of(series_of(data), None)
            for colour in (*(colours[label] for label in others), "#123456"):
                assert colour.lower() in drawn.lower()
            # A window of 900 pixels leaves 440 beside the file browser; text of 12 in a figure of 720 had 7.
            assert smallest_text(drawn, 440) >= 10


def test_the_text_of_the_roofline_has_ten_pixels_too():
    assert smallest_text(roofline.picture("h200")._repr_html_(), 440) >= 10


def test_the_text_of_a_drawing_has_ten_pixels_where_it_is_560_wide(subtests):
    for path in DRAWINGS:
        with subtests.test(path.stem):
            assert smallest_text(plots.drawing(path.stem)._repr_html_(), 560) >= 10


def test_a_drawing_takes_its_colours_by_their_names():
    palette = [colour.lower() for colour in style.NAMES.values() if colour.startswith("#")]
    for path in DRAWINGS:
        typed = re.findall(r"#\w{6}", path.read_text(encoding="utf-8").lower())
        assert not {*typed} & {*palette}, (
            f"{path.name}: write var(--name), as widgets/style.py has it"
        )


def test_what_lies_beyond_the_limit_stands_at_the_edge_with_its_number(way):
    assert ">+90<" in both("points", way)


def bars(drawn: str) -> list[tuple[float, float]]:
    """Left and right edges of the bars of a picture without matplotlib, then of its legend."""
    places = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    return [(float(x), float(x) + float(width)) for x, width in places]


def dots(drawn: str) -> list[tuple[float, float]]:
    """The middles of the dots of a picture without matplotlib."""
    places = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    return [(float(x), float(y)) for x, y in places]


def test_without_matplotlib_stacked_bars_begin_where_those_before_end(without_matplotlib):
    edges = bars(shown(figure.figure(WAITED, "stacked")))
    for row in (0, 1):
        gap, waiting, tokens = edges[row:6:2]
        assert waiting[0] == pytest.approx(gap[1], abs=0.2)
        assert tokens[0] == pytest.approx(waiting[1], abs=0.2)
    assert edges[1][1] - edges[1][0] == pytest.approx(5 * (edges[2][1] - edges[2][0]), abs=0.3)


def test_without_matplotlib_a_negative_bar_is_left_of_a_positive_one_their_numbers_outside(
    without_matplotlib,
):
    drawn = shown(figure.figure({"less": -3, "more": 6}, "barh"))
    less, more = bars(drawn)
    assert less[1] == pytest.approx(more[0], abs=0.2)
    assert 2 * (less[1] - less[0]) == pytest.approx(more[1] - more[0], abs=0.3)
    numbers = re.findall(r'<text x="([\d.]+)"[^>]* text-anchor="(\w+)"[^>]*"600">([-\d]+)<', drawn)
    (x_less, *beside_less), (x_more, *beside_more) = numbers
    assert float(x_less) < less[0] and beside_less == ["end", "-3"]
    assert float(x_more) > more[1] and beside_more == ["start", "6"]


def test_without_matplotlib_lines_below_zero_and_with_other_names_stay_between_their_axes(
    without_matplotlib,
):
    drawn = shown(figure.figure({"one": {"a": -1, "b": 2}, "two": {"b": 3, "c": -4}}))
    left, top, bottom, right = map(
        float, re.search(r'd="M(\S+) (\S+)V(\S+)H(\S+)"', drawn).groups()
    )
    (a, _), (b, _), (b_of_two, _), (c, lowest) = dots(drawn)
    assert a == left and b == b_of_two == pytest.approx((left + right) / 2) and c == right
    assert lowest == bottom and all(top <= y <= bottom for _, y in dots(drawn))


def test_without_matplotlib_points_of_the_first_series_lie_over_the_others(without_matplotlib):
    colours = re.findall(r'<circle [^>]*fill="([^"]+)"', both("points", "svg"))
    assert colours == [style.BLUE] * 2 + [style.GREEN] * 2


def test_points_have_their_names_and_a_repeated_x_is_two_points(way):
    made = figure.figure(
        pd.Series([160.0, 290.0, 300.0], index=[0.2, 0.3, 0.3]), names=["1 at once", "2", "4"]
    )
    assert "1 at once" in shown(made) and "0.2: 160, 0.3: 290, 0.3: 300" in made.words


def test_a_table_of_pandas_is_the_same_figure_as_dictionaries():
    pytest.importorskip("matplotlib")
    assert shown(figure.figure(pd.DataFrame(GROWTH))) == shown(figure.figure(GROWTH))
    half = pd.DataFrame({"a": {1: 1.0, 2: 2.0}, "b": {2: 5.0, 3: 6.0}})
    assert [xs for _, xs, _ in series_of(half)] == [[1, 2], [2, 3]], "NaN is left out"


def test_a_figure_is_drawn_once_in_the_colours_of_the_theme():
    import matplotlib.pyplot as plt

    drawn = shown(figure.figure(GROWTH, title="Grün & <b>"))
    assert plt.get_fignums() == [], "pyplot would show it a second time"
    body = drawn.split("</style>")[-1]
    assert style.TEXT in body and figure.INK not in body.replace(style.TEXT, "")
    assert (
        "<b>" not in body
        and "font-family" not in body
        and " id=" not in re.sub(r' id="p\w{10}-\d+"', "", body)
    )


def test_a_learners_own_figure_is_shown_in_the_same_way():
    from matplotlib.figure import Figure

    own = Figure()
    own.subplots().set(title="mine", xlabel="s", ylabel="GiB")
    assert 'aria-label="mine. GiB. s"' in to_html(own)


def test_the_style_is_for_one_figure_unless_it_is_asked_for_all():
    import matplotlib

    before = matplotlib.rcParams["axes.spines.top"]
    figure.figure(GROWTH)
    assert matplotlib.rcParams["axes.spines.top"] is before is True
    with matplotlib.rc_context():
        figure.course_style()
        assert matplotlib.rcParams["axes.spines.top"] is False
        assert next(iter(matplotlib.rcParams["axes.prop_cycle"]))["color"] == style.BLUE


def test_importing_the_helper_does_not_import_matplotlib():
    code = "import sys, workshop.course.drawing.plots; sys.exit('matplotlib' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_cannot_be_drawn_is_said(subtests):
    for data, kind, says in [
        (GROWTH, "pie", "no kind of figure 'pie'"),
        ({}, "line", "no numbers"),
        ({"a": {}}, "barh", "no numbers"),
    ]:
        with subtests.test(str(data)), pytest.raises(BadInput, match=says):
            figure.figure(data, kind)


def test_names_at_the_ends_of_lines_are_moved_apart_and_keep_their_order():
    assert keep_apart([10.0, 10.5, 3.0], 2.0) == [10.0, 12.0, 3.0]


def test_what_a_label_means_decides_its_colour_and_others_take_what_is_left():
    colours = colours_of([("other", [], []), ("weights", [], []), ("KV cache", [], [])], None)
    assert colours == {"other": style.GREEN, "weights": style.WEIGHTS, "KV cache": style.KV_CACHE}


def test_a_long_line_is_said_by_its_ends():
    assert words_of([("a", list(range(100)), [float(n * n) for n in range(100)])], "", "n", "") == (
        "n. a: 0: 0, 99: 9,801."
    )


def test_axes_of_ones_own_take_the_same_data():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw(axes, WEIGHTS, "barh", legend=False)
    assert [bar.get_width() for bar in axes.patches] == [16, 140, 4, 35]


def test_numbers_have_three_digits_and_thousands_their_commas(subtests):
    for value, text in [
        (0, "0"),
        (0.0312, "0.0312"),
        (7.349, "7.35"),
        (0.966, "0.966"),
        (0.0001, "<0.001"),
        (202.5, "203"),
        (-90.2, "-90.2"),
    ]:
        with subtests.test(str(value)):
            assert number(value) == text and number(1_064_960) == "1,064,960"


def test_written_numbers_keep_their_digits(way):
    drawn = shown(figure.figure({"city": 0.9656, "port": 0.02442}, "barh"))
    assert ">0.966<" in drawn and ">0.0244<" in drawn


def test_a_legend_of_many_long_labels_leaves_the_bars_their_height():
    steps = {
        f"a name that takes a whole line, part {part}": {"before": 2.0, "after": 1.0}
        for part in range(7)
    }
    drawn = figure.figure(steps, "stacked")
    drawn.draw_without_rendering()
    assert drawn.axes[0].get_window_extent().height > 2 * 25  # two rows
