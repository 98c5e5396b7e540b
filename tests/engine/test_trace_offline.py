"""`workshop batch --offline --trace`, with guesses of n-grams: what is accepted is what vLLM goes on from."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise

import pytest
from needs import lacking
from planted_files import Planted

from workshop.engine import trace
from workshop.vllm_package import installed

pytestmark = pytest.mark.starts
GUESSES = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
PROMPTS = [  # with words that come again in the answers
    "Boston is a city and the state capital of Massachusetts. It is a major center for banking. Boston is a",
    "San Francisco is a",
    "Gold is a soft yellow malleable ductile metallic element. It occurs mainly as nuggets in rocks. Gold is a",
]


def test_accepted_guesses_are_those_that_vllm_goes_on_from(tmp_path, workshop_home):
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    (tmp_path / "in.json").write_text(json.dumps(PROMPTS))
    file, answers = tmp_path / "trace.jsonl", tmp_path / "out.jsonl"
    planted = Planted(tmp_path)  # of its files none runs, in whichever of vLLM's processes
    command = [
        sys.executable,
        "-P",
        "-m",
        "workshop",
        "batch",
        str(tmp_path / "in.json"),
        str(answers),
        "--offline",
    ]
    options = [
        "--trace",
        str(file),
        "--speculative-config",
        json.dumps(GUESSES),
        "--max-tokens",
        "60",
    ]
    command += [*options, "--temperature", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=planted.folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not planted.ran
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    steps, rows = trace.read(file), defaultdict(list)
    for step in steps:
        for row in step.requests:
            rows[row.id].append(row)
    assert len(rows) == len(PROMPTS) and not steps[-1].requests and steps[-1].freed
    for request_rows in rows.values():
        for row, after in pairwise(request_rows):
            rejected = row.drafted - row.accepted
            assert (
                after.computed_tokens
                == row.computed_tokens + row.prefill_tokens + row.decode_tokens - rejected
            )
    told = [
        json.loads(line)["response"]["body"]["usage"]["completion_tokens"]
        for line in answers.open()
    ]
    made = sum(1 + row.accepted for request_rows in rows.values() for row in request_rows)
    # the last step may guess beyond the end
    assert sum(told) <= made <= sum(told) + 3 * len(PROMPTS)
    accepted, drafted = (
        sum(getattr(row, key) for request_rows in rows.values() for row in request_rows)
        for key in ("accepted", "drafted")
    )
    assert 0 < accepted < drafted
