"""Notebook 10's templates, tokens and recorded answers; what a server does with them is the notebook's own run."""

from __future__ import annotations

import ast
import json
from types import SimpleNamespace

import cells
import pytest

from workshop.course.notebooks import nb10
from workshop.errors import BadInput, WorkshopError

QUESTION = {"role": "user", "content": "What is Boston?"}
ARGUMENTS = '{"city": "Boston"}'
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": ARGUMENTS},
}


def test_the_template_here_is_the_one_that_transformers_runs():
    theirs = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    own = nb10.own_template()
    special_tokens = {"bos_token": own["bos_token"], "eos_token": own["eos_token"]}
    talk = [
        QUESTION,
        {"role": "assistant", "content": "A city."},
        {"role": "system", "content": "Be brief."},
        QUESTION,
    ]
    for asks in (True, False):
        [made], _ = theirs(
            [talk], chat_template=own["chat_template"], add_generation_prompt=asks, **special_tokens
        )
        assert nb10.render(talk, add_generation_prompt=asks) == made
    messages = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    # as vLLM hands them over
    parsed = json.loads(json.dumps(messages).replace(json.dumps(ARGUMENTS), ARGUMENTS))
    template, tools = (
        nb10.WITH_TOOLS.read_text(),
        [{"type": "function", "function": {"name": "get_weather"}}],
    )
    [made], _ = theirs(
        [parsed], tools=tools, chat_template=template, add_generation_prompt=True, **special_tokens
    )
    assert nb10.render(messages, template, tools=tools) == made and '{"city": "Boston"}' in made
    assert messages[1]["tool_calls"][0] == CALL, "the messages stay as they were"


def server(status: int, sent: list):
    def post(url, json):
        sent.append((url, json))
        return SimpleNamespace(status_code=status, json=lambda: {"token_strs": ["ĠWhat", "Ċ", ":"]})

    return SimpleNamespace(model="m", root="http://a", http=SimpleNamespace(post=post))


def test_tokens_are_asked_for_and_come_as_they_are_read():
    sent = []
    assert nb10.tokens(server(200, sent), "a prompt", add_special_tokens=False) == [
        " What",
        "\n",
        ":",
    ]
    nb10.tokens(server(200, sent), [QUESTION])
    assert [body.get("prompt", body.get("messages")) for _, body in sent] == [
        "a prompt",
        [QUESTION],
    ]
    assert sent[0][0] == "http://a/tokenize" and sent[0][1]["add_special_tokens"] is False
    with pytest.raises(WorkshopError, match="answers 404"):
        nb10.tokens(server(404, sent), "a prompt")


def notebook_cells() -> dict[str, str]:
    return {cell.id: cell.source for cell in cells.cells("10_chat")}


def test_without_vllm_the_notebook_gets_a_recorded_answer_to_each_of_its_requests(
    monkeypatch, capsys
):
    monkeypatch.setattr(nb10.extra_servers, "installed", lambda: ("", ""))
    sources, names = notebook_cells(), {"nb10": nb10}
    for node in (
        node for name in ("chat-01", "chat-30", "chat-37") for node in ast.parse(sources[name]).body
    ):
        if (
            isinstance(node, ast.Assign)
            and node.targets[0].id != "llm"
            and "formed" not in ast.unparse(node)
        ):
            exec(ast.unparse(node), names)
    names |= {
        "flags": ["--enable-auto-tool-choice"],
        "show": SimpleNamespace(Table=lambda *table: table),
    }
    for name in ("chat-42", "chat-43", "chat-45", "chat-47", "chat-48"):
        exec(sources[name], names)
    assert "recorded answers of vLLM 0.32" in capsys.readouterr().out
    assert names["plain"].content is None and names["called"].function.name == "get_weather"
    with pytest.raises(BadInput, match="not recorded"):
        names["reader"].chat([QUESTION], max_tokens=3)


def test_while_there_are_no_flags_the_notebook_goes_on_with_what_was_recorded(capsys):
    assert isinstance(nb10.reader(...), nb10.Recorded)
    assert "There are no flags yet" in capsys.readouterr().out
