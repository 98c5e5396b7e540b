"""Rows of test_every_check for notebook 03."""

from __future__ import annotations

import pandas as pd
from check_rows import URL

from workshop.course.exercises.sets.e03_server import RIGHT as CAUSES

ROWS = {
    "server.hand_tokens": (
        [65536, 64 * 2**20 / 1024, 65_536],
        [
            (65000, "too small"),
        ],
    ),
    "server.output_path": (
        [
            "/scratch/ada/%x_%j.out",
            "/scratch/%u/%x_%j.out",
            "--output=/scratch/ada/%x_%j.out",
            "#SBATCH --output=/scratch/ada/%x_%j.out",
        ],
        [
            ("/scratch/ada/70b_4711.out", "differ from job to job"),
            ("/scratch/ada/%x_$SLURM_JOB_ID.out", "not bash"),
            ("~/%x_%j.out", "not bash"),
            (
                "/scratch/ada/%x_%j/output.out",
                "SLURM makes no folder: without /scratch/ada/70b_4711",
            ),
            ("%x_%j.out", "would write to 70b_4711.out"),
            ("/scratch/ada/%j_%x.out", "4711_70b.out"),
            (4711, "give a string"),
        ],
    ),
    "server.split": (
        [(8, 2), [8, 2]],
        [
            ((8, 4), "product is 32"),
            ((1, 16), "stays inside a node"),
            (4, "two numbers"),
            (("4", "4"), "two numbers"),
        ],
    ),
    "server.budget": (
        [3248, 3247.2, 3240, 3250, 405.9e9 * 2 / 0.25e9],
        [
            (3248 / 60, "minutes"),
            (3300, "too large"),
        ],
    ),
    "server.weights_gib": (
        [131.56, (32.89, 4), [4, 32.89], 131.6, 132],
        [
            ((32.89, 1), "one rank"),
            ((32.89, 3), "from 0 to 3"),
            (128, "too small"),
        ],
    ),
    "server.kv_tokens": (
        [1_229_264],
        [
            ("1,229,264", "without quotes"),
            (1_229_000, "too small"),
        ],
    ),
    "server.endpoint": (
        [
            f"{URL}/chat/completions",
            f"{URL}/chat/completions/",
            "http://localhost:8000/v1/chat/completions",
        ],
        [
            ("/v1/chat/completions", "the path"),
            (f"{URL}/completions", "conversation"),
            (f"{URL}/v1/chat/completions", "already"),
            ("http://127.0.0.1:9000/v1/chat/completions", "is not it"),
            (f"{URL}/chat", "is not it"),
            ("localhost:8000/v1/chat/completions", "begins with http"),
            (8000, "give a string"),
        ],
    ),
    "server.cause": (
        ["file", " File"],
        [
            ("kv", "log B"),
            ("port", "address"),
            ("killed", "reading something"),
            ("divide", "heads"),
            ("disk", "not whole"),
            ("gated", "permission"),
            ("gremlins", "no cause of the list"),
            (3, "in quotes"),
        ],
    ),
    "server.causes": (
        [
            CAUSES,
            pd.Series(CAUSES),
            {letter.lower(): cause.upper() for letter, cause in CAUSES.items()},
        ],
        [
            ({**CAUSES, "C": "disk"}, "4 of 5 are right; log C"),
            ({**CAUSES, "A": "kv", "B": "port"}, "3 of 5"),
            ({"A": "port"}, "1 of 5"),
            ({"A": "gremlins"}, "no cause"),
            (["port", "kv", "file", "killed", "divide"], "a dictionary"),
        ],
    ),
}
