"""`reconcile --anonymise`: your names, keys, addresses and prompts go, and the log reconciles as before."""

from __future__ import annotations

import ipaddress
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from workshop.cli.use.reconcile import command
from workshop.engine import log as engine_log
from workshop.engine.reconcile import anonymise as anonymising
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import WorkshopError

DATA = Path(__file__).parents[2] / "workshop" / "data" / "logs"
LOGS = sorted([*DATA.glob("*.log"), *(DATA / "failures").glob("*.log")])
LOGS += sorted(Path(__file__).parent.joinpath("data").rglob("*.log"))
OWN = ({"lovelace"}, {"gpu-node-07"}, "/srv/homes/lovelace")
SECRETS = (
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "sk-proj-abcdef0123456789",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
    "s3cr3t-passw0rd",
    "ada.lovelace@analytical.example",
    "lovelace",
    "gpu-node-07",
    "10.42.7.19",
    "fd12:3456:789a::17",
    "what is my diagnosis",
    "C:\\Users\\lovelace",
    "/srv/homes",
    "0a:1b:2c:3d:4e:5f",
)
LOG = r"""
lovelace@gpu-node-07:/home/lovelace$ PWD=/srv/homes/lovelace/x HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345 vllm serve /home/lovelace/acme-secret-7b
Nov 23 05:00:00 gpu-node-07 python[123]: INFO 11-20 10:02:25 [api_server.py:1] vLLM API server version 0.25.1
INFO 11-20 10:02:25 [utils.py:2] non-default args: {'model_tag': '/home/lovelace/acme-secret-7b', 'model': '/home/lovelace/acme-secret-7b', 'host': 'gpu-node-07', 'api_key': ['sk-proj-abcdef0123456789'], 'served_model_name': ['acme-secret-7b'], 'max_model_len': 8192, 'download_dir': '/project/nightingale/lovelace'}
INFO 11-20 10:02:26 [x.py:2] master_addr=login.cluster.example.edu tcp://10.42.7.19:29500 nccl [fd12:3456:789a::17]:80 mac 0a:1b:2c:3d:4e:5f
INFO 11-20 10:02:26 [x.py:2] Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc password=s3cr3t-passw0rd
INFO 11-20 10:02:26 [x.py:2] written by ada.lovelace@analytical.example on https://lovelace:ghp_0123456789abcdefghijABCDEFGHIJ012345@login.cluster.example.edu/nightingale
WARNING 11-20 10:02:26 [x.py:2] SLURM_JOB_ID=8843217 C:\Users\lovelace\models\acme-secret-7b and ~/nightingale/x
(Worker_TP0 pid=5, ip=10.42.7.19) INFO 11-20 10:02:27 [gpu_model_runner.py:2] Model loading took 14.99 GiB memory and 2.0 seconds
INFO 11-20 10:02:27 [gpu_worker.py:2] Available KV cache memory: 111.61 GiB
INFO 11-20 10:02:27 [kv_cache_utils.py:2] GPU KV cache size: 914,304 tokens
INFO 11-20 10:02:27 [kv_cache_utils.py:2] Maximum concurrency for 8,192 tokens per request: 111.61x
INFO 11-20 10:02:28 [logger.py:2] Received request cmpl-8f14e45fceea167a5a36dedd4bea2543: prompt: 'what is my diagnosis', params: SamplingParams(n=1), prompt_token_ids: [1, 2, 3].
INFO 11-20 10:02:28 [launcher.py:2] Route: /v1/chat/completions, Methods: POST
"""


def anonymise(text: str):
    return anonymising.anonymise(text, *OWN)


def test_no_planted_name_stays(subtests):
    text, removed = anonymise(LOG)
    assert sum(removed.values()) > 15
    for secret in SECRETS:
        with subtests.test(secret):
            assert secret.lower() not in text.lower()


def test_no_kind_of_key_stays(subtests):
    for line in [
        "found github_pat_{0}",
        "slack xoxb-{0}",
        "google AIza{0}{0}{0}",
        "aws AKIA{0}",
        "AWS_SECRET_ACCESS_KEY={0}",
        "'credentials': '{0}'",
        "Cookie: session={0}",
        "Authorization: {0}",
        "Authorization: Basic {0}",
        "private_key = {0}",
    ]:
        with subtests.test(line):
            secret = "A7B2C9D4E1F6G3H8"
            text, _ = anonymise(LOG + line.format(secret) + "\n")
            assert secret not in text
            assert anonymise(text)[0] == text


def test_each_of_many_addresses_gets_a_valid_one_of_its_own():
    lines = [
        f"INFO 11-20 10:02:26 [x.py:2] rank at 10.7.{n // 250}.{n % 250 + 1}:29500"
        for n in range(600)
    ]
    text, _ = anonymise(LOG + "\n".join(lines))
    addresses = re.findall(r"rank at (\S+):29500", text)
    assert len({ipaddress.ip_address(address) for address in addresses}) == len(lines)
    assert anonymise(text)[0] == text


def test_figures_routes_and_versions_stay():
    text, _ = anonymise(LOG)
    for fact in ("914,304 tokens", "version 0.25.1", "Route: /v1/chat/completions", "14.99 GiB"):
        assert fact in text


def facts(text: str) -> dict:
    """What a log says, without the names that may change."""
    log = engine_log.parse(text)
    names = ("args", "config", "model", "error", "notes", "ranks")
    values = {name: value for name, value in vars(log).items() if name not in names}
    values["ranks"] = sorted(map(str, log.ranks.values()))
    values["error"] = (
        log.error.kind if log.error and hasattr(log.error, "kind") else bool(log.error)
    )
    return values


def test_a_log_says_the_same_afterwards_and_nothing_more_is_removed(subtests):
    for path in LOGS[::8]:
        with subtests.test(path.stem):
            before = engine_log.text_of(path)
            after, _ = anonymise(before)
            assert facts(after) == facts(before)
            again, removed = anonymise(after)
            assert again == after and not removed


def test_a_log_of_a_gpu_reconciles_to_the_same_figures(subtests):
    for path in sorted(DATA.glob("*h[12]00.log"))[::5]:
        with subtests.test(path.stem):
            before = engine_log.text_of(path)
            gpu = path.stem.rpartition("_")[2]
            rows = [
                [(row.quantity, row.predicted, row.actual) for row in result.rows]
                for result in (
                    reconcile(engine_log.parse(before), gpu=gpu),
                    reconcile(engine_log.parse(anonymise(before)[0]), gpu=gpu),
                )
            ]
            assert rows[0] == rows[1] and rows[0]


def test_ranks_on_several_machines_stay_apart():
    lines = [
        f"(RayWorkerWrapper pid=7, ip=10.0.0.{host}) INFO 11-20 10:02:27 [m.py:1] Model loading took 1{host}.0 GiB"
        for host in (5, 9)
    ]
    head = "INFO 11-20 10:02:25 [api_server.py:1] vLLM API server version 0.25.1"
    text, _ = anonymise("\n".join([head, *lines]))
    assert len(engine_log.parse(text).ranks) == 2 and "10.0.0." not in text


def test_the_command_prints_the_log_alone_and_on_stderr_what_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(anonymising, "own_names", lambda: OWN)
    file = tmp_path / "vllm.log"
    file.write_text(LOG)
    result = CliRunner().invoke(command, [str(file), "--anonymise"])
    assert result.exit_code == 0
    assert result.stdout == anonymise(LOG)[0]
    assert "-lovelace@gpu-node-07" in result.stderr and "+user@host" in result.stderr
    assert "914,304" not in result.stderr and "keys" in result.stderr


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1)])
def test_a_person_is_asked_before_the_copy_is_printed(tmp_path, answer, code):
    file = tmp_path / "vllm.log"
    file.write_text(LOG)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "workshop", "reconcile", str(file), "--anonymise"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.write(ours, answer)
        printed = process.communicate(timeout=60)[0]
    terminal = os.read(ours, 100_000).decode()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code and "May this copy be shared?" in terminal
    assert (b"914,304" in printed) == (code == 0)


def test_own_names_are_of_this_account_and_machine():
    users, hosts, home = anonymising.own_names()
    assert all(users) and all(hosts) and home.startswith("/")


def test_what_is_no_log_is_not_printed(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("dear diary")
    result = CliRunner().invoke(command, [str(file), "--anonymise"])
    assert isinstance(result.exception, WorkshopError) or result.exit_code == 2
    assert "diary" not in result.stdout
