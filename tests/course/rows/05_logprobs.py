"""Rows of test_every_check for notebook 05."""

from __future__ import annotations

import math

from workshop.client.logprobs import total_logprob


def best(scored):
    return max(scored, key=lambda label: total_logprob(scored[label]))


def surprising(rows):
    return max(
        (row for row in rows if row.logprob is not None), key=lambda row: row.surprise_bits
    ).token


ROWS = {
    "logprobs.entries": (
        [6],
        [],
    ),
    "logprobs.generated": (
        [("20", "49"), ["20", "49"], (" 20", "49 ")],
        [
            (("49", "20"), "other way round"),
            ("20", "two texts"),
            (("a", "b"), "are not the two"),
        ],
    ),
    "logprobs.prompt": (
        [("San", "Question"), ["San", "Question"], ("san", " question")],
        [
            (("Question", "San"), "other way round"),
            ("San", "two texts"),
        ],
    ),
    "logprobs.probability": (
        [math.exp(-8.533774), 0.000197, 0.000196, 0.0002],
        [
            (0.0003, "too large"),
        ],
    ),
    "logprobs.bits": (
        [10],
        [
            (0.0009766, "probability itself"),
        ],
    ),
    "logprobs.perplexity": (
        [math.exp(2), 7.389, 7.39, 7.4],
        [
            (math.exp(6), "number of tokens"),
            (math.exp(-2), "the sign"),
            (math.e, "all three"),
            (7.6, "too large"),
        ],
    ),
    "logprobs.confidence": (
        [math.exp(-1.25), 0.2865, 0.287, 0.29],
        [
            (math.exp(-1.25 / 3), "take the sum"),
            (math.exp(1.25 / 3), "perplexity"),
            (math.exp(-1.2), "doubtful token alone"),
            (math.exp(1.25), "negative"),
            (0.5, "too large"),
        ],
    ),
    "logprobs.classify": (
        [best],
        [
            (
                lambda scored: max(
                    scored, key=lambda label: sum(row.logprob for row in scored[label])
                ),
                "None",
            ),
            (
                lambda scored: min(scored, key=lambda label: total_logprob(scored[label])),
                "more probable",
            ),
            (
                lambda scored: max(
                    scored, key=lambda label: total_logprob(scored[label]) / len(scored[label])
                ),
                "means",
            ),
            (lambda scored: "no", "more probable"),
            (lambda scored: max(scored, key=scored.get), "cannot be compared with each other"),
            (lambda scored: max(map(total_logprob, scored.values())), "return the label"),
            (lambda scored: sum(row["logprob"] for row in scored["no"]), "attributes: row.logprob"),
            (lambda scored, rows: "no", "missing 1 required positional argument: 'rows'"),
            ("no", "not a function"),
        ],
    ),
    "logprobs.surprising": (
        [
            surprising,
            lambda rows: surprising(rows).strip(),
            lambda rows: min((row for row in rows if row.logprob), key=lambda row: row.logprob),
        ],
        [
            (lambda rows: rows[1], "least surprising"),
            (lambda rows: " Berlin", "' moon' has the lowest"),
            (lambda rows: rows[2], "least surprising"),
            (lambda rows: "", "leave it out"),
            (lambda rows: rows[3], "lowest logprob"),
            (lambda rows: max(rows, key=lambda row: row.surprise_bits), "both are None"),
            (
                lambda rows: max(row.surprise_bits for row in rows if row.logprob),
                "return the token",
            ),
            (
                lambda rows: max(rows, key=lambda row: row["surprise_bits"]),
                "attributes: row.logprob",
            ),
            (" Berlin", "not a function"),
        ],
    ),
    "logprobs.raw": (
        [math.log(0.4), -0.916, -0.92, -0.9],
        [
            (-0.8, "too large"),
        ],
    ),
}
