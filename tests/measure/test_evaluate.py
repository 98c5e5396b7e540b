"""`workshop evaluate`: lm-eval against a server, its samples read again, and two runs compared question by question."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from needs import lacking
from small_server import Handler, serving

from workshop.cli import group
from workshop.client import reach
from workshop.errors import BadInput, WorkshopError
from workshop.measure import evaluation

QUESTIONS = [
    json.loads(line)
    for line in (evaluation.TASKS / "teaching_places.jsonl").read_text().splitlines()
]
GLOSSES = {row["prompt"]: row["gloss"] for row in QUESTIONS}


def answering(text_of: Callable[[str], str], seen: list[dict]) -> type:
    """Return a handler of a server that completes each prompt with a text; `seen` gets the requests."""

    class Completing(Handler):
        def do_GET(self):
            self.reply({"object": "list", "data": [{"id": "stub", "object": "model"}]})

        def do_POST(self):
            body = self.body()
            seen.append({**body, "authorization": self.headers["Authorization"]})
            choice = {"index": 0, "text": text_of(body["prompt"]), "finish_reason": "stop"}
            self.reply({"id": "x", "object": "text_completion", "choices": [choice]})

    return Completing


def by_heart(prompt: str) -> str:
    """Complete a prompt with its gloss, whose first word the prompt has already."""
    return f" {GLOSSES[prompt].partition(' ')[2]}. It is a place."


def sample(number: int, is_right: int, **changes) -> str:
    """Return a line as lm-eval 0.4.13 writes it."""
    row = {
        "doc_id": number,
        "doc_hash": f"hash {number}",
        "arguments": {"gen_args_0": {"arg_0": f"question {number}", "arg_1": {}}},
        "resps": [[f" answer {is_right}"]],
        "filter": "none",
        "metrics": ["right"],
        "right": float(is_right),
    }
    return json.dumps({**row, **changes}) + "\n"


def samples(folder: Path, *lines: str, task: str = "teaching_places") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"samples_{task}_2026-11-25T16-30-00.1.jsonl").write_text("".join(lines))
    return folder


def run(*arguments: str | Path):
    return CliRunner().invoke(group, ["evaluate", *map(str, arguments)])


def test_lm_eval_asks_all_questions_of_the_task_and_the_judge_finds_what_was_known(
    tmp_path, monkeypatch
):
    if not evaluation.installed():
        lacking("lm-eval, of the extra `eval`")
    monkeypatch.setenv("WORKSHOP_API_KEY", "a-key-of-ours")
    wrong = QUESTIONS[0]["prompt"]
    seen: list[dict] = []

    def text_of(prompt: str) -> str:
        return " town on the moon." if prompt == wrong else by_heart(prompt)

    with serving(answering(text_of, seen)) as url:
        result = run(tmp_path / "new", "--url", f"{url}/v1", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert (data["questions"], data["right"]) == (300, 299)
    assert {request["prompt"] for request in seen} == set(GLOSSES)
    assert {request["authorization"] for request in seen} == {"Bearer a-key-of-ours"}
    assert {request["temperature"] for request in seen} == {0}


def test_the_tasks_own_glosses_are_right():
    judge = evaluation.TASKS / "teaching_places.py"
    namespace: dict = {"__file__": str(judge)}
    exec(judge.read_text(), namespace)
    for row in QUESTIONS:
        assert namespace["judge"](row, [by_heart(row["prompt"])]) == {"right": 1.0}, row
        assert namespace["judge"](row, [f" place. It is in {row['answer']}."]) == {"right": 0.0}


def test_two_runs_are_compared_by_question_and_not_by_their_order(tmp_path):
    before = samples(tmp_path / "a", *(sample(n, 1) for n in range(8)))
    after = samples(tmp_path / "b", *(sample(n, int(n > 5)) for n in reversed(range(8))))
    data = json.loads(run(after, "--against", before, "--json").stdout)
    # six got worse and none better: a coin falls so in 2 of 64 cases
    assert data["comparison"]["worse"] == 6 and data["comparison"]["better"] == 0
    assert data["comparison"]["p_value"] == 2 / 64
    assert len(data["changed"]) == 6 and data["changed"][0]["before"] == " answer 1"
    text = run(after, "--against", before).stdout
    assert "It is worse" in text and "… and 1 more" in text


def test_no_difference_is_not_called_equal(tmp_path):
    # (0.5 - 2.5) / 102 - 1.96 * sqrt(3 - 4 / 102) / 102 = -0.0527
    before = samples(tmp_path / "a", *(sample(n, 1) for n in range(100)))
    after = samples(tmp_path / "b", *(sample(n, int(n > 1)) for n in range(100)))
    text = run(after, "--against", before).stdout
    assert "No difference is shown. It may still be up to 5.3 points worse" in text


def test_of_several_filters_the_first_counts(tmp_path):
    lines = []
    for n in range(3):
        lines += [sample(n, 1, filter="strict"), sample(n, 0, filter="flexible")]
    assert evaluation.read(samples(tmp_path / "a", *lines)).right == 3


def test_samples_that_cannot_be_used_are_refused_in_one_sentence(tmp_path, subtests):
    for lines, message in [
        (["no json\n"], "Line 1"),
        ([sample(0, 1, right=0.37)], "does not say right or wrong"),
        ([sample(0, 1, metrics=[])], "name no metric"),
        ([""], "is empty"),
    ]:
        with subtests.test(str(lines)), pytest.raises(BadInput, match=message):
            evaluation.read(samples(tmp_path / "a", *lines))


def test_runs_of_different_tasks_are_not_compared(tmp_path):
    before = samples(tmp_path / "a", sample(0, 1, doc_hash="other"))
    after = samples(tmp_path / "b", sample(0, 1))
    result = run(after, "--against", before)
    assert isinstance(result.exception, BadInput)
    assert "no question in common" in str(result.exception)


def test_a_folder_with_answers_to_two_tasks_asks_which(tmp_path):
    folder = samples(tmp_path / "a", sample(0, 1))
    samples(folder, sample(0, 1), task="gsm8k")
    with pytest.raises(BadInput, match="gsm8k, teaching_places"):
        evaluation.read(folder)


def test_without_lm_eval_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "installed", lambda: False)
    with serving(answering(by_heart, [])) as url:
        result = run(tmp_path / "new", "--url", f"{url}/v1")
    assert isinstance(result.exception, WorkshopError)
    assert 'pip install "lm-eval[api]"' in str(result.exception)


def test_a_failure_of_lm_eval_is_told_with_its_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "installed", lambda: True)
    failing = [sys.executable, "-c", "raise ValueError('Tasks not found: no_such_task')"]
    monkeypatch.setattr(evaluation.python_process, "command", lambda *arguments: failing)
    server = reach.record_of_address("http://127.0.0.1:1/v1", "--url")
    with pytest.raises(WorkshopError, match="lm-eval failed: ValueError: Tasks not found"):
        evaluation.run(server, "stub", tmp_path / "new", tasks="no_such_task")


def test_lm_evals_tables_work_with_the_locked_dateutil():
    if not evaluation.installed():
        lacking("lm-eval, of the extra `eval`")
    code = (
        "from lm_eval.utils import make_table; t = {'t': {'alias': 't', 'right,none': 0.5}};"
        "print(make_table({'results': t, 'versions': {'t': 1}, 'n-shot': {'t': 0}, 'higher_is_better': {'t': {}}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "right" in done.stdout, done.stderr[-500:]
