"""Every option of `workshop batch` arrives where the run reads it, and its page names it.

The steps of a new option are in CONTRIBUTING.md, under "An option of `workshop batch`".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from workshop.batch.offline import OfflineBatch
from workshop.batch.online import Batch
from workshop.batch.session import Session
from workshop.cli.use.batch import command
from workshop.client.sampling_settings import PARAMETERS

PAGE = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")
OPTIONS = {param.opts[0]: param for param in command.params if isinstance(param, click.Option)}
# These choose what the command does, so no run reads them: test_inputs, test_shards, test_online have them.
OF_THE_COMMAND = {"--check", "--merge", "--json", "--offline"}
ONLY_OFFLINE = {"--trace"}
# A value that is not the default, where that of the option's type will not do.
VALUES = {
    "--url": "http://127.0.0.1:7/v1",
    "--shard": "2/8",
    "--sampling": '{"top_k": 7}',
    "--patience": "7",
}


def value_of(flag: str) -> list[str]:
    """Return what stands behind the flag: nothing where it takes no value."""
    option = OPTIONS[flag]
    if option.is_flag:
        return []
    if isinstance(option.type, click.Choice):
        return [option.type.choices[0]]
    by_type = {"integer": "7", "float": "0.5"}
    return [VALUES.get(flag, by_type.get(option.type.name, "some text"))]


def leaves(value: object) -> Iterator[object]:
    """Yield every text, number and truth value inside containers and objects of ours."""
    if isinstance(value, dict):
        value = tuple(value.values())
    elif type(value).__module__.startswith("workshop."):
        value = tuple(vars(value).values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, str | int | float):
        yield value


@pytest.fixture
def settings_of(monkeypatch, tmp_path):
    """Return a function: a command line → all that the run has before it begins."""
    runs: list[Session] = []

    def run(session: Session):
        runs.append(session)
        raise click.exceptions.Exit(0)

    monkeypatch.setattr(Batch, "run", run)
    monkeypatch.setattr(OfflineBatch, "run", run)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The sea\n")

    def settings(*arguments: str) -> Counter[object]:
        command_line = [str(prompts), str(tmp_path / "answers.jsonl"), *arguments]
        result = CliRunner().invoke(command, command_line)
        assert result.exit_code == 0, (
            f"workshop batch {' '.join(arguments)} ended with {result.exception!r}. An option has no "
            "home: a field of Limits that `_batch` of workshop/cli/use/batch.py fills, or a parameter of "
            "Batch or Session."
        )
        return Counter(leaves(vars(runs.pop())))

    return settings


def test_an_option_arrives_in_the_run(settings_of, subtests):
    for flag in sorted(OPTIONS.keys() - OF_THE_COMMAND):
        with subtests.test(flag):
            offline = ["--offline"] if flag in ONLY_OFFLINE else []
            without = settings_of(*offline)
            assert settings_of(*offline) == without
            assert settings_of(*offline, flag, *value_of(flag)) - without, (
                f"{flag} is taken and then forgotten: `_batch` of workshop/cli/use/batch.py has to hand it to "
                "Limits or to Batch."
            )


def test_the_page_names_every_option():
    """Sampling parameters are vLLM's own, and `--help` explains them."""
    missing = []
    for flag, option in OPTIONS.items():
        if option.name not in PARAMETERS and f"`{flag}" not in PAGE and f" {flag}" not in PAGE:
            missing.append(flag)
    assert missing == [], f"docs/batch.md does not say what {', '.join(missing)} does."
