"""Rows of test_every_check for notebook 13."""

from __future__ import annotations

import numpy as np

from workshop.course.exercises.sets.e13_scale_out import RIGHT, pieces, toy

x, router, W1, W2 = toy()


def by_rank(parts):
    """Return what four ranks add, two experts each: of [8 experts, 12 tokens, 4]."""
    return [parts[2 * rank] + parts[2 * rank + 1] for rank in range(4)]


def by_hand():
    """The same, one pair of token and expert after the other."""
    outputs = [np.zeros_like(x) for _ in range(4)]
    for token, scores in enumerate(np.exp(x @ router)):
        first, second = np.argsort(scores)[:-3:-1]
        for e in (first, second):
            gate = scores[e] / (scores[first] + scores[second])
            outputs[e // 2][token] += gate * (np.maximum(x[token] @ W1[e], 0) @ W2[e])
    return outputs


ALL = np.maximum(x @ W1, 0) @ W2  # every expert answers every token

ROWS = {
    "scale.moved": (
        [26.2144, 26.2, 4000 * 327680 / 50e9 * 1e3],
        [
            (30, "too large"),
            ("26.2 ms", "without the unit: it is ms"),
        ],
    ),
    "scale.experts": (
        [by_hand(), tuple(by_rank(pieces())), [part.tolist() for part in by_hand()]],
        [
            (by_hand()[:3], "a list of 4 arrays"),
            ([sum(by_hand()), *by_hand()[1:]], "the whole already"),
            (by_hand()[::-1], "rank 0 has the experts 0 and 1"),
            (by_rank(ALL), "its two chosen experts only"),
            (by_rank(np.where(pieces() != 0, ALL, 0)), "the gates are missing"),
            ([part + 1 for part in by_hand()], "not what the whole layer gives"),
            ([part.T for part in by_hand()], "of the shape of x, (12, 4)"),
            (7, "a list of four arrays"),
        ],
    ),
    "scale.which": (
        [dict(RIGHT), {"A": "Replicas", "B": "tp", "C": "DP+EP", "D": "apart "}],
        [
            *(
                ({**RIGHT, name: way}, message)
                for name, way, message in (
                    ("A", "TP", "who has read which"),
                    ("A", "DP + EP", "no experts"),
                    ("A", "apart", "read for each question"),
                    ("B", "replicas", "too small for a copy"),
                    ("B", "DP + EP", "tokens/s of one stream"),
                    ("B", "apart", "nobody's prompt"),
                    ("C", "replicas", "too small for a copy"),
                    ("C", "TP", "the same copy of each latent"),
                    ("C", "apart", "no second server"),
                    ("D", "replicas", "shares its steps"),
                    ("D", "TP", "answers still share them"),
                    ("D", "DP + EP", "no experts"),
                    ("D", "PP", "D is 'PP'"),
                )
            ),
            (["replicas", "TP", "DP + EP", "apart"], "give all of"),
        ],
    ),
}
