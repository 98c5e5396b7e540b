"""A batch says how its answers ended, and asks again for those that were cut."""

from __future__ import annotations

import itertools
import json

import pytest

from workshop import batch
from workshop.batch.keep.paths import Paths, read_meta
from workshop.batch.read.rows import OLD_FORMS, with_more_tokens
from workshop.batch.session import Session
from workshop.errors import BadInput

NUMBERS = itertools.count()


def test_a_row_with_an_old_name_of_a_form_is_refused(run, server):
    for name, form in OLD_FORMS.items():
        body = {"messages": [{"role": "user", "content": "a"}], name: "x"}
        for row in ({"prompt": "a", name: "x"}, {"custom_id": "1", "body": body}):
            with pytest.raises(BadInput, match=f"{name} is an old name") as refused:
                run(server(), [row])
            assert f'"structured_outputs": {{"{form}": …}}' in refused.value.message
    nobody_asks = {"prompt": "a", "guided_json": None, "max_tokens": 50}
    assert run(server(), [nobody_asks]).answered == 1


def rows_of(count, **fields):
    return [{"prompt": f"prompt {number}", **fields} for number in range(count)]


def answer(body: bytes, text: str, reason: str, tokens: int = 16) -> tuple[int, bytes]:
    request = json.loads(body)
    choices = [
        {"index": number, "text": text, "finish_reason": reason}
        for number in range(request.get("n", 1))
    ]
    usage = {"prompt_tokens": 8, "completion_tokens": tokens}
    reply = {
        "id": f"cmpl-{next(NUMBERS)}",
        "model": request["model"],
        "choices": choices,
        "usage": usage,
    }
    return 200, json.dumps(reply).encode()


@pytest.fixture
def server(faulty, monkeypatch):
    """A server that cuts an answer that may have fewer than `needs` tokens; its context has 2,048."""

    def start(needs=40, whole='{"city": "Boston"}', cut='{"city": "Bos', context=2048):
        started = faulty()
        started.limits = []
        protocol = started._protocol
        request = protocol.request
        other = protocol.other

        def decide(self, path, body):
            if not path.endswith(b"completions"):
                return request(self, path, body)
            fields = json.loads(body)
            limit = fields.get("max_tokens", 16)
            started.asked.append(fields["prompt"])
            started.limits.append(limit)
            if limit >= needs:
                return self.answer(*answer(body, whole, "stop", needs))
            return self.answer(*answer(body, cut, "length", limit))

        def models(self, path):
            status, data = other(self, path)
            if path.endswith(b"/models"):
                entries = json.loads(data)
                entries["data"][0]["max_model_len"] = context
                data = json.dumps(entries).encode()
            return status, data

        monkeypatch.setattr(protocol, "request", decide)
        monkeypatch.setattr(protocol, "other", models)
        return started

    return start


FREE = {"prompt": "free", "max_tokens": 50}


def test_the_summary_counts_finish_reasons(run, server):
    rows = [*rows_of(30, max_tokens=24), FREE]
    started = server()
    first = run(started, rows)
    assert (first.answered, first.finish_reasons) == (31, {"length": 30, "stop": 1})
    assert "30 length" in str(first)
    again = run(started, rows)  # of the output, not of the run
    assert (again.new, again.finish_reasons) == (0, {"length": 30, "stop": 1})
    recorded = read_meta(Paths(first.output))["runs"][-1]
    assert recorded["finish_reasons"] == {"length": 30, "stop": 1}


def test_retry_answers_rows_that_ended_in_length_again_and_no_other(run, server, answers, capsys):
    rows, started = [*rows_of(30, max_tokens=24), FREE], server()
    run(started, rows)
    started.asked.clear()
    started.limits.clear()
    summary = run(started, rows, retry="length")
    assert set(started.limits) == {96} and len(started.asked) == 30 and "free" not in started.asked
    assert (summary.exit_code, summary.answered, summary.retried) == (0, 31, 30)
    assert summary.finish_reasons == {"stop": 31}
    lines = answers(summary.output)
    assert sorted(line["row"] for line in lines) == list(range(31))
    retried = [line for line in lines if "retry" in line]
    assert len(retried) == 30 and retried[0]["retry"] == {"max_tokens": 96}
    assert "30 rows ended in length: they are asked again with 4 times" in capsys.readouterr().err
    frame = batch.load(summary.output)
    assert len(frame) == 31 and set(frame.finish_reason) == {"stop"}
    last = run(started, rows)
    assert (last.new, last.superseded, len(started.asked)) == (0, 0, 30)


def test_a_second_retry_asks_for_more_than_the_first(run, server):
    started = server(needs=200)
    for retry in (None, "length", "length"):
        run(started, rows_of(3), retry=retry)  # without max_tokens: 16
    assert started.limits == [16] * 3 + [64] * 3 + [256] * 3


def test_a_row_that_fills_its_context_is_not_asked_again(run, server):
    started = server(needs=1000, context=40)  # the prompt has 8 tokens of it
    for retry in (None, "length", "length"):
        summary = run(started, rows_of(3, max_tokens=24), retry=retry)
    assert started.limits == [24] * 3 + [32] * 3
    assert (summary.full, summary.answered, summary.new) == (3, 3, 0)
    assert "3 rows fill the model's context" in str(summary)


def test_an_answer_stays_if_its_second_attempt_fails(run, server, faulty):
    rows = rows_of(3, max_tokens=24)
    out = run(server(), rows).output
    before = out.read_text()
    summary = run(faulty(lambda prompt, times: (400, b"{}")), rows, retry="length")
    assert (summary.exit_code, summary.answered, summary.errors) == (1, 3, 3)
    assert out.read_text() == before and len(batch.load(out)) == 3


def test_a_retry_that_was_killed_loses_nothing_and_leaves_each_row_once(
    run, server, answers, monkeypatch
):
    rows, started = rows_of(20, max_tokens=24), server()
    out = run(started, rows).output
    with monkeypatch.context() as killed:  # as if the process had ended before it tidied up
        killed.setattr(Session, "_remove_replaced", lambda self: (_ for _ in ()).throw(KeyError))
        with pytest.raises(KeyError):
            run(started, rows, retry="length")
    assert len(answers(out)) == 40  # both answers of each row are there
    assert set(batch.load(out).finish_reason) == {"stop"} and len(batch.load(out)) == 20
    started.asked.clear()
    summary = run(started, rows)
    assert (summary.new, summary.answered, summary.superseded) == (0, 20, 0)
    assert len(answers(out)) == 20 and not started.asked


def test_samples_are_counted_one_by_one_and_asked_again_together(run, server):
    output = "out.parquet"
    rows, started = rows_of(2, max_tokens=24), server()
    options = {"samples": 3, "temperature": 1.0}
    assert run(started, rows, output, **options).finish_reasons == {"length": 6}
    summary = run(started, rows, output, **options, retry="length")
    assert (summary.finish_reasons, summary.retried) == ({"stop": 6}, 2)
    frame = batch.load(summary.output)
    assert set(frame.finish_reason) == {"stop"} and len(frame) == 6


def test_there_is_no_other_retry(new_batch):
    with pytest.raises(BadInput, match="no retry of 'stop'"):
        new_batch("http://127.0.0.1:9/v1", 1, retry="stop")


def test_the_limit_that_a_row_names_is_the_one_that_is_raised():
    for body, more in (
        ({"messages": [], "max_completion_tokens": 9}, {"max_completion_tokens": 36}),
        ({"prompt": "a"}, {"max_tokens": 36}),
    ):
        assert json.loads(with_more_tokens(json.dumps(body), 36)) == body | more
