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
from workshop.course.drawing.figure import figure
from workshop.course.topics import abstracts
from workshop.course.topics.abstracts import NEW_TOPICS
from workshop.course.widgets import style

__all__ = ["NEW_TOPICS", "diagram", "groups", "most_probable", "scored", "summary"]

DIAGONAL = "as it should be"
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
    """Draw a reliability diagram: a line for each name, and the diagonal."""
    title = "Does a confidence mean what it says?"
    lines = {}
    sentences = []
    for name, labels in labels_by_name.items():
        lines[name] = {mean: share for mean, share, _ in groups(labels)}
        points = ", ".join(f"{mean:.2f} → {share:.2f}" for mean, share in lines[name].items())
        sentences.append(f"{name}: {points}.")
    lines[DIAGONAL] = {n / 50: n / 50 for n in range(51)}  # of so many points none is marked
    return figure(
        lines,
        xlabel="confidence",
        ylabel="share of right labels",
        title=title,
        colours={DIAGONAL: style.GREY},
        height=380,
        description=f"{title} Confidence → share right. {' '.join(sentences)}",
    )
