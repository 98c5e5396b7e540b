"""Against servers that fail in every way: each row once in the output, or once among the errors with its reason."""

from __future__ import annotations

import json
import time

import pytest
import wire_stub

from workshop import batch
from workshop.errors import BadInput, WorkshopError

N = 60


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "in.json"
    path.write_text(json.dumps([f"prompt {number}" for number in range(N)]))
    return path


def test_every_row_is_answered_once_and_a_second_run_asks_nothing(
    prompts, tmp_path, faulty, quick, answers
):
    server, out = faulty(), tmp_path / "out.jsonl"
    first = batch.run(prompts, out, url=server.url, limits=quick)
    assert (first.exit_code, first.new, len(server.asked)) == (0, N, N)
    # the stub's, of each answer
    assert (first.prompt_tokens, first.completion_tokens) == (8 * N, 16 * N)
    second = batch.run(prompts, out, url=server.url, limits=quick)
    assert (second.exit_code, second.new, second.answered, len(server.asked)) == (0, 0, N, N)
    for line in answers(out):  # each answer belongs to its prompt
        assert line["response"]["body"]["choices"][0]["text"] == f" prompt {line['row']}"
    assert not out.with_name("out.jsonl.errors.jsonl").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        "drop",
        "cut",
        (500, b"{}"),
        (503, b"busy"),
        *((status, b"{}") for status in (408, 409, 425, 429, 502, 504)),
        (200, b"{}"),
        (200, b""),
        *(
            (200, b'{"choices": [{"finish_reason": %s, "text": ""}]}' % end)
            for end in (b'"abort"', b'"error"', b"null")
        ),
        (200, b'{"choices": []}'),
    ],
    ids=str,
)
def test_what_fails_once_is_asked_again(wrong, prompts, tmp_path, faulty, quick, answers):
    server = faulty(lambda prompt, times: wrong if times == 1 and prompt.endswith("7") else None)
    summary = batch.run(prompts, tmp_path / "out.jsonl", url=server.url, limits=quick)
    assert summary.exit_code == 0 and sorted(
        line["row"] for line in answers(summary.output)
    ) == list(range(N))
    assert server.asked.count("prompt 7") == 2 and server.asked.count("prompt 8") == 1


@pytest.mark.parametrize(
    ("wrong", "attempts", "says"),
    [
        (
            (400, b'{"error": {"message": "maximum context length is 2048"}}'),
            1,
            "maximum context length",
        ),
        ((500, b'{"error": {"message": "boom"}}'), 6, "boom (6 attempts)"),
        ("cut", 6, "cut"),
        ("drop", 10, "the connection broke 10 times"),
    ],
    ids=["400", "500", "cut", "drop"],
)
def test_a_row_that_cannot_be_answered_is_among_the_errors_alone(
    wrong, attempts, says, prompts, tmp_path, faulty, quick, answers
):
    server = faulty(lambda prompt, times: wrong if prompt == "prompt 3" else None)
    summary = batch.run(prompts, tmp_path / "out.jsonl", url=server.url, limits=quick)
    assert (summary.exit_code, summary.answered, summary.errors) == (1, N - 1, 1)
    assert server.asked.count("prompt 3") == attempts
    (error,) = answers(summary.errors_file)
    assert error["row"] == 3 and says in error["error"]["message"]
    assert 3 not in {line["row"] for line in answers(summary.output)}
    # the next run asks it again
    mended = batch.run(prompts, summary.output, url=faulty().url, limits=quick)
    assert (mended.exit_code, mended.new) == (0, 1) and not (
        tmp_path / "out.jsonl.errors.jsonl"
    ).exists()


def test_changed_rows_are_asked_again_and_told_apart(prompts, tmp_path, faulty, quick, answers):
    server, out, path = faulty(), tmp_path / "out.jsonl", tmp_path / "in.jsonl"
    path.write_text(
        "".join(json.dumps({"custom_id": str(n), "prompt": f"p{n}"}) + "\n" for n in range(5))
    )
    batch.run(path, out, url=server.url, limits=quick)
    path.write_text(path.read_text().replace("p3", "changed"))
    summary = batch.run(path, out, url=server.url, limits=quick)
    assert (summary.new, summary.superseded, summary.answered) == (1, 1, 5)
    assert [line["custom_id"] for line in answers(out)].count("3") == 2  # append-only
    frame = batch.load(out)
    assert (
        list(frame.custom_id) == list("01234")
        and frame.text[3] == " changed"
        and frame.prompt[3] == "changed"
    )


def test_an_input_that_is_removed_meanwhile_costs_nothing(prompts, tmp_path, faulty, quick):
    server = faulty(lambda prompt, times: prompts.unlink(missing_ok=True))
    summary = batch.run(prompts, tmp_path / "out.parquet", url=server.url, limits=quick)
    assert (summary.exit_code, summary.answered, summary.reason) == (
        0,
        N,
        "The input was removed meanwhile",
    )
    assert sorted(batch.load(summary.output)["text"]) == sorted(
        f" prompt {number}" for number in range(N)
    )


def test_other_parameters_or_another_model_need_another_output(prompts, tmp_path, faulty, quick):
    server, out = faulty(), tmp_path / "out.jsonl"
    batch.run(prompts, out, url=server.url, limits=quick, max_tokens=3)
    with pytest.raises(BadInput, match="max_tokens 3, now 4"):
        batch.run(prompts, out, url=server.url, limits=quick, max_tokens=4)
    with pytest.raises(BadInput, match="holds answers of stub"):
        batch.run(prompts, out, url=faulty(model="other").url, limits=quick, max_tokens=3)
    with pytest.raises(WorkshopError, match="serves stub, not llama"):
        batch.run(prompts, tmp_path / "new.jsonl", url=server.url, model="llama", limits=quick)


def test_an_answer_of_another_model_ends_the_run(prompts, tmp_path, wire, quick, answers):
    def reply(request):
        return wire_stub.answer(request, model="stub" if request.number < 40 else "swapped")

    server = wire(reply)
    with pytest.raises(WorkshopError, match="serves swapped, not stub"):
        batch.run(prompts, tmp_path / "out.jsonl", url=server.url, limits=quick, concurrency=1)
    assert sorted(line["row"] for line in answers(tmp_path / "out.jsonl")) == list(range(40))


def test_a_refused_key_ends_the_run(prompts, tmp_path, faulty, quick):
    server = faulty(lambda prompt, times: (401, b"{}"))
    with pytest.raises(WorkshopError, match="refuses the key"):
        batch.run(prompts, tmp_path / "out.jsonl", url=server.url, limits=quick)


def test_a_file_of_which_every_row_is_refused_stops_early(tmp_path, faulty, quick):
    (tmp_path / "in.txt").write_text("".join(f"row {number}\n" for number in range(5000)))
    server = faulty(
        lambda prompt, times: (400, b'{"error": {"message": "top_p must be in (0, 1]"}}')
    )
    with pytest.raises(WorkshopError, match="top_p must be in"):
        batch.run(tmp_path / "in.txt", tmp_path / "out.jsonl", url=server.url, limits=quick)
    assert len(server.asked) < 1000


def test_rows_refused_beside_answers_end_no_run_nor_the_next(tmp_path, faulty, quick, answers):
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(70)))
    server = faulty(lambda prompt, times: (400, b"{}") if int(prompt) >= 10 else None)
    for new in (10, 0):
        summary = batch.run(
            tmp_path / "in.txt", tmp_path / "out.jsonl", url=server.url, limits=quick, concurrency=1
        )
        assert (summary.state, summary.answered, summary.new, summary.errors) == (
            "complete",
            10,
            new,
            60,
        )
        assert [line["row"] for line in answers(summary.errors_file)] == list(range(10, 70))


def test_a_model_that_is_not_there_ends_the_run_at_its_first_row(prompts, tmp_path, faulty, quick):
    server = faulty(
        lambda prompt, times: (404, b'{"error": {"message": "The model `stub` does not exist."}}')
    )
    with pytest.raises(WorkshopError, match="does not exist"):
        batch.run(prompts, tmp_path / "out.jsonl", url=server.url, limits=quick, concurrency=1)
    assert server.asked == ["prompt 0"]


def test_a_bad_row_is_refused_or_left_out_with_its_reason(tmp_path, faulty, quick, answers):
    path, server = tmp_path / "in.jsonl", faulty()
    path.write_text('{"prompt": "a"}\n{"prompt": ""}\n{"prompt": "c"}\n')
    with pytest.raises(BadInput, match="its prompt is empty"):
        batch.run(path, tmp_path / "out.jsonl", url=server.url, limits=quick)
    assert not server.asked
    summary = batch.run(path, tmp_path / "out.jsonl", url=server.url, limits=quick, skip_bad=True)
    (error,) = answers(summary.errors_file)
    assert (summary.exit_code, summary.answered, summary.bad) == (0, 2, 1)
    assert (error["row"], error["error"]["code"]) == (1, "bad_row")


def test_a_fault_of_ours_ends_the_run(prompts, tmp_path, faulty, quick, monkeypatch):
    """It must not pass as a row that is done."""
    from workshop.batch.session import Ledger

    monkeypatch.setattr(Ledger, "keep", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        batch.run(prompts, tmp_path / "out.jsonl", url=faulty().url, limits=quick)


def test_lines_that_get_lost_on_their_way_to_the_disk_are_missed(
    prompts, tmp_path, faulty, quick, monkeypatch
):
    from workshop.batch.keep.store import Journal

    monkeypatch.setattr(Journal, "take", lambda self: [self._lines.pop() for _ in self._lines[1:]])
    with pytest.raises(RuntimeError, match=f"{N} answers came, {N - 1} were written"):
        batch.run(prompts, tmp_path / "out.jsonl", url=faulty().url, limits=quick)


def test_samples_become_rows_of_the_frame_and_parquet_reads_the_same(
    prompts, tmp_path, faulty, quick
):
    server = faulty()
    batch.run(
        prompts, tmp_path / "a.jsonl", url=server.url, samples=2, temperature=1.0, limits=quick
    )
    batch.run(
        prompts, tmp_path / "b.parquet", url=server.url, samples=2, temperature=1.0, limits=quick
    )
    first, second = batch.load(tmp_path / "a.jsonl"), batch.load(tmp_path / "b.parquet")
    assert len(first) == 2 * N and list(first["sample"][:4]) == [0, 1, 0, 1]
    columns = [name for name in first.columns if name != "request_id"]
    assert first[columns].equals(second[columns]) and first.prompt[3] == "prompt 1"


def test_the_output_says_what_it_came_from(prompts, tmp_path, faulty, quick):
    batch.run(prompts, tmp_path / "out.jsonl", url=faulty().url, max_tokens=5, seed=1, limits=quick)
    meta = json.loads((tmp_path / "out.jsonl.meta.json").read_text())
    assert (
        meta["model"] == "stub"
        and meta["vllm_version"] == "stub"
        and meta["runs"][0]["state"] == "complete"
    )
    assert (
        meta["sampling_parameters"] == {"max_tokens": 5, "seed": 1}
        and len(meta["input"]["sha256"]) == 64
    )


def test_no_server_is_one_sentence(prompts, tmp_path, workshop_home):
    with pytest.raises(WorkshopError, match="No server answers"):
        batch.run(prompts, tmp_path / "out.jsonl", url="http://127.0.0.1:9/v1")
    with pytest.raises(BadInput, match="no address"):
        batch.run(prompts, tmp_path / "out.jsonl", url="localhost:8000")


def test_a_run_ends_soon_after_its_last_row(prompts, tmp_path, faulty, quick):
    began = time.monotonic()
    batch.run(prompts, tmp_path / "out.jsonl", url=faulty().url, limits=quick)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("attempt", range(5))
def test_a_commit_that_is_under_way_when_the_run_ends_is_waited_for(
    attempt, prompts, tmp_path, faulty, quick, answers, monkeypatch
):
    """It once went, late, into whichever file had been given the closed one's number."""
    from workshop.batch.keep import store
    from workshop.batch.send import sending

    real = store.Journal.write
    monkeypatch.setattr(sending, "COMMIT_S", 0.001)
    monkeypatch.setattr(
        store.Journal, "write", lambda self, lines: (time.sleep(0.05), real(self, lines))[1]
    )
    summary = batch.run(
        prompts, tmp_path / "out.jsonl", url=faulty(delay_s=0.002).url, limits=quick
    )
    assert summary.answered == len(answers(summary.output)) == N
    json.loads((tmp_path / "out.jsonl.meta.json").read_text())


def test_a_closed_journal_writes_nothing(tmp_path):
    from workshop.batch.keep.store import Journal

    journal = Journal(tmp_path / "out.jsonl")
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        journal.write([b"late"])


def test_a_shard_that_is_none_is_refused(prompts, tmp_path, workshop_home):
    for wrong in ("3", "0/2", "3/2", "a/b"):
        with pytest.raises(BadInput, match="no shard"):
            batch.run(prompts, tmp_path / "x.jsonl", url="http://127.0.0.1:9/v1", shard=wrong)
