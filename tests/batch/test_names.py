"""One model has several names: what a server lists, what a proxy puts in front, and what the user says."""

from __future__ import annotations

import json

import pytest
import wire_stub
from click.testing import CliRunner

from workshop import batch
from workshop.cli import batch as cli
from workshop.errors import WorkshopError


@pytest.fixture
def path(tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"row {number}\n" for number in range(5)))
    return tmp_path / "in.txt"


def answering(as_name: str):
    return lambda request: wire_stub.answer(request, model=as_name)


@pytest.mark.parametrize(
    ("models", "model", "answered"),
    [
        (["llama70", "meta-llama/Llama-3.1-70B"], "meta-llama/Llama-3.1-70B", "llama70"),
        (["llama70", "other"], "llama70", "other"),  # listed, and nothing says that it is another
        (["llama70"], None, "hosted_vllm/llama70"),
        (["hosted_vllm/llama70"], None, "llama70"),
        (["gpt-4o-mini", "gpt-4o"], "gpt-4o-mini", "gpt-4o-mini-2024-07-18"),
        (["gpt-4"], None, "gpt-4-0613"),
        (["openai/gpt-4o"], None, "gpt-4o-2024-08-06"),
    ],
)
def test_another_name_of_the_same_model_ends_no_run(models, model, answered, path, wire, quick):
    server = wire(answering(answered), models=models)
    summary = batch.run(
        path, path.with_name("out.jsonl"), url=server.url, model=model, limits=quick
    )
    assert summary.exit_code == 0


def test_two_names_of_one_root_need_no_choice(path, wire, quick):
    models = [
        {"id": name, "root": "/models/llama"} for name in ("llama70", "meta-llama/Llama-3.1-70B")
    ]
    assert (
        batch.run(
            path, path.with_name("o.jsonl"), url=wire(models=models).url, limits=quick
        ).exit_code
        == 0
    )


def test_each_row_may_use_any_of_the_names(tmp_path, wire, quick):
    names = ["llama70", "meta-llama/Llama-3.1-70B"]
    bodies = [f'{{"model": "{name}", "prompt": "x"}}' for name in names]
    (tmp_path / "in.jsonl").write_text("".join(f'{{"body": {body}}}\n' for body in bodies))
    server = wire(models=[{"id": name, "root": "/m"} for name in names])
    assert (
        batch.run(
            tmp_path / "in.jsonl", tmp_path / "out.jsonl", url=server.url, limits=quick
        ).exit_code
        == 0
    )
    assert [request.json["model"] for request in server.asked] == ["llama70", "llama70"]


@pytest.mark.parametrize(
    ("models", "answered"),
    [
        (["llama70"], "mixtral"),
        (["llama70"], "llama70b"),
        (["llama70"], "hosted_vllm/llama7"),
        (["meta-llama/llama70"], "other/llama70"),
        (["gpt-4o"], "gpt-4o-mini"),
        (["gpt-4o"], "gpt-4o-mini-2024-07-18"),
        (
            [{"id": "base", "root": "/base"}, {"id": "adapter", "root": "/lora", "parent": "base"}],
            "adapter",
        ),
    ],
)
def test_another_model_ends_the_run_and_says_how_to_accept_its_name(
    models, answered, path, wire, quick
):
    server = wire(answering(answered), models=models)
    name = server.models[0]["id"]
    with pytest.raises(
        WorkshopError, match=f"serves {answered}, not {name}.*--accept-model {answered}"
    ):
        batch.run(path, path.with_name("out.jsonl"), url=server.url, model=name, limits=quick)
    summary = batch.run(
        path,
        path.with_name("out.jsonl"),
        url=server.url,
        model=name,
        limits=quick,
        accept_model=answered,
    )
    assert summary.exit_code == 0


def test_the_command_takes_names(path, wire):
    server = wire(lambda request: wire_stub.answer(request, model=f"name {request.number % 2}"))
    names = ["--accept-model", "name 0", "--accept-model", "name 1"]
    done = CliRunner().invoke(
        cli.command, [str(path), str(path.with_name("o.jsonl")), "--url", server.url, *names]
    )
    assert done.exit_code == 0, done.output
    assert len(json.loads(path.with_name("o.jsonl.meta.json").read_text())["runs"]) == 1
