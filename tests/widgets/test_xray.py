"""The X-ray without a browser: what the page is given is the trace, and what it asks is answered by it."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from click.testing import CliRunner

from workshop.cli.use.xray import command
from workshop.client import answer_ids
from workshop.course.widgets.xray import case, view
from workshop.course.widgets.xray.case import RECORDED, Replay, letters, number, page
from workshop.course.widgets.xray.view import XRay
from workshop.engine import trace
from workshop.errors import BadInput
from workshop.servers import records

STEPS = trace.read(RECORDED)


def replayed(steps=STEPS, **how) -> Replay:
    replay = Replay("recorded", **how)
    replay.extend(steps)
    return replay


def tables(steps: list[dict]) -> list[dict[int, list[int]]]:
    """Add the steps of a page up, as the page does: the blocks of each request after each."""
    now = {}
    history = []
    for step in steps:
        for request, unchanged_blocks, *new in step["tables"]:
            now[request] = (
                [] if unchanged_blocks < 0 else now.get(request, [])[:unchanged_blocks] + new
            )
        now = {request: blocks for request, blocks in now.items() if blocks}
        history.append(dict(now))
    return history


def expected(steps) -> list[dict[int, list[int]]]:
    names = {}
    history = []
    for step, pool in trace.replay(steps):
        for name in (
            *(name for name, _ in step.arrived),
            *(request.id for request in step.requests),
        ):
            names.setdefault(name, len(names))
        history.append(
            {names[name]: list(blocks) for name, blocks in pool.tables.items() if blocks}
        )
    return history


def test_the_page_is_given_every_block_of_every_step():
    page_data = replayed().data()
    assert tables(page_data["steps"]) == expected(STEPS)
    assert page_data["cells"] == 18 and page_data["pool"] == STEPS[0].num_blocks


def test_what_is_taken_and_freed_is_what_is_held_more_or_less():
    in_use: set[int] = set()
    for step, now in zip(
        replayed().data()["steps"], tables(replayed().data()["steps"]), strict=True
    ):
        new = {block for blocks in now.values() for block in blocks}
        assert (in_use - set(step["freed"])) | set(step["taken"]) == new
        assert step["usage"] == pytest.approx(len(new) / 18, abs=1e-4), "as vLLM says it"
        in_use = new
    assert not in_use, "in the end all is given back"


def test_the_recorded_run_has_what_is_to_be_seen():
    rows = [request for step in STEPS for request in step.requests]
    assert max(request.prefix_hit_tokens for request in rows) == 64, "two blocks of 32, shared"
    assert [name for step in STEPS for name in step.preempted] == ["same-again"]
    assert Counter(request.id for request in rows if request.prefill_tokens)["long"] == 3, (
        "a prompt in three steps"
    )
    assert len(RECORDED.read_bytes()) < 60_000


def test_a_page_from_the_middle_has_the_same_pool_as_the_whole():
    for first in (1, 7, 20, STEPS[-1].step):
        page_data = replayed(first=first).data()
        assert page_data["first"] == first and len(page_data["steps"]) == len(STEPS) - first
        assert tables(page_data["steps"]) == expected(STEPS)[first:]


def test_of_a_long_trace_a_page_has_so_many_steps_and_says_so(monkeypatch):
    monkeypatch.setattr(case, "MOST_STEPS", 10)
    page_data = replayed().data()
    assert len(page_data["steps"]) == 10 and "46 later steps are left out" in page_data["about"]
    assert tables(page_data["steps"]) == expected(STEPS)[:10]


def test_of_a_large_pool_the_first_blocks_and_those_that_somebody_takes_are_drawn(monkeypatch):
    monkeypatch.setattr(case, "WHOLE_POOL", 2)
    assert replayed(STEPS[:1]).data()["cells"] == [1, *STEPS[0].taken[1:]], (
        "the first, and those that are taken"
    )
    assert replayed().data()["cells"] == list(range(1, 19)), "all, once all were taken"


def test_requests_have_short_names_in_their_order():
    assert [letters(count) for count in (0, 25, 26, 51, 52)] == ["A", "Z", "A1", "Z1", "A2"]
    assert all(number(letters(count)) == count for count in range(2000))
    assert replayed().data()["names"][0] == ["A", "first", ""]


def test_a_request_is_labelled_with_the_name_that_its_sender_gave_and_no_other():
    own = answer_ids.new("ada.lovelace@uni")
    for answer_id, name in (
        (f"cmpl-{own}-0", "ada.lovelace@uni"),
        (f"chatcmpl-{own}", "ada.lovelace@uni"),
        (f"cmpl-{answer_ids.new()}-0", ""),
        ("cmpl-mallory-0", ""),
    ):
        assert answer_ids.by(answer_id) == name
    steps = made({"arrived": [[f"cmpl-{own}-0", 4]], "requests": [row(f"cmpl-{own}-0")]})
    assert replayed(steps).data()["names"][0][2] == "ada.lovelace@uni"[: case.LABEL_CHARS]


def test_the_name_of_a_server_stands_for_its_trace(tmp_path, monkeypatch, workshop_home):
    monkeypatch.chdir(tmp_path)
    for name, file in (("class", RECORDED), ("quiet", "")):
        records.write(
            records.new(name=name, url="http://h:1/v1", model="m", log="", trace=str(file))
        )
    assert XRay("class").steps == len(STEPS)
    done = CliRunner().invoke(command, ["class", "--html", "page.html"])
    assert done.exit_code == 0 and (tmp_path / "page.html").is_file()
    with pytest.raises(BadInput, match="notes nothing"):
        XRay("quiet")
    with pytest.raises(BadInput, match="no server of that name"):
        XRay("nobody")


def true_answers(step: trace.Step, short: dict[str, str]) -> set[str]:
    """Everything that is true of a step and may be an answer, from the trace itself."""
    rows = {short[request.id]: request for request in step.requests}
    answers = {f"{request.prefill_tokens + request.decode_tokens:,}" for request in rows.values()}
    answers |= {
        str(len(step.taken)),
        str(len(step.freed)),
        *(short[name] for name in step.preempted),
    }
    answers |= {"It joins the step." for request in rows.values() if request.prefill_tokens}
    answers |= {"It waits: too few blocks are free.", "It waits: the budget is used up."}
    answers.add(" and ".join(name for name, request in rows.items() if request.blocks))
    together = " and ".join([", ".join(list(rows)[:-1]), *list(rows)[-1:]])
    return answers | {f"one token of each: {together}"}


def test_every_question_is_answered_by_the_step_and_has_real_alternatives():
    replay = replayed()
    questions = [
        (step, drawn["question"])
        for step, drawn in zip(STEPS, replay.steps, strict=True)
        if drawn["question"]
    ]
    assert len(questions) >= 12
    for step, question in questions:
        options, right = question["options"], question["options"][question["right"]]
        assert 2 <= len(set(options)) == len(options) <= 6
        assert right in true_answers(step, replay.names), (step.step, question)
        if queued := re.search(r"(\w+) is first in the queue", question["ask"]):
            there = queued[1] in {replay.names[request.id] for request in step.requests}
            assert right.startswith("It joins") == there
        assert question["why"].endswith(".") and question["ask"].endswith("?")
    text = " ".join(question["ask"] for _, question in questions)
    for kind in (
        "Who is preempted",
        "are computed",
        "What happens to",
        "takes a new block",
        "become free",
        "comes back",
    ):
        assert kind in text


LINE = {
    "taken": [],
    "freed": [],
    "preempted": [],
    "arrived": [],
    "finished": [],
    "stored": [],
    "removed": [],
}


def made(*steps: dict) -> list[trace.Step]:
    fixed = {"budget": 96, "kv_cache_usage": 0.5, "num_blocks": 8, "block_size": 16}
    lines = (
        {**LINE, **fixed, "step": at, "time_s": at / 10, **step} for at, step in enumerate(steps)
    )
    return [trace._step(line) for line in lines]


def row(name: str, **what) -> dict:
    nothing = dict.fromkeys(
        ("prefill_tokens", "decode_tokens", "computed_tokens", "prefix_hit_tokens"), 0
    )
    return {"id": name, **nothing, "drafted": 0, "accepted": 0, "blocks": [], **what}


def test_a_draft_is_drawn_and_asked_about():
    steps = made(
        {
            "arrived": [["a", 20]],
            "requests": [row("a", prefill_tokens=20, blocks=[1, 2])],
            "taken": [1, 2],
        },
        {"requests": [row("a", decode_tokens=4, computed_tokens=20, drafted=3, accepted=2)]},
    )
    drawn = replayed(steps).steps[1]
    assert drawn["rows"] == [[0, 0, 4, 20, 0, 3, 2]]
    assert "A: 2 of 3 draft tokens were accepted" in " ".join(drawn["said"])
    assert drawn["question"]["options"] == ["1", "3", "4"] and drawn["question"]["right"] == 2


def test_what_is_freed_of_shared_blocks_is_asked():
    steps = made(
        {
            "arrived": [["a", 20]],
            "requests": [row("a", prefill_tokens=20, blocks=[1, 2])],
            "taken": [1, 2],
        },
        {
            "arrived": [["b", 20]],
            "requests": [
                row("b", prefill_tokens=4, prefix_hit_tokens=16, computed_tokens=16, blocks=[1, 3])
            ],
            "taken": [3],
        },
        {
            "requests": [row("b", decode_tokens=1, computed_tokens=20)],
            "finished": ["a"],
            "freed": [2],
        },
    )
    question = replayed(steps).steps[2]["question"]
    assert "A holds 2 blocks, 1 of which others hold too." in question["ask"]
    assert question["options"][question["right"]] == "1" and "2" in question["options"]


def test_nothing_is_asked_where_no_known_rule_explains_a_step():
    """A victim that did not come last (priorities), a prompt that is cut at another place than the budget's end."""
    began = {
        "arrived": [["a", 20], ["b", 20]],
        "requests": [
            row("a", prefill_tokens=20, blocks=[1, 2]),
            row("b", prefill_tokens=20, blocks=[3, 4]),
        ],
        "taken": [1, 2, 3, 4],
    }
    other = made(
        began,
        {
            "requests": [row("b", decode_tokens=1, computed_tokens=20)],
            "preempted": ["a"],
            "freed": [1, 2],
        },
    )
    assert replayed(other).steps[1]["question"] is None
    assert (
        replayed(
            made({"arrived": [["c", 50]], "requests": [row("c", prefill_tokens=7, blocks=[1])]})
        ).steps[0]["question"]
        is None
    )


def test_words_of_a_file_stay_words():
    # a client's X-Request-Id
    evil = "</script><script>alert(1)</script>/* script */\ud800" + "x" * 60_000
    steps = made(
        {
            "arrived": [[evil, 4]],
            "requests": [row(evil, prefill_tokens=4, blocks=[1])],
            "taken": [1],
        }
    )
    replay = Replay("half a character: \udcff")
    replay.extend(steps)
    text = page(replay.data())
    assert text.encode() and "<script>alert" not in text and text.count('"use strict"') == 1
    assert evil not in text and "\\u003c/script>" in text
    data = json.loads(re.search(r'id="trace">(.*?)</script>', text, re.DOTALL)[1])
    assert data["names"] == [["A", evil[:100], ""]] and len(text) < 60_000


def test_a_page_asks_for_nothing_elsewhere():
    assert not re.findall(r"https?:|src=|@import|url\((?!#)", page(replayed().data()))


def test_in_a_notebook_it_goes_on_where_the_trace_does(tmp_path):
    lines = RECORDED.read_text().splitlines(keepends=True)
    growing = tmp_path / "trace.jsonl"
    growing.write_text("")
    xray = XRay(growing)
    assert xray.steps == 0, "a server that nobody has asked yet"
    growing.write_text("".join(lines[:5]) + lines[5][:40])
    assert xray.look() == 5, "half a line waits"
    sent = json.loads(xray._feed.value.replace("&lt;", "<").replace("&amp;", "&"))
    assert sent["since"] == 0 and len(sent["steps"]) == 5 and sent["block_size"] == 32
    xray._says.value = "1 of 2, 5 steps"  # as the page does
    growing.write_text("".join(lines))
    assert xray.look() == len(lines) and xray.score == (1, 2)
    sent = json.loads(xray._feed.value.replace("&lt;", "<").replace("&amp;", "&"))
    assert sent["since"] == 5 and sent["steps"] == json.loads(json.dumps(xray._replay.steps[5:]))
    assert tables(xray._replay.steps) == expected(STEPS)
    xray._says.value = "0 of 0, 2 steps"  # the page was loaded anew
    assert json.loads(xray._feed.value.replace("&lt;", "<").replace("&amp;", "&"))["since"] == 2


def test_following_ends_and_looks_once_more(tmp_path):
    growing = tmp_path / "trace.jsonl"
    growing.write_text("")
    xray = XRay(growing, every_s=3600).start()
    growing.write_bytes(RECORDED.read_bytes())
    assert xray.stop() == len(STEPS)


def test_who_follows_a_long_trace_sees_its_last_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(view, "LIVE_STEPS", 5)
    monkeypatch.setattr(case, "MOST_STEPS", 10)
    lines = RECORDED.read_text().splitlines(keepends=True)
    growing = tmp_path / "trace.jsonl"
    growing.write_text("".join(lines[:30]))
    xray = XRay(growing, every_s=3600)
    assert not xray._replay.data()["follow"] and xray.steps == 10
    xray.start()
    assert xray._replay.data()["follow"] and xray._replay.first == STEPS[29].step - 4
    growing.write_text("".join(lines))
    xray.stop()
    assert xray._replay.first == STEPS[-1].step - 4 and xray.steps == 5


def test_a_trace_that_is_gone_is_said_below_what_was_drawn(tmp_path):
    growing = tmp_path / "trace.jsonl"
    growing.write_bytes(RECORDED.read_bytes())
    xray = XRay(growing, every_s=0.01)
    growing.unlink()
    xray.start()._thread.join(timeout=20)
    assert "cannot be read" in xray.children[-1].value and xray.steps == len(STEPS)


def test_the_command_writes_one_file(tmp_path):
    done = CliRunner().invoke(
        command, [str(RECORDED), "--html", str(tmp_path / "page.html"), "--first", "7"]
    )
    assert done.exit_code == 0 and "49 steps of 6 requests" in done.output
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_what_cannot_be_is_one_sentence(tmp_path, subtests):
    for arguments, message in [
        (["{none}"], "cannot be read"),
        (["{other}"], "Line 1 of .* is no step of a trace"),
        (["{empty}"], "holds no step"),
        (["{trace}", "--first", "99"], "The trace has no step 99"),
        (["{trace}", "--html", "{trace}"], "exists already"),
        (["{trace}", "--html", "{none}/page.html"], "cannot be written"),
    ]:
        with subtests.test(str(arguments)):
            files = {name: tmp_path / name for name in ("none", "other", "empty", "trace")}
            files["other"].write_text('{"a": 1}\n')
            files["empty"].write_text("")
            files["trace"].write_bytes(RECORDED.read_bytes())
            done = CliRunner().invoke(command, [argument.format(**files) for argument in arguments])
            assert (
                isinstance(done.exception, BadInput)
                and re.search(message, done.exception.message)
                and done.exception.remedy
            )
            assert files["trace"].read_bytes() == RECORDED.read_bytes()
