"""Against servers that fail in every way: each row once in the output, or once among the errors with its reason."""

from __future__ import annotations

import json
import time

import pytest
import wire_stub

from workshop import batch
from workshop.batch.keep.store import Journal
from workshop.batch.send import sending
from workshop.batch.session import Ledger
from workshop.errors import BadInput, WorkshopError

N = 60
ENDLESS = b'{"choices": [{"finish_reason": %s, "text": ""}]}'


def test_every_row_is_answered_once_and_a_second_run_asks_nothing(faulty, run, answers):
    server = faulty()
    first = run(server, N)
    assert (first.exit_code, first.new, len(server.asked)) == (0, N, N)
    # the stub's, of each answer
    assert (first.prompt_tokens, first.completion_tokens) == (8 * N, 16 * N)
    second = run(server, N)
    assert (second.exit_code, second.new, second.answered, len(server.asked)) == (0, 0, N, N)
    for line in answers(first.output):  # each answer belongs to its prompt
        assert line["response"]["body"]["choices"][0]["text"] == f" row {line['row']}"
    assert first.errors_file is second.errors_file is None


PAGES = [
    *(520, 530, 500, 502, 503, 504, 529, 599),
    *(404, 200, 408, 429),
]
WRONG = [
    *((status, wire_stub.HTML) for status in PAGES),
    *((status, b"{}") for status in (200, 408, 409, 425, 429, 500, 502, 504)),
    *((200, ENDLESS % end) for end in (b'"abort"', b'"error"', b"null")),
    (503, b"busy"),
    (200, b""),
    (200, b'{"choices": []}'),
    "drop",
    "cut",
]


def test_what_fails_once_is_asked_again(faulty, run, answers):
    faults = {f"row {2 * number}": wrong for number, wrong in enumerate(WRONG)}
    server = faulty(lambda prompt, times: faults.get(prompt) if times == 1 else None)
    summary = run(server, 2 * len(WRONG), concurrency=4)
    assert summary.exit_code == 0
    assert sorted(line["row"] for line in answers(summary.output)) == list(range(2 * len(WRONG)))
    rows = [server.asked.count(f"row {number}") for number in range(2 * len(WRONG))]
    assert rows == [2, 1] * len(WRONG)


WRONG_ROWS = {  # what the server says to it, how often it is asked, and what its reason says
    3: ((400, b'{"error": {"message": "context length is 2048"}}'), 1, "context length is 2048"),
    8: ((500, b'{"error": {"message": "boom"}}'), 6, "boom (6 attempts)"),
    21: ("cut", 6, "cut"),
    34: ("drop", 10, "the connection broke 10 times"),
}


def test_rows_that_cannot_be_answered_are_among_the_errors_alone(faulty, run, answers):
    faults = {f"row {row}": wrong for row, (wrong, _, _) in WRONG_ROWS.items()}
    server = faulty(lambda prompt, times: faults.get(prompt))
    summary = run(server, N)
    assert (summary.exit_code, summary.answered, summary.errors) == (1, N - 4, 4)
    errors = {line["row"]: line["error"]["message"] for line in answers(summary.errors_file)}
    for row, (_, attempts, says) in WRONG_ROWS.items():
        assert server.asked.count(f"row {row}") == attempts and says in errors.pop(row)
    assert not errors
    assert not WRONG_ROWS.keys() & {line["row"] for line in answers(summary.output)}
    mended = run(faulty(), N)  # the next run asks them again
    assert (mended.exit_code, mended.new, mended.errors_file) == (0, 4, None)


def test_changed_rows_are_asked_again_and_told_apart(faulty, run, put, answers):
    rows = [{"custom_id": str(number), "prompt": f"p{number}"} for number in range(5)]
    server = faulty()
    run(server, rows)
    rows[3]["prompt"] = "changed"
    summary = run(server, rows)
    assert (summary.new, summary.superseded, summary.answered) == (1, 1, 5)
    # append-only
    assert [line["custom_id"] for line in answers(summary.output)].count("3") == 2
    frame = batch.load(summary.output)
    assert list(frame.custom_id) == list("01234")
    assert frame.text[3] == " changed" and frame.prompt[3] == "changed"


def test_an_input_that_is_removed_meanwhile_costs_nothing(faulty, run, put):
    path = put(N)
    summary = run(faulty(lambda prompt, times: path.unlink(missing_ok=True)), path, "out.parquet")
    assert (summary.exit_code, summary.answered) == (0, N)
    assert summary.reason == "The input was removed meanwhile"
    assert sorted(batch.load(summary.output).text) == sorted(f" row {n}" for n in range(N))


def test_other_parameters_or_another_model_need_another_output(faulty, run):
    server = faulty()
    run(server, N, max_tokens=3)
    with pytest.raises(BadInput, match="max_tokens 3, now 4"):
        run(server, N, max_tokens=4)
    with pytest.raises(BadInput, match="holds answers of stub"):
        run(faulty(model="other"), N, max_tokens=3)
    with pytest.raises(WorkshopError, match="serves stub, not llama"):
        run(server, N, "new.jsonl", model="llama")


def test_an_answer_of_another_model_ends_the_run(wire, run, answers, tmp_path):
    def reply(request):
        return wire_stub.answer(request, model="stub" if request.number < 40 else "swapped")

    with pytest.raises(WorkshopError, match="serves swapped, not stub"):
        run(wire(reply), N, concurrency=1)
    assert sorted(line["row"] for line in answers(tmp_path / "out.jsonl")) == list(range(40))


@pytest.mark.parametrize(
    ("status", "message", "says", "most_asked"),
    [
        (401, "no", "refuses the key", 64),
        (400, "top_p must be in (0, 1]", "top_p must be in", 1000),
        (404, "The model `stub` does not exist.", "does not exist", 64),
    ],
)
def test_a_run_that_cannot_succeed_ends_early(status, message, says, most_asked, faulty, run):
    body = json.dumps({"error": {"message": message}}).encode()
    server = faulty(lambda prompt, times: (status, body))
    with pytest.raises(WorkshopError, match=says):
        run(server, 5000)
    assert len(server.asked) <= most_asked


def test_rows_refused_beside_answers_end_no_run_nor_the_next(faulty, run, answers):
    server = faulty(lambda prompt, times: (400, b"{}") if int(prompt[4:]) >= 10 else None)
    for new in (10, 0):
        summary = run(server, 70, concurrency=1)
        assert (summary.state, summary.answered, summary.errors) == ("complete", 10, 60)
        assert summary.new == new
        assert [line["row"] for line in answers(summary.errors_file)] == list(range(10, 70))


def test_a_bad_row_is_refused_or_left_out_with_its_reason(faulty, run, put, answers):
    path, server = put([{"prompt": "a"}, {"prompt": ""}, {"prompt": "c"}]), faulty()
    with pytest.raises(BadInput, match="its prompt is empty"):
        run(server, path)
    assert not server.asked
    summary = run(server, path, skip_bad=True)
    (error,) = answers(summary.errors_file)
    assert (summary.exit_code, summary.answered, summary.bad) == (0, 2, 1)
    assert (error["row"], error["error"]["code"]) == (1, "bad_row")


def test_a_fault_of_ours_ends_the_run(faulty, run, monkeypatch):
    """It must not pass as a row that is done."""
    monkeypatch.setattr(Ledger, "keep", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(faulty(), N)


def test_lines_that_get_lost_on_their_way_to_the_disk_are_missed(faulty, run, monkeypatch):
    monkeypatch.setattr(Journal, "take", lambda self: [self._lines.pop() for _ in self._lines[1:]])
    with pytest.raises(RuntimeError, match=f"{N} answers came, {N - 1} were written"):
        run(faulty(), N)


def test_samples_become_rows_of_the_frame_and_parquet_reads_the_same(faulty, run):
    server = faulty()
    first, second = (
        batch.load(run(server, N, output, samples=2, temperature=1.0).output)
        for output in ("a.jsonl", "b.parquet")
    )
    assert len(first) == 2 * N and list(first["sample"][:4]) == [0, 1, 0, 1]
    columns = [name for name in first.columns if name != "request_id"]
    assert first[columns].equals(second[columns]) and first.prompt[3] == "row 1"


def test_the_output_says_what_it_came_from(faulty, run, tmp_path):
    run(faulty(), N, max_tokens=5, seed=1)
    meta = json.loads((tmp_path / "out.jsonl.meta.json").read_text())
    assert (meta["model"], meta["vllm_version"]) == ("stub", "stub")
    assert meta["runs"][0]["state"] == "complete" and len(meta["input"]["sha256"]) == 64
    assert meta["sampling_parameters"] == {"max_tokens": 5, "seed": 1}


def test_no_server_is_one_sentence(run, workshop_home):
    with pytest.raises(WorkshopError, match="No server answers"):
        run("http://127.0.0.1:9/v1", N)
    for url in ("localhost:8000", "http://", "http://h:99999", "http://a b", "http://[::1"):
        with pytest.raises(BadInput, match="no address"):
            run(url, N)


def test_a_run_ends_soon_after_its_last_row(faulty, run):
    assert run(faulty(), N).seconds < 5


def test_a_commit_that_is_under_way_when_the_run_ends_is_waited_for(
    faulty, run, answers, monkeypatch
):
    """It once went, late, into whichever file had been given the closed one's number."""
    real = Journal.write
    monkeypatch.setattr(sending, "COMMIT_S", 0.001)
    monkeypatch.setattr(
        Journal, "write", lambda self, lines: (time.sleep(0.05), real(self, lines))[1]
    )
    summary = run(faulty(delay_s=0.002), N)
    assert summary.answered == len(answers(summary.output)) == N


def test_a_closed_journal_writes_nothing(tmp_path):
    journal = Journal(tmp_path / "out.jsonl")
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        journal.write([b"late"])


def test_a_shard_that_is_none_is_refused(new_batch):
    for shard in ("3", "0/2", "3/2", "a/b"):
        with pytest.raises(BadInput, match="no shard"):
            new_batch("http://127.0.0.1:9/v1", 1, shard=shard)
