"""A file of prompts on the cluster: server and batch in one job, back into the queue, shards of an array."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
from cluster import SMALL, UNENDED, workshop

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]  # a busy machine starts engines slowly
ONE_NODE = ("--nodes=1", "--gpus-per-node=1")
START_S = 480.0
ROWS = 100


def ids(path) -> list[str]:
    return (
        [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


@pytest.fixture
def folder(cluster, request):
    """A folder of the teacher's with a file of prompts in it."""
    path = cluster.course / request.node.name.split("[")[0]
    path.mkdir()
    rows = [{"custom_id": f"row-{n}", "prompt": f"{n} San Francisco is a"} for n in range(ROWS)]
    (path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for entry in (path, path / "prompts.jsonl"):
        os.chown(entry, 7001, 7001)
    return path


def settings(folder, tokens: int) -> tuple[str, ...]:
    return (
        str(folder / "prompts.jsonl"),
        str(folder / "answers.jsonl"),
        "--max-tokens",
        str(tokens),
        "--min-tokens",
        str(tokens),
        "--concurrency",
        "4",
    )


def test_the_job_goes_back_into_the_queue_before_its_time_limit_and_goes_on(cluster, folder):
    answers = folder / "answers.jsonl"
    job = cluster.submit("70b-offline.sbatch", *ONE_NODE, args=settings(folder, 60))
    job.until("[workshop] ready after", START_S)
    cluster.wait(lambda: len(ids(answers)) >= 20, 240, "no answers came", job.text)
    # as SLURM does before the limit
    cluster.ask_slurm("scancel", "--signal=USR1", "--batch", str(job.id))
    cluster.wait(lambda: job.facts["Restarts"] == "1", 90, "the job was not requeued", job.text)
    before = len(ids(answers))
    assert 20 <= before < ROWS, "the batch was to be stopped in its middle"
    assert (folder / "prompts.jsonl").exists()

    # a job's credential is revoked for the second in which it was requeued; no event says that it
    # is over
    time.sleep(2)

    # SLURM itself waits two minutes, and sets the time once more while the job ends
    def started() -> bool:
        cluster.ask_slurm("scontrol", "update", f"JobId={job.id}", "StartTime=now", check=False)
        return job.state == "RUNNING"

    cluster.wait(started, 150, "it did not start again", lambda: str(job.facts))
    assert job.until_over(START_S + 200) == "COMPLETED", job.text()
    assert sorted(ids(answers)) == sorted(f"row-{n}" for n in range(ROWS)), "every row once"
    cluster.wait_until_clean()


def test_an_array_shards_the_file_and_a_merge_makes_one_of_the_answers(cluster, folder):
    """Tasks end while others wait in the queue: one has the array's own number, and must not take them with it."""
    rows = [
        {
            "custom_id": f"row-{n}",
            "prompt": f"{n} San Francisco is a",
            "max_tokens": length,
            "min_tokens": length,
        }
        for n in range(ROWS)
        for length in [2 if n % 2 else 40]
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = (*ONE_NODE, "--array=1-3%2")
    first = cluster.submit("70b-offline.sbatch", *options, args=settings(folder, 4), site=SMALL)

    def all_over() -> bool:
        """Return True if SLURM names three tasks that have ended; a busy controller names none."""
        text = cluster.ask_slurm("scontrol", "show", "job", str(first.id), check=False)
        states = re.findall(r"JobState=(\w+)", text)
        return len(states) >= 3 and not UNENDED.intersection(states)

    cluster.wait(
        all_over,
        2 * START_S,
        "the array did not end",
        lambda: cluster.ask_slurm("scontrol", "show", "job", str(first.id), check=False),
    )
    shards = folder / "answers.jsonl.shards"
    shard_ids = [ids(shards / f"{number}.jsonl") for number in (1, 2, 3)]
    assert all(shard_ids) and len(set().union(*shard_ids)) == sum(map(len, shard_ids))
    for task in (1, 2, 3):
        error_text = (
            cluster.course / f"70b-offline_{first.id}_{task}/error_{first.id}_{task}.out"
        ).read_text()
        assert "[workshop] ended: done" in error_text and "scancel: error" not in error_text, (
            error_text
        )
    servers = json.loads(workshop(cluster, "servers", "--json"))
    assert not [server for server in servers if server["job_id"].startswith(f"{first.id}_")], (
        "what succeeds leaves no record"
    )
    out = workshop(cluster, "batch", "--merge", str(shards), str(folder / "answers.jsonl"))
    assert sorted(ids(folder / "answers.jsonl")) == sorted(f"row-{n}" for n in range(ROWS)), out
    cluster.wait_until_clean()
