"""A mistyped flag is refused as vLLM's own parser refuses it, and what that takes passes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import random
import re
from pathlib import Path

import pytest
from inference_planner.answer import command
from inference_planner.releases import versions
from needs import SEED, lacking

from workshop import plan
from workshop.errors import BadInput
from workshop.servers import flags
from workshop.servers.flags import release
from workshop.vllm_package import installed

RELEASE = versions.DEFAULT
SLURM = Path(__file__).parents[2] / "slurm"
# vLLM reads a file for the first, moves the second to the front, and prints help for the third. Its
# parser takes any JSON for the others, and its engine refuses unknown fields.
READ_ELSEWHERE = {
    "config",
    "model",
    "help",
    "speculative-config",
    "watermark-config",
    "diffusion-config",
}
VALUES = {
    "int": ("4", "-1"),
    "float": ("0.5", "1", "-1"),
    "json": ("{}", "3", '{"a": {"b": [1]}}'),
    "size": ("8k", "8K", "1.5k", "100"),
    "size or auto": ("auto", "-1", "8k", "4096"),
    "json or text": ("{}", "text", '{"a": 1}'),
    "fields": ("{}",),
    "adapter": ("a=/b", '{"name": "a", "path": "/b"}'),
    "": ("x", "a b", "1", "a,b", "/a/b.c", ""),
}
WRONG = {
    "int": ("x", "1.5", "", "-x", "--"),
    "float": ("x", "0,5"),
    "json": ("{", "x", "{'a': 1}"),
    "size": ("8x", "x", "1.5K", "-1k"),
    "size or auto": ("automatic", "1.5K"),
    "json or text": ("{x}",),
    "fields": ("3", "x", '{"no_field": 1}', '["a"]', '"a"'),
    "adapter": ("a", '{"name": "a", "path": "/b", "no_field": 1}'),
}


@pytest.fixture(scope="module")
def vllm_parser():
    """The parser of vLLM's own command."""
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    from workshop.workarounds import cpu_package_name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "version", importlib.metadata.version)
        cpu_package_name.apply()
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    parser = FlexibleArgumentParser(prog="vllm")
    make_arg_parser(parser.add_subparsers(dest="command").add_parser("serve"))
    return parser


def refusal(parser, arguments: list[str]) -> str:
    """Return how vLLM refuses the arguments behind its model; "" if it takes them."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            parser.parse_args(["serve", "MODEL", *arguments])
    except SystemExit:
        return output.getvalue()
    except (ValueError, TypeError, IndexError) as error:
        return repr(error)
    return ""


def options() -> list[dict]:
    return json.loads((release.FOLDER / f"{RELEASE}.json").read_text())


def command_line(rng: random.Random, rows: list[dict]) -> list[str]:
    """Return one flag in one of the ways in which people write it, right or wrong."""
    row = rng.choice(rows)
    name = rng.choice(row["names"])
    kind = row.get("type", "")
    right = [str(choice) for choice in row.get("choices", ())] or VALUES[kind]
    wrong = ("no-choice",) if "choices" in row else WRONG.get(kind, ("--x",))
    value = rng.choice(wrong if rng.random() < 0.3 else right)
    way = rng.randrange(10)
    if way == 0:
        name = name.replace("-", "_").replace("__", "--", 1)
    elif way == 1:
        name = name[: rng.randrange(min(3, len(name)), len(name) + 1)]
    elif way == 2:
        place = rng.randrange(1, len(name))
        name = name[:place] + rng.choice(["", "x", "-"]) + name[place + 1 :]
    elif way == 3:
        name += rng.choice(
            [".a", ".a.b", ".a+", ".", *(f".{field}x" for field in row.get("fields") or ())]
        )
    elif way == 4:
        name = "--no-" + name.lstrip("-")
    if row.get("nargs") == 0 and rng.random() < 0.8:
        return [name]
    if way == 5:
        return [name]
    if way == 6:
        return [f"{name}={value}"]
    if row.get("nargs") == "+" or way == 7:
        return [name, value, rng.choice(right)]
    if way == 8 and len(name) == 2:
        return [name + value]
    return [name, value]


def test_every_command_line_is_taken_or_refused_as_by_vllm(vllm_parser):
    """800 lines in right and wrong spellings. The values inside a JSON configuration are vLLM's to read."""
    rng = random.Random(SEED)
    record = release.recorded(RELEASE)
    rows = [row for row in options() if record.full_name(row["names"][0]) not in READ_ELSEWHERE]
    refused = 0
    differences = []
    for _ in range(800):
        arguments = [part for _ in range(rng.choice([1, 1, 2])) for part in command_line(rng, rows)]
        flags_in_it = {name.partition(".")[0] for name in flags.flags_of(arguments)}
        if flags_in_it & READ_ELSEWHERE:  # what a typo has made of another
            continue
        theirs = refusal(vllm_parser, arguments)
        ours = record.problem(arguments)
        refused += bool(ours)
        if bool(ours) != bool(theirs) and "validation error" not in theirs:
            differences.append((arguments, ours, theirs[-200:]))
    assert not differences, differences[:10]
    assert 240 < refused < 640, "there are right and wrong ones"


def test_what_vllm_takes_passes(vllm_parser):
    for text in [
        "-O3",
        "-O 2",
        "-O=1",
        "-O.mode=3",
        "-cc.mode=3 -cc.cudagraph_mode FULL",
        "--compilation-config.pass_config.fuse_norm_quant true",
        "--compilation_config.cudagraph_capture_sizes+ 1,2",
        "--no-enable-prefix-caching --no_enforce_eager",
        "--max-model-len auto --max_num_seqs=8 --max-num-batched 8k",
        "--max-logprobs -1",
        "-tp 2 -q fp8 -qfp8",
        "--served-model-name a b --seed 3",
        "--hf-overrides {} --limit-mm-per-prompt.image 2",
        "--kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role kv_both",
        "--safetensors-load-strategy None",
        "--moe-backend Deep-Gemm",
        "--chat-template=--x",
    ]:
        arguments = text.split()
        assert not refusal(vllm_parser, arguments) and not release.recorded(RELEASE).problem(
            arguments
        ), text


def test_what_vllm_does_not_take_is_told_in_a_sentence(subtests):
    for text, sentence in [
        ("--max-modellen 100", "knows no --max-modellen; did you mean --max-model-len?"),
        ("--max_modellen=100", "knows no --max-modellen; did you mean --max-model-len?"),
        ("-max-model-len 100", "knows no -max-model-len; did you mean --max-model-len?"),
        ("--no-such-flag 1", "knows no --no-such-flag."),
        ("--tpp 2", "knows no --tpp; did you mean -tp?"),
        (
            "--dtype flot16",
            "'flot16' is none of auto, bfloat16, float, float16, float32, half; did you mean float16?",
        ),
        ("--max-num-seqs many", "--max-num-seqs: 'many' is no whole number."),
        ("--max-num-seqs", "--max-num-seqs: expected one argument."),
        ("--enforce-eager true", "'true'"),
        ("--max 3", "ambiguous option: --max could match"),
        ("--compilation-config {mode:3}", "is no JSON."),
        (
            "--compilation-config.cudagraf_mode FULL",
            "no field cudagraf_mode; did you mean cudagraph_mode?",
        ),
        (
            "--compilation-confg.mode 3",
            "knows no --compilation-confg; did you mean --compilation-config?",
        ),
        ("--speculative-config.metod ngram", "no field metod; did you mean method?"),
        ("--kv-transfer-config.kv_role kv_bth", "kv_role: 'kv_bth' is none of"),
    ]:
        with subtests.test(f"{text} {sentence}"):
            with pytest.raises(BadInput) as refused:
                flags.checked(tuple(text.split()), RELEASE)
            assert (
                refused.value.message.startswith(f"vLLM {RELEASE} ")
                and sentence in refused.value.message
            )
            assert "--anyway" in refused.value.remedy
            flags.checked(tuple(text.split()), RELEASE, anyway=True)


def test_every_unknown_flag_is_named():
    with pytest.raises(BadInput) as refused:
        flags.checked(
            ("--max-modellen", "100", "--gpu-memory-util", "0.5", "--no-such-flag", "1"), RELEASE
        )
    assert "--max-modellen" in refused.value.message and "--no-such-flag" in refused.value.message
    assert "--gpu-memory-util" not in refused.value.message


def test_a_flag_of_a_file_is_checked_as_well(tmp_path):
    (tmp_path / "a.yaml").write_text("max-modellen: 100\n")
    with pytest.raises(BadInput, match="did you mean --max-model-len"):
        flags.checked(("--config", f"{tmp_path}/a.yaml"), RELEASE)


def test_a_release_that_is_not_recorded_refuses_nothing_and_says_so():
    arguments = ("--max-modellen", "100")
    flags.checked(arguments, "0.1.0")
    assert "not recorded" in flags.unchecked(arguments, "0.1.0")
    assert not flags.unchecked(arguments, RELEASE) and not flags.unchecked((), "0.1.0")


def test_the_release_that_the_project_pins_is_recorded_as_it_is(vllm_parser):
    commands = vllm_parser._subparsers._group_actions[0].choices
    assert (
        release.recorded(versions.DEFAULT).full_names.keys()
        == commands["serve"]._option_string_actions.keys()
    )


def test_the_flags_of_a_script_are_known():
    for path in [*SLURM.glob("*.sbatch"), *SLURM.glob("*.sh"), *SLURM.glob("sites/*.sh")]:
        arrays = re.findall(
            r"serve_args\+?=\((.*?)\)", re.sub(r"#.*", "", path.read_text()), re.DOTALL
        )
        names = re.findall(r"(?<!\S)--[a-z-]+", " ".join(arrays))
        assert set(names) <= release.recorded(RELEASE).full_names.keys(), path


def test_the_flags_of_a_plan_are_known():
    for model, settings in [
        ("llama-3.1-8b", {"quantization": "fp8", "kv_cache_dtype": "fp8", "enforce_eager": True}),
        ("llama-3.1-405b", {"nodes": 4, "gpus_per_node": 4, "max_model_len": 8192}),
        ("deepseek-v3", {"nodes": 2, "data_parallel_size": 16, "enable_expert_parallel": True}),
        ("qwen3-32b", {"enable_lora": True, "max_lora_rank": 16, "enable_prefix_caching": False}),
    ]:
        deployment = plan(model, "h100", **settings).deployment
        arguments = command.flag_words(command.flags(deployment))
        assert arguments and not release.recorded(RELEASE).problem(arguments), model
