"""Helpers of notebook 05: labels that are chosen by comparing texts, and how often a confidence is right.

>>> from workshop import connect
>>> from workshop.course.notebooks import nb05
>>> from workshop.course.topics import abstracts
>>> songbirds = abstracts.load()[5]["text"]
>>> nb05.most_probable(nb05.scored(connect(), songbirds, abstracts.FIELDS))
'biology'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.client import logprobs
from workshop.client.client import Client
from workshop.course.drawing import chart
from workshop.course.drawing.figure import figure
from workshop.course.drawing.tables import Table
from workshop.course.topics import abstracts
from workshop.course.topics.abstracts import NEW_TOPICS
from workshop.course.widgets import style

__all__ = [
    "NEW_TOPICS",
    "diagram",
    "four_texts",
    "groups",
    "most_probable",
    "prompt_table",
    "rounded",
    "scored",
    "strip",
    "summary",
]

DIAGONAL = "as it should be"
FEWEST = 10  # labels of a group that the diagram shows
HEIGHT = 110  # of the field of a strip
GOLDEN = 0.618034  # its multiples scatter without clusters
Labels = Sequence[tuple[float, str, str]]  # of each: its confidence, the label, the right label


def scored(llm: Client, text: str, labels: Sequence[str]) -> dict[str, list[logprobs.Row]]:
    """Return each label with the rows of an abstract's prompt that ends in it.

    One request asks for all of them.
    """
    prompts = [f"{abstracts.prompt(text)} {label}" for label in labels]
    answer = llm.complete(prompts, max_tokens=1, temperature=0, prompt_logprobs=0).model_dump()
    rows_by_label = {}
    for number, label in enumerate(labels):
        rows = logprobs.rows(answer, choice=number)
        rows_by_label[label] = [row for row in rows if row.part == "prompt"]
    return rows_by_label


def most_probable(rows_by_label: Mapping[str, Sequence[logprobs.Row]]) -> str:
    """Return the label whose text is the most probable one."""
    totals = {label: logprobs.total_logprob(rows) for label, rows in rows_by_label.items()}
    return max(totals, key=totals.__getitem__)


def four_texts() -> dict[str, str]:
    """Return four texts by name: a sentence of an abstract, its words sorted, a cat's, a German one."""
    plain = abstracts.load()[321]["text"].split(". ")[0] + "."
    return {
        "plain": plain,
        "alphabetical": " ".join(sorted(plain.split())),
        "cat": "asdkl jjjj;; oopq",
        "German": "In dieser Studie untersuchen wir die Effizienz von Methoden zur Produktion von "
        "Lithium-Ionen-Batterien.",
    }


def groups(labels: Labels, number: int = 5) -> list[tuple[float, float, int]]:
    """Return, for labels of about the same confidence, its mean, the share that is right, and their count.

    Args:
        number: into how many equal parts the confidences from 0 to 1 are cut; empty ones are left
            out.
    """
    members: dict[int, list[tuple[float, bool]]] = {}
    for confidence, label, right in labels:
        part = min(int(confidence * number), number - 1)
        members.setdefault(part, []).append((confidence, label == right))
    of_groups = []
    for part in sorted(members):
        confidences, are_right = zip(*members[part], strict=True)
        count = len(confidences)
        of_groups.append((sum(confidences) / count, sum(are_right) / count, count))
    return of_groups


def summary(labels: Labels) -> dict:
    """Return how sure the labels are, how many are right, and how far their groups are from the diagonal.

    The distance is the mean over all labels, the expected calibration error.
    """
    of_groups = groups(labels)
    counts = [count for _, _, count in of_groups]
    total = sum(counts)
    return {
        "mean confidence": round(sum(mean * count for mean, _, count in of_groups) / total, 2),
        "share right": round(sum(share * count for _, share, count in of_groups) / total, 2),
        "distance": round(
            sum(abs(mean - share) * count for mean, share, count in of_groups) / total, 2
        ),
        "in each group": counts,
    }


def diagram(labels_by_name: Mapping[str, Labels]):
    """Draw a reliability diagram: a line for each name, and the diagonal.

    Groups of fewer than FEWEST labels are left out.
    """
    title = "Does a confidence mean what it says?"
    lines = {}
    sentences = []
    for name, labels in labels_by_name.items():
        points = {mean: share for mean, share, count in groups(labels) if count >= FEWEST}
        if points:
            lines[name] = points
            places = ", ".join(f"{mean:.2f} → {share:.2f}" for mean, share in points.items())
            sentences.append(f"{name}: {places}.")
    lines[DIAGONAL] = {n / 50: n / 50 for n in range(51)}  # of so many points none is marked
    drawn = figure(
        lines,
        xlabel="confidence",
        ylabel="share of right labels",
        title=title,
        colours={DIAGONAL: style.GREY},
        height=380,
        description=f"{title} Confidence → share right. {' '.join(sentences)}",
    )
    if not isinstance(drawn, chart.Picture):
        _put_names(drawn.axes[0], [points[max(points)] for points in lines.values()])
    return drawn


def _put_names(axes, heights: Sequence[float]) -> None:
    """Write the diagonal's name along it, and the other names at the right edge."""
    axes.get_lines()[-1].set_linewidth(1)  # the diagonal, below what it is compared with
    for label, height in zip(list(axes.texts), heights, strict=True):
        label.xy = (1, height)
        if label.get_text() == DIAGONAL:
            label.remove()
    size = axes.xaxis.label.get_size()
    place = {"ha": "center", "va": "bottom", "color": style.SOFT, "size": size}
    along = {"rotation": 45, "rotation_mode": "anchor", "transform_rotates_text": True}
    axes.text(0.24, 0.262, DIAGONAL, **place, **along)


def strip(labels: Labels, least_sure: int) -> chart.Picture:
    """Draw a dot for each label along its confidence, and a line behind the least sure ones.

    Mistakes are orange and larger.

    Args:
        labels: sorted by confidence.
        least_sure: how many labels stand before the line.
    """
    are_wrong = [label != right for _, label, right in labels]
    title = (
        f"{are_wrong.count(False)} of {len(labels)} labels are right. {sum(are_wrong[:least_sure])} "
        f"of {sum(are_wrong)} mistakes are among the {least_sure} least sure."
    )
    axes = chart.Axes(16, 56, 544, 56 + HEIGHT)
    right_dots, wrong_dots, mistakes = "", "", []
    for n, (confidence, label, right) in enumerate(labels):
        place = axes.x(confidence), axes.top + 6 + (HEIGHT - 12) * (n * GOLDEN % 1)
        name = f"{confidence:.2f} {label}"
        if label == right:
            right_dots += chart.dot(*place, 2.8, style.GREY, title=name)
        else:
            mistakes.append(f"{name} (right: {right})")
            wrong_dots += chart.dot(*place, 5.5, style.ORANGE, title=mistakes[-1])
    behind = axes.x(sum(confidence for confidence, _, _ in labels[least_sure - 1 :][:2]) / 2)
    return chart.Picture(
        chart.text(0, 18, title, size=13, bold=True)
        + chart.dot(axes.left + 3, 37, 5.5, style.ORANGE)
        + chart.text(axes.left + 14, 41, "a mistake")
        + chart.dot(axes.left + 93, 37, 2.8, style.GREY)
        + chart.text(axes.left + 101, 41, "right")
        + chart.path(f"M{axes.left} {axes.bottom}H{axes.right}")
        + right_dots
        + wrong_dots
        + chart.path(f"M{behind:.1f} 46V{axes.bottom}", style.TEXT, 1.5, dash="4 3")
        + chart.text(behind - 6, 41, f"the {least_sure} least sure", anchor="end")
        + axes.x_ticks([0, 0.2, 0.4, 0.6, 0.8, 1], "{:.1f}".format)
        + chart.text(280, axes.bottom + 34, "confidence", anchor="middle", fill=style.MUTED),
        560,
        round(axes.bottom) + 42,
        f"{title} The mistakes: {', '.join(mistakes) or 'none'}.",
    )


def prompt_table(answer: object) -> Table:
    """Return a row for each token of the prompt: its logprob and rank, and the most probable token there."""
    shown = []
    for row in logprobs.rows(answer):
        if row.part != "prompt":
            continue
        if row.logprob is None:  # nothing stood before it
            token = repr(row.token) if row.token else "(the first token)"
            shown.append((token, "None", "", "", ""))
            continue
        best = row.most_probable or row
        logprob, best_logprob = f"{row.logprob:.4f}", f"{best.logprob:.4f}"
        shown.append((repr(row.token), logprob, str(row.rank), repr(best.token), best_logprob))
    return Table(("token", "logprob", "rank", "most probable", "logprob of that one"), shown)


def rounded(listed: Mapping | None) -> dict | None:
    """Return the tokens that a server listed for one position, with logprobs of four digits.

    >>> rounded({"24661": {"logprob": -8.533774, "rank": 284, "decoded_token": "San"}})
    {'24661': {'logprob': -8.5338, 'rank': 284, 'decoded_token': 'San'}}
    >>> rounded({" port": -0.69314})
    {' port': -0.6931}
    """
    if listed is None:
        return None
    shown = {}
    for token, entry in listed.items():
        if isinstance(entry, float | int):
            shown[token] = round(entry, 4)
        else:
            shown[token] = {**entry, "logprob": round(entry["logprob"], 4)}
    return shown
