"""Flags of vLLM that would go around the guard or move the server: refused at once, in every spelling and place."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.errors import BadInput
from workshop.servers import flags
from workshop.servers.flags import checked


@pytest.fixture(autouse=True)
def no_key_of_vllm(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


def spellings(flag: str) -> list[str]:
    """Every way in which vLLM understands a flag: each shorter form, underscores, parts, lists."""
    shorter = [flag[:length] for length in range(1, len(flag) + 1)]
    return [
        f"--{spelling}{end}"
        for short in shorter
        for spelling in {short, short.replace("-", "_")}
        for end in ("", "=x", ".x", ".x+")
    ]


def test_flag_past_the_guard_is_refused_in_every_spelling(tmp_path, subtests):
    for flag in flags.REFUSED:
        with subtests.test(flag):
            for spelling in spellings(flag):
                with pytest.raises(BadInput) as refused:
                    checked(("--max-model-len", "100", spelling, "x"))
                assert refused.value.remedy
            for spelling in (flag, flag.replace("-", "_")):
                (tmp_path / "c.yaml").write_text(f"seed: 1\n{spelling}: x\n")
                with pytest.raises(BadInput, match=f"--{flag} is not for vLLM"):
                    checked(("--config", str(tmp_path / "c.yaml")))


def test_a_short_form_of_what_we_read_counts():
    values = checked(("--tensor-par", "2", "--served_model", "mine", "-n4"))
    assert values == {"tensor-parallel-size": "2", "served-model-name": "mine", "nnodes": "4"}
    with pytest.raises(BadInput, match="ambiguous option: --conf could match"):
        checked(("--conf", "a.yaml"))


def test_flags_of_a_file_count_like_those_of_the_command_line(tmp_path):
    file = tmp_path / "c.yml"
    file.write_text(
        "tensor_parallel_size: 2\nserved-model-name: mine\nenforce-eager: false\nseed: 3\n"
    )
    values = checked(("--config", str(file), "--seed", "4"))
    assert (
        values["tensor-parallel-size"] == "2"
        and values["served-model-name"] == "mine"
        and values["seed"] == "4"
    )
    assert "no-enforce-eager" in values and "enforce-eager" not in values


def test_file_that_sets_no_flags_is_one_sentence(tmp_path, subtests):
    for text in [
        "",
        "[1]",
        "a",
        "a: [",
        "\x00",
        "\xff\xfe",
        "&a [*a]",
        "!!python/object:os.system x",
    ]:
        with subtests.test(text):
            (tmp_path / "c.yaml").write_bytes(text.encode("latin-1"))
            with pytest.raises(BadInput):
                checked(("--config", str(tmp_path / "c.yaml")))


def test_what_vllm_would_overlook_or_stumble_over_is_refused(subtests):
    for args in [
        ("--config",),
        ("--config", "/nowhere.yaml"),
        ("--config", "/"),
        ("--config=a.yaml",),
        ("--config", "\0"),
        ("--",),
        ("--middleware", "a.RequireKey"),
    ]:
        with subtests.test(str(args)), pytest.raises(BadInput):
            checked(args)


def test_key_of_vllms_own_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "of-somebody")
    with pytest.raises(BadInput, match="VLLM_API_KEY is set") as refused:
        checked(())
    assert "of-somebody" not in str(refused.value)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.text(max_size=12)
        | st.sampled_from(["--api-ke", "--api_key.x", "--uds=a", "-n", "--seed"])
    )
)
@example(["--api-ke", "x"])
@example(["--a"])
@example(["--\0"])
def test_any_words_give_flags_or_a_sentence(arguments):
    try:
        values = checked(tuple(arguments))
    except BadInput:
        return
    assert not flags.REFUSED.keys() & values.keys()
    assert not any("--api" in word for word in arguments)
