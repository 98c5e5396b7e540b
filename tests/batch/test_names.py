"""One model has several names: what a server lists, what a proxy puts in front, and what the user says."""

from __future__ import annotations

import pytest
import wire_stub
from click.testing import CliRunner

from workshop.cli.use import batch as cli
from workshop.errors import WorkshopError


def answering(as_name: str):
    return lambda request: wire_stub.answer(request, model=as_name)


SAME_MODEL = (
    (["llama70", "meta-llama/Llama-3.1-70B"], "meta-llama/Llama-3.1-70B", "llama70"),
    (["llama70", "other"], "llama70", "other"),  # listed, and nothing says that it is another
    (["llama70"], None, "hosted_vllm/llama70"),
    (["hosted_vllm/llama70"], None, "llama70"),
)


def test_another_name_of_the_same_model_ends_no_run(wire, run):
    for number, (models, model, answered) in enumerate(SAME_MODEL):
        server = wire(answering(answered), models=models)
        assert run(server, 5, f"{number}.jsonl", model=model).exit_code == 0


def test_two_names_of_one_root_need_no_choice_and_each_row_may_use_any(wire, run):
    names = ["llama70", "meta-llama/Llama-3.1-70B"]
    server = wire(models=[{"id": name, "root": "/models/llama"} for name in names])
    rows = [{"body": {"model": name, "prompt": "x"}} for name in names]
    assert run(server, rows).exit_code == 0
    assert [request.json["model"] for request in server.asked] == ["llama70", "llama70"]


BASE = {"id": "base", "root": "/base"}
ADAPTER = {"id": "adapter", "root": "/lora", "parent": "base"}
OTHER_MODEL = (
    (["llama70"], "llama70b"),
    (["llama70"], "hosted_vllm/llama7"),
    (["meta-llama/llama70"], "other/llama70"),
    (["gpt-4o"], "gpt-4o-mini"),
    ([BASE, ADAPTER], "adapter"),
)


def test_another_model_ends_the_run_and_says_how_to_accept_its_name(wire, run):
    for number, (models, answered) in enumerate(OTHER_MODEL):
        server = wire(answering(answered), models=models)
        name = server.models[0]["id"]
        says = f"serves {answered}, not {name}.*--accept-model {answered}"
        output = f"{number}.jsonl"
        with pytest.raises(WorkshopError, match=says):
            run(server, 5, output, model=name)
        assert run(server, 5, output, model=name, accept_model=answered).exit_code == 0


def test_the_command_takes_names(put, wire):
    server, path = (
        wire(lambda request: wire_stub.answer(request, model=f"name {request.number % 2}")),
        put(5),
    )
    names = ["--accept-model", "name 0", "--accept-model", "name 1"]
    arguments = [str(path), str(path.with_name("out.jsonl")), "--url", server.url, *names]
    done = CliRunner().invoke(cli.command, arguments)
    assert done.exit_code == 0, done.output
