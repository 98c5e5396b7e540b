"""What `workshop serve` takes from its arguments."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from workshop.cli.serve import serve
from workshop.errors import BadInput
from workshop.servers import local


@pytest.fixture
def prepare_arguments(monkeypatch) -> dict:
    """What `local.prepare` is asked for; nothing starts."""
    arguments: dict = {}

    def prepare(model, **options):
        arguments.update(options, model=model)
        raise BadInput("Enough.", "Nothing starts in this test.")

    monkeypatch.setattr(local, "prepare", prepare)
    return arguments


def test_the_size_of_a_class_is_ours_and_not_vllms(prepare_arguments, subtests):
    for args, learners in [
        (["--learners", "30"], 30),
        (["--learners=30", "some/model"], 30),
        (["some/model", "--learners", "1"], 1),
        (["some/model", "--host", "0.0.0.0", "--learners", "30"], 30),
        ([], 0),
    ]:
        with subtests.test(str(args)):
            CliRunner().invoke(serve.command, args)
            assert (
                prepare_arguments["learners"] == learners and prepare_arguments["vllm_args"] == ()
            )
            assert prepare_arguments["model"] == ("some/model" if "some/model" in args else None)
            assert prepare_arguments["host"] == ("0.0.0.0" if "--host" in args else "127.0.0.1")


def test_a_class_has_a_whole_number_of_learners(prepare_arguments, subtests):
    for value in ["-1", "many", "3.5"]:
        with subtests.test(value):
            done = CliRunner().invoke(serve.command, [f"--learners={value}"])
            assert done.exit_code == 2 and not prepare_arguments


def test_help_names_the_limits_and_where_they_are_written():
    help_text = " ".join(CliRunner().invoke(serve.command, ["--help"]).output.split())
    assert "--learners" in help_text and "docs/security.md" in help_text


def test_a_mistyped_flag_is_refused_with_what_was_meant(workshop_home, subtests):
    for args, meant in [
        (["--backgroud"], "--background"),
        (["--max-modellen", "100"], "--max-model-len"),
        (["--learnes=3"], "--learners"),
    ]:
        with subtests.test(str(args)):
            error = CliRunner().invoke(serve.command, args).exception
            assert isinstance(error, BadInput) and error.message.endswith(f"did you mean {meant}?")
            assert not list(workshop_home.rglob("*.log"))
