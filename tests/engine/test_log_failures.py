"""Every recorded failure gets its own explanation; other wordings come from vLLM's sources and users' reports."""

from __future__ import annotations

import json
from pathlib import Path

from workshop.engine import log
from workshop.engine.log.failures import RANKS, SYMPTOM, diagnose, table

LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
RECORDED = {
    name: entry["failure"]
    for name, entry in json.loads((LOGS / "index.json").read_text())["logs"].items()
    if name.startswith("failures/")
}


def test_a_recorded_failure_is_explained(subtests):
    for name, key in RECORDED.items():
        with subtests.test(name):
            error = log.read(LOGS / name).error
            assert error.key == key
            assert error.what.endswith(".") and error.remedy.endswith(".") and "?" not in error.what
            assert (
                error.line in (LOGS / name).read_text()
                or error.line[:300] in (LOGS / name).read_text()
            )


def test_a_good_log_has_no_error(subtests):
    for name in sorted(path.name for path in LOGS.glob("*.log")):
        with subtests.test(name):
            assert log.read(LOGS / name).error is None


DATA = Path(__file__).parent / "data"
NO_FAILURES = {"ranks-wait", "engine-core-died"}  # words of long and of ended starts


def test_no_other_line_of_a_recorded_log_has_the_words_of_a_failure(subtests):
    for path in [*sorted(LOGS.glob("*.log")), *sorted(DATA.rglob("*.log"))]:
        with subtests.test(path.name):
            error = log.read(path).error
            expected = NO_FAILURES | ({error.key} if error else set())
            for line in path.read_text(encoding="utf-8").splitlines():
                failure = diagnose(line)
                assert failure is None or failure.key in expected, line


def test_the_explanation_has_the_numbers_of_the_log():
    error = log.read(LOGS / "failures/kv_cache_too_small.log").error
    assert "131072" in error.what and "0.25 GiB" in error.what and "0.06 GiB" in error.what
    assert "32640" in error.remedy
    error = log.read(LOGS / "failures/tp_does_not_divide.log").error
    assert error.what == "4 attention heads cannot be divided among 3 GPUs."


# Not provoked here: the words of vLLM 0.25.1 and 0.32.0 (their sources), and of users' reports, whose
# threads failures.toml names, or "source".
START = "INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
WORDS = json.loads((DATA / "failure_words.json").read_text())


def test_other_failures_are_known_by_their_words(subtests):
    for line, key in [(row["line"], row["key"]) for row in WORDS]:
        with subtests.test(line):
            read = log.parse(
                f"INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n{line}\n"
            )
            assert read.error.key == key and "?" not in read.error.what


def test_numbers_of_a_full_gpu_are_in_the_sentence():
    line = next(row["line"] for row in WORDS if row["key"] == "gpu-memory-in-use")
    assert diagnose(line).what.startswith("Only 10.45 of the GPU's 79.1 GiB are free")


def test_the_port_on_which_ranks_meet_is_named():
    bound = (
        "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
    )
    listened = "The server socket has failed to listen on any local network address. "
    for line in (bound, listened + bound, listened + "port: 29500, useIpv6: false, code: -98"):
        assert diagnose(line).what.startswith("Port 29500, ")
    assert diagnose(listened).what.startswith("A port on which vLLM's own processes meet")


def test_a_driver_of_cuda_12_is_told_the_driver_of_cuda_13():
    old = "The NVIDIA driver on your system is too old (found version 12080)."
    assert "580" in diagnose(old).remedy and "CUDA 13" in diagnose(old).what


def test_a_cause_replaces_its_symptom_and_the_first_cause_stays():
    start = "INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
    symptom = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    cause, later = (
        "torch.OutOfMemoryError: CUDA out of memory.\n",
        "OSError: [Errno 28] No space left on device\n",
    )
    assert log.parse(start + symptom).error.rank == SYMPTOM
    assert log.parse(start + symptom + cause + later).error.key == "gpu-out-of-memory"
    assert log.parse(start + later + cause).error.key == "disk-full"


def test_a_class_that_was_not_imported_gives_way_to_the_reason():
    inspected = next(row["line"] for row in WORDS if row["key"] == "architecture-not-inspected")
    reason = "(APIServer pid=7) ERROR 11-20 10:02:25 [registry.py:9] KeyError: 'getpwuid(): uid not found: 7'\n"
    assert log.parse(START + inspected).error.key == "architecture-not-inspected"
    assert log.parse(START + reason + inspected).error.key == "no-user-name"


def test_words_of_the_system_are_told_by_who_says_them():
    name = "(gai error: -2 - Name or service not known)"
    told = diagnose(f"The IPv4 network addresses of (node7, 29500) cannot be retrieved {name}.")
    assert told.key == "rendezvous" and "node7" in told.what
    assert diagnose("[Errno -2] Name or service not known").key == "hub-unreachable"
    locked = diagnose("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory")
    assert locked.key == "locked-memory"
    assert diagnose("OSError: [Errno 12] Cannot allocate memory").key == "host-out-of-memory"


def test_what_is_often_survived_gives_way_to_the_error_that_ended_the_start():
    text = (LOGS / "failures/no_tokenizer.log").read_text()
    early = "'[Errno -2] Name or service not known' thrown while requesting HEAD https://huggingface.co/m\n"
    assert log.parse(early + text).error.key == "no-tokenizer"


def test_an_unknown_exception_is_quoted():
    line = "(EngineCore pid=7) ERROR 11-20 10:02:25 [core.py:1] RuntimeError: the flux capacitor is empty\n"
    error = log.parse(line).error
    assert error.key == "unexplained" and "the flux capacitor is empty" in error.what


def test_a_wrong_request_to_a_running_server_is_no_failure():
    good = (LOGS / "cpu_tp2.log").read_text().split("[shutdown]")[0]
    start = f"{good}\n(APIServer pid=1) ERROR 11-20 11:50:00 "
    assert (
        log.parse(
            f"{start}[serving.py:1] ValueError: This model's maximum context length is 4096\n"
        ).error
        is None
    )
    fatal = f"{start}[async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore\n"
    assert log.parse(fatal).error.key == "engine-core-died"


def test_an_error_that_did_not_stop_the_start_is_a_note():
    text = (LOGS / "cpu_tp2.log").read_text()
    early = "'[Errno -2] Name or service not known' thrown while requesting HEAD https://huggingface.co/m\n"
    read = log.parse(early + text)
    assert read.ready and read.error is None
    assert any("cannot be reached" in note for note in read.notes)


def test_source_code_quoted_by_a_traceback_is_no_error():
    text = ('INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n'
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
            '    raise OSError("[Errno 28] No space left on device")\nKeyError: \'lm_head\'\n')  # fmt: skip
    assert log.parse(text).error.key == "unexplained"


def test_every_row_of_the_table_can_be_told_in_words():
    for row, pattern in table()[0]:
        assert not pattern.search(""), f"{row['key']} matches an empty line"
        assert row["what"] and row["remedy"].endswith(".") and row.get("rank", "likely") in RANKS
        assert row.keys() <= {"key", "says", "what", "remedy", "rank", "fatal"}, (
            "a name that nobody reads"
        )


WAITS = (
    "(EngineCore pid=7) INFO 09-28 10:02:00 [shm_broadcast.py:698] No available shared memory broadcast "
    "block found in 60 seconds. This typically happens when some processes are hanging\n"
)


def test_ranks_that_wait_at_the_end_of_a_start_are_named():
    read = log.parse(START + 2 * WAITS)
    assert read.error is None  # a start that compiles says so as well
    assert read.waits.key == "ranks-wait"


def test_ranks_that_went_on_are_not_named():
    loaded = "INFO 11-20 10:09:25 [gpu_model_runner.py:5] Model loading took 15.3 GiB memory and 10.6 seconds\n"
    assert log.parse(START + 2 * WAITS + loaded).waits is None


def test_a_server_that_ends_after_hours_had_started():
    throughput = (
        "INFO 11-20 10:09:25 [loggers.py:273] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: "
        "0.0%, Prefix cache hit rate: 0.0%\n"
    )
    ended = (
        "ERROR 11-20 18:01:40 [core.py:1330] TimeoutError: RPC call to sample_tokens timed out.\n"
    )
    read = log.parse(START + throughput + ended)
    assert read.ready and read.error.key == "worker-timeout"
