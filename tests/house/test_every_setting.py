"""A setting of `PlanRequest` reaches the command, the flags of a job, a simulation and a log's plan."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import Field
from typing import Any

import pytest
from click.testing import CliRunner
from inference_planner.request import FALLBACKS, SETTINGS, PlanRequest

from workshop import plan
from workshop.cli.plan import simulate
from workshop.cli.use import bench
from workshop.engine import log as engine_log
from workshop.engine.reconcile.case import make_case
from workshop.errors import BadInput
from workshop.servers.flags import for_plan, release
from workshop.simulate.load import rules

DENSE, EXPERTS, IMAGES = "llama-3.1-8b", "qwen3-30b-a3b", "qwen2.5-vl-7b"
LORA = {"enable_lora": True}
DRAFT = {"method": "ngram", "num_speculative_tokens": 3}
# A value that is not the default, where the type alone does not give one.
VALUES: dict[str, Any] = {
    "gpu_memory_utilization": 0.8,
    "dtype": "float16",
    "quantization": "fp8",
    "max_model_len": 4096,
    "max_num_batched_tokens": 4096,
    "max_num_seqs": 64,
    "limit_mm_per_prompt": {"image": 2},
    "hf_overrides": {"num_hidden_layers": 16},
    "speculative_config": DRAFT,
    "spec_method": "ngram",
    "spec_model": "llama-3.2-1b",
    "moe_backend": "flashinfer_cutlass",
    "compilation_config": {"cudagraph_mode": "PIECEWISE"},
    "kv_cache_memory_bytes": 1 << 30,
}
# The model and the settings that it needs, where that is not DENSE alone.
MODELS = {
    "enable_expert_parallel": EXPERTS,
    "data_parallel_size": EXPERTS,
    "moe_backend": EXPERTS,
    "enable_prefix_caching": "nemotron-nano-9b-v2",
    "decode_context_parallel_size": "deepseek-v2-lite",
    "language_model_only": IMAGES,
    "limit_mm_per_prompt": IMAGES,
    "skip_mm_profiling": IMAGES,
}
NEEDS: dict[str, dict[str, Any]] = {
    "enable_expert_parallel": {"tensor_parallel_size": 2},
    "decode_context_parallel_size": {"tensor_parallel_size": 2},
    "disable_custom_all_reduce": {"tensor_parallel_size": 2},
    "spec_method": {"spec_tokens": 2},
    "spec_model": {"spec_method": "draft_model", "spec_tokens": 2},
    "spec_tokens": {"spec_method": "ngram"},
    **dict.fromkeys(("max_loras", "max_lora_rank", "max_cpu_loras"), LORA),
    **dict.fromkeys(("fully_sharded_loras", "lora_dtype"), LORA),
}
# Where a simulation is the same with the value above, one with which it is not.
SIMULATED: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "float32"},
    "limit_mm_per_prompt": {"limit_mm_per_prompt": {"image": 0, "video": 0}},
}
WHOLE_EXPERTS = "enable_expert_parallel"  # as many bytes on each GPU, and over each link
# Settings that are written as a part of another flag.
PARTS_OF: dict[str, str] = {
    **dict.fromkeys(("spec_method", "spec_model", "spec_tokens"), "--speculative-config"),
    "max_cudagraph_capture_size": "--compilation-config",
}
LOG = """INFO 11-20 10:00:00 [api_utils.py:286] non-default args: {ARGS}
INFO 11-20 10:00:00 [core.py:114] Initializing a V1 LLM engine (v0.32.0) with config: \
model='/models/MODEL', CONFIG
INFO 11-20 10:00:10 [gpu_model_runner.py:5500] Model loading took 15.00 GiB memory and 13.1 seconds
INFO 11-20 10:00:20 [gpu_worker.py:508] Available KV cache memory: 50.00 GiB
"""


def settings_of(*owners: str) -> pytest.MarkDecorator:
    """Return the mark of a test of every setting of these owners."""
    settings = [setting for setting in SETTINGS if setting.metadata["of"] in owners]
    return pytest.mark.parametrize("setting", settings, ids=lambda setting: setting.name)


def value_of(setting: Field) -> Any:
    """Return a value of a setting that is not its default."""
    if setting.name in VALUES:
        return VALUES[setting.name]
    if setting.metadata["choices"]:
        return setting.metadata["choices"][-1]
    kind = str(setting.type).removesuffix(" | None")
    if kind == "bool":
        return setting.default is False
    return {"int": 2, "float": 2.0}[kind]


def flag_of(setting: Field) -> str:
    return setting.metadata["flag"] or f"--{setting.name.replace('_', '-')}"


def settings_with(setting: Field) -> dict[str, Any]:
    return {**NEEDS.get(setting.name, {}), setting.name: value_of(setting)}


def arguments(settings: dict[str, Any]) -> list[str]:
    """Return settings as a person gives them to vLLM."""
    command_line = []
    for name, value in settings.items():
        if value is False:
            command_line.append(f"--no-{name.replace('_', '-')}")
            continue
        command_line.append(f"--{name.replace('_', '-')}")
        if value is not True:
            command_line.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return command_line


@settings_of("vllm", "split")
def test_it_is_in_the_command_that_starts(setting):
    p = plan(MODELS.get(setting.name, DENSE), "h200", **settings_with(setting))
    flag = PARTS_OF.get(setting.name) or arguments({setting.name: value_of(setting)})[0]
    assert flag in shlex.split(p.command)


@settings_of("vllm", "split")
def test_it_is_a_recorded_flag_of_vllm(setting):
    newest = release.newest()
    assert newest.problem(arguments(settings_with(setting))) == ""
    short = setting.metadata["short"]
    assert not short or newest.full_names[short] == flag_of(setting).removeprefix("--")


@settings_of("vllm")
def test_it_is_planned_with_where_a_job_has_its_flag(setting):
    counted = for_plan(arguments(settings_with(setting)))[setting.name]
    value = value_of(setting)
    assert (json.loads(counted) if isinstance(value, dict) else counted) == value


@pytest.mark.parametrize("command", [simulate.command, bench.command])
def test_a_simulation_takes_it_unless_it_says_why_not(command):
    shown = CliRunner().invoke(command, ["--help"]).output
    for setting in SETTINGS:
        flag = flag_of(setting)
        takes = re.search(rf"{flag}(?![\w-])", shown) is not None
        reason = setting.metadata["not_simulated"]
        assert takes is not bool(reason), flag
        if reason:
            with pytest.raises(BadInput, match=f"{flag} is not simulated: {reason}"):
                command.make_context("workshop", arguments({setting.name: value_of(setting)}))
                pytest.fail(f"{flag} was taken")
    dotted = command.make_context("workshop", ["--compilation-config.cudagraph_mode=NONE"])
    assert dotted.params["compilation_config"] == '{"cudagraph_mode": "NONE"}'


@settings_of("vllm")
def test_a_simulation_that_takes_it_counts_it(setting):
    """It changes the scheduler's rules, a step's times, the GPUs or their kernels."""
    if setting.metadata["not_simulated"] or setting.name == WHOLE_EXPERTS:
        return
    settings = SIMULATED.get(setting.name, settings_with(setting))
    others = {name: value for name, value in settings.items() if name != setting.name}

    def simulated(settings: dict[str, Any]) -> tuple:
        p = plan(MODELS.get(setting.name, DENSE), "h200", **settings)
        return rules(p), [term.ms for term in p.decode], p.gpus, p.kernels

    assert simulated(settings) != simulated(others)


@settings_of("vllm")
def test_it_is_planned_with_where_a_log_prints_it(setting):
    settings = settings_with(setting)
    config = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    text = LOG.replace("ARGS", str(settings)[1:-1]).replace("CONFIG", config)
    text = text.replace("MODEL", MODELS.get(setting.name, DENSE))
    case = make_case(engine_log.parse(text), None, "h200", tensor_parallel_size=2)
    counted = {**case.settings, "kv_cache_memory_bytes": case.kv_bytes}
    assert counted[setting.name] == value_of(setting), case.assumed


def test_its_limits_and_what_none_stands_for_are_in_one_place():
    for setting in SETTINGS:
        about = setting.metadata
        if FALLBACKS[setting.name] is not None:
            assert f"[default: {FALLBACKS[setting.name]}]" in about["help"]
        beyond = [about["most"] + 1, 0] if about["most"] else []
        if about["choices"]:
            beyond.append("nonsense")
        for value in beyond:
            with pytest.raises(BadInput, match=setting.name):
                PlanRequest(**{setting.name: value})
                pytest.fail(f"{setting.name} {value} was taken")
