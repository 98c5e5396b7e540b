"""Rows of vLLM's releases: against public logs, at the releases where they change, and asked by name alone."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import inference_planner
import pytest
from inference_planner import plan
from inference_planner.catalog import load_gpu
from inference_planner.errors import BadInput
from inference_planner.releases import versions
from inference_planner.split.settings import batch_defaults

import workshop
from workshop.engine.log.rules import CHECKED_RELEASES

ROOT = Path(__file__).parents[3]
ACCURACY = ROOT / "benchmarks" / "accuracy"
POINTS = {
    point["id"]: point
    for name in ("public_points.json", "public_logs.json")
    for point in json.loads((ACCURACY / name).read_text(encoding="utf-8"))["points"]
}


def planned(point: dict, **changes):
    """Plan what a public log ran."""
    settings = {"vllm_version": point["vllm_version"], **point["plan"], **changes}
    return plan(point["model"], point["gpu"], **settings)


def test_a_public_log_of_a_release_between_ours_is_within_three_percent():
    """With the formulas of 0.32.0 the first was 19.6 % too small, and the second 9.1 % too large."""
    for name in ("rtx-pro-6000-x2-qwen3-32b-tp2", "l20-x2-qwen3.8-27b", "a100-80gb-llama-3.1-8b"):
        logged = POINTS[name]["memory"]["kv_cache_tokens"]
        assert planned(POINTS[name]).kv_cache_tokens == pytest.approx(logged, rel=0.03), name


def test_freed_blocks_that_count_are_named_where_a_release_may_keep_them():
    """0.7 GiB less than the plan, by blocks of the profile run."""
    point = POINTS["rtx-pro-6000-x2-qwen3-32b-pp2"]
    logged_gib = point["memory"]["kv_cache_gib"]
    p = planned(point)
    assert p.available_kv_gib_per_gpu - 0.75 < logged_gib < p.available_kv_gib_per_gpu
    assert logged_gib in p.intervals["available_kv_gib_per_gpu"]
    half = f"± {p.spread.room_gib:.1f} GiB holds that"
    assert any(half in reason for reason in p.reasons)
    sentence = "may count blocks that its profile run has freed"
    assert any(sentence in reason for reason in p.reasons)
    newer = planned(point, vllm_version="0.31.0")
    assert not any(sentence in reason for reason in newer.reasons)


def test_one_slot_of_adapters_leaves_what_an_rtx_4090_said():
    """rtx-4090-qwen3-4b-lora of public_points.json: 12.86 GiB in use by the cache after a cold start."""
    p = plan(
        "qwen3-4b",
        "rtx-4090",
        tensor_parallel_size=1,
        gpus_per_node=1,
        enable_lora=True,
        max_model_len=40960,
        vllm_version="0.27.1",
    )
    assert p.available_kv_gib_per_gpu == pytest.approx(12.86, abs=0.05)


def test_a_patch_release_takes_the_row_of_its_minor_release():
    assert versions.get("0.27.0").name == "0.27.1" and versions.get("v0.28.1").name == "0.28.0"
    p = plan("llama-3.1-8b", "h100", vllm_version="v0.27.0")
    assert p.deployment.settings.vllm_version == "0.27.0" and "outside" not in " ".join(p.reasons)


def test_a_release_before_the_table_is_planned_and_said_to_be_outside():
    for version in ["0.10.0", "0.10.1.1", "0.19.1", "0.24.0"]:
        p = plan("llama-3.1-8b", "h100", vllm_version=version)
        assert p.fits and p.deployment.settings.vllm_version == version, version
        assert any(f"There are no formulas for vLLM {version}" in reason for reason in p.reasons), (
            version
        )


def test_the_default_utilization_is_that_of_the_release():
    """It was 0.9; a log of 0.20.0 prints 0.9 as no default (log-rtx-5090-qwen3.6-35b-nvfp4-0.20)."""
    for version, share in [("0.10.2", 0.9), ("0.19.1", 0.9), ("0.20.0", 0.92), ("0.32.0", 0.92)]:
        p = plan("llama-3.1-8b", "h100", vllm_version=version, max_model_len=8192)
        assert p.deployment.settings.gpu_memory_utilization == share, version
        assert "--gpu-memory-utilization" not in p.command, version
        other = plan(
            "llama-3.1-8b",
            "h100",
            vllm_version=version,
            max_model_len=8192,
            gpu_memory_utilization=1.82 - share,
        )
        assert f"--gpu-memory-utilization {1.82 - share:g}" in other.command, version


def test_a_card_that_is_nearly_free_keeps_the_default_of_the_release():
    """More than 0.9 of an H100 is free in both cases."""
    for version, share in (("0.18.0", 0.9), ("0.32.0", 0.92)):
        p = plan("llama-3.1-8b", "h100", free_gib=78.5, vllm_version=version, max_model_len=8192)
        assert p.deployment.settings.gpu_memory_utilization == share


def test_memory_for_graphs_is_set_aside_from_0_20_on():
    """Logs of 0.20.0 and later say that it is, though "default since v0.21.0"; 0.19.1 only announces it."""
    graphs = {}
    for version in ("0.19.1", "0.20.0"):
        p = plan("qwen3-30b-a3b", "h100", vllm_version=version, max_model_len=8192)
        sizes = [item.bytes for item in p.overheads if item.name == "CUDA graphs"]
        graphs[version] = sum(sizes)
    assert graphs["0.19.1"] == 0 < graphs["0.20.0"]


def test_a_log_of_a_release_without_a_row_takes_the_nearest():
    assert versions.nearest("0.10.1") == versions.nearest("0.8.5") == "0.11.0"
    assert versions.nearest("0.11.2") == "0.11.0" and versions.nearest("0.12.0") == "0.13.0"
    assert versions.nearest("0.18.0") == "0.19.0" and versions.nearest("0.20.2") == "0.21.0"
    assert versions.nearest("0.24.0") == versions.nearest_formulas("0.11.2") == "0.25.1"
    assert versions.get("0.24.0") is versions.get("0.25.1")


OLDER_LOGS = [
    # KempnerInstitute/distributed-inference-vllm: 239,152 tokens of 256 KiB
    ("qwen2.5-32b", "h200", "0.11.2", {"usage": "llm", "max_model_len": 4096}, 58.39),
    # vLLM's own line on two MI300X
    (
        "qwen2.5-14b",
        "mi300x",
        "0.10.0",
        {"tensor_parallel_size": 2, "max_model_len": 4096},
        151.25,
    ),
    # 245,360 tokens of 56 KiB on a V100, from a log of 0.18.0
    (
        "qwen2.5-7b",
        "v100-32gb",
        "0.18.0",
        {"usage": "llm", "max_model_len": 32768, "dtype": "half", "enforce_eager": True},
        13.10,
    ),
]


def test_a_public_log_of_an_older_release_is_within_one_percent():
    """Up to 0.16 the profile run sorts the logits of max_num_seqs requests (pull request 33538)."""
    for model, gpu, version, settings, logged_gib in OLDER_LOGS:
        options = {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.9, **settings}
        p = plan(model, gpu, vllm_version=version, **options)
        assert p.available_kv_gib_per_gpu == pytest.approx(logged_gib, rel=0.01), (model, version)


NEWEST = list(versions.TABLE)[-1]


def test_the_newest_release_is_named_where_its_logs_are_read():
    minor = NEWEST.rpartition(".")[0]
    assert CHECKED_RELEASES[1] == minor
    page = (ROOT / "docs/reconcile.md").read_text(encoding="utf-8")
    assert f"The formulas are of vLLM 0.25 to {minor}." in page


# vLLM's own lines, as ashishkamra/vllm-memory-estimator keeps them (test_data/validation_db.json)
ON_FOUR_GPUS = [
    ("llama-3.3-70b", "h200", "0.18.0", 91.57),
    ("llama-3.3-70b", "b200", "0.18.0", 127.03),
]


def test_buffers_of_the_fused_all_reduce_count_from_0_17_to_0_21():
    for model, gpu, version, logged_gib in ON_FOUR_GPUS:
        settings = {"tensor_parallel_size": 4, "max_model_len": 8192}
        p = plan(model, gpu, vllm_version=version, **settings, gpu_memory_utilization=0.92)
        assert p.available_kv_gib_per_gpu == pytest.approx(logged_gib, abs=0.2), gpu
    for version, count in (("0.16.0", 0), ("0.21.0", 3), ("0.22.0", 0), ("0.32.0", 0)):
        assert versions.get(version).fused_all_reduce_bytes == count * 512 * 2**20, version
    stages = plan("llama-3.3-70b", "h200", vllm_version="0.18.0", pipeline_parallel_size=2)
    assert "fused all-reduce" not in [item.name for item in stages.overheads]


# Weights of a rank of public logs (the same source) and what vLLM does to experts once loaded
EXPERTS_ONCE_LOADED = [
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "mi300x", "0.11.2", 8, 126.72),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507", "mi300x", "0.11.2", 4, 112.61),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507", "mi300x", "0.11.2", 8, 56.65),
    ("Qwen/Qwen3-VL-30B-A3B-Instruct", "mi300x", "0.18.0", 1, 79.29),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "h200", "0.18.0", 1, 31.40),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "h200", "0.17.1", 2, 59.91),
    ("RedHatAI/Ministral-3-14B-Instruct-2512", "h200", "0.18.0", 1, 14.71),
]


@pytest.mark.parametrize(("model", "gpu", "version", "tp", "logged_gib"), EXPERTS_ONCE_LOADED)
def test_weights_that_vllm_copies_or_pads_once_loaded_are_those_of_logs(
    model, gpu, version, tp, logged_gib
):
    p = plan(model, gpu, vllm_version=version, tensor_parallel_size=tp, max_model_len=8192)
    assert p.weights_gib_per_gpu == pytest.approx(logged_gib, rel=0.02)


def test_other_releases_are_refused_with_those_that_there_are():
    for version in ["0.7.3", "0.9.2", "0.99.0", "1.0", "newest", ""]:
        with pytest.raises(BadInput) as refused:
            versions.get(version)
            pytest.fail(f"{version} was taken")
        assert f"a release from 0.10 to {NEWEST}" in refused.value.remedy, version


def test_the_largest_defaults_came_with_0_28():
    """engine/arg_utils.py of both tags: 160 GiB and more take 16,384 tokens a step."""
    b200 = load_gpu("b200")
    assert batch_defaults(b200, "serve", versions.get("0.27.1")) == (8192, 1024)
    assert batch_defaults(b200, "serve", versions.get("0.28.0")) == (16384, 1024)


def test_a_gb10_takes_the_small_defaults():
    """Logs of 0.11.0, 0.13.0 and 0.27.1 print 2,048 tokens a step or 35 full graphs; pull request 57378."""
    for version in ("0.11.0", "0.13.0", "0.27.1", "0.33.0"):
        defaults = batch_defaults(load_gpu("gb10"), "serve", versions.get(version))
        assert defaults == (2048, 256), version


def test_mxfp4_experts_have_the_layout_of_the_cards_kernels():
    """gpt-oss-120b by Marlin, and Triton's on Hopper: 61.3 GiB."""
    logged_gib = POINTS["log-h100-gpt-oss-120b-0.10.1"]["memory"]["weights_gib"]
    marlin = plan("gpt-oss-120b", "a100-80gb", tensor_parallel_size=1, max_model_len=8192)
    hopper = plan("gpt-oss-120b", "h100", tensor_parallel_size=1, max_model_len=8192)
    assert marlin.weights_gib_per_gpu == pytest.approx(logged_gib, rel=0.005)
    assert hopper.weights_gib_per_gpu == pytest.approx(61.3, rel=0.005)


# The first release with a behavior, and the source of that; before, the row says `older`.
FIRST = [
    # pull request 38270 of vLLM; recipes, pull request 551, runs 0.19.0 without it
    ("0.20.0", "0.19.1", "needs_block_per_state", True, False),
    # v1/core/kv_cache_utils.py of 0.19.1 divides by the groups
    ("0.20.0", "0.19.1", "divides_tokens_by_groups", False, True),
    # release notes of 0.23.0 and 0.25.0; public starts of 70B and 14B under 0.18 and 0.19
    ("0.23.0", "0.22.0", "model_runner_v2_for_dense", True, False),
    # logs of 0.20.0 and 0.19.1
    ("0.20.0", "0.19.1", "default_utilization", 0.92, 0.9),
    ("0.20.0", "0.19.1", "graphs_are_profiled", True, False),
    # pull request 29386, "Fix overallocation in MM profiling"
    ("0.12.0", "0.11.2", "fits_encoder_outputs", True, False),
    # a log of 0.11.0 has a video of 153,600 tokens
    ("0.12.0", "0.11.2", "has_longest_videos", False, True),
    # config/vllm.py, _reject_mismatched_float_kv_cache
    ("0.33.0", "0.32.0", "refuses_mixed_cache_dtype", True, False),
    ("0.32.0", "0.31.0", "refuses_eagle3_over_stages", True, False),
]


def test_a_behavior_begins_with_its_release():
    for release, earlier, behavior, value, older in FIRST:
        assert getattr(versions.row_of(release), behavior) == value, behavior
        assert getattr(versions.row_of(earlier), behavior) == older, behavior


def test_the_older_rows_are_in_the_order_of_their_releases():
    limits = [versions.numbers(limit) for limit in versions.OLDER_ROWS]
    assert limits == sorted(limits)
    for limit, row in versions.OLDER_ROWS.items():
        assert versions.is_before(row.name, limit) and versions.row_of(row.name) is row


def test_a_name_without_numbers_takes_the_oldest_formulas():
    assert versions.nearest("main") == versions.row_of("main").name == "0.25.1"


FOLDERS = (Path(inference_planner.__file__).parent, Path(workshop.__file__).parent)
MODULES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
COMPARING = {"numbers", "is_before", "same_minor"}
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
RELEASE = re.compile(r"v?0\.\d+(\.\d+)?(\.post\d+)?")
OF_A_RELEASE = re.compile(r"(\w*_)?(version|release)s?", re.IGNORECASE)
# What no behavior of a release hangs on, by file.
OTHER_COMPARISONS = {
    # the first and the last release whose registry has an architecture: a table of its own
    "planner/inference_planner/releases/registries.py": {"is_before"},
    # whether a start that was kept is of the plan's release
    "planner/inference_planner/memory/learned.py": {"same_minor"},
    # NVIDIA's drivers
    "workshop/servers/host/gpus.py": {"numbers"},
    # the C library's version
    "workshop/lab/doctor.py": {"<"},
}


def compared_releases(tree: ast.AST) -> Iterator[str]:
    """Yield the functions of versions.py that compare names, and "<" for a comparison."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "inference_planner.releases.versions"
        ):
            for alias in node.names:
                if alias.name in COMPARING:
                    yield alias.name
        elif isinstance(node, ast.Attribute) and node.attr in COMPARING:
            if ast.unparse(node.value).endswith("versions"):
                yield node.attr
        elif isinstance(node, ast.Compare) and compares_releases(node):
            yield "<"


def compares_releases(node: ast.Compare) -> bool:
    """Return True for an order of names of releases, and for any comparison with a literal one."""
    parts = (node.left, *node.comparators)
    literals = [part.value for part in parts if isinstance(part, ast.Constant)]
    if any(isinstance(value, str) and RELEASE.fullmatch(value) for value in literals):
        return True
    if not any(isinstance(operator, ORDERS) for operator in node.ops):
        return False
    return any(names_a_release(part) for part in parts)


def names_a_release(node: ast.AST) -> bool:
    """Return True for an expression whose value comes from the name of a release."""
    if isinstance(node, ast.Name):
        return OF_A_RELEASE.fullmatch(node.id) is not None
    if isinstance(node, ast.Attribute):  # and not a column: version.default_utilization
        return OF_A_RELEASE.fullmatch(node.attr) is not None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        return any(names_a_release(part) for part in (node.func.value, *arguments))
    return any(names_a_release(child) for child in ast.iter_child_nodes(node))


def test_no_module_but_versions_compares_releases():
    """A new comparison becomes a column of Version, and code asks the row."""
    comparisons = {
        path.relative_to(ROOT).as_posix(): names
        for path in MODULES
        if (names := set(compared_releases(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert comparisons == OTHER_COMPARISONS


def test_a_comparison_of_releases_is_seen():
    for code, names in [
        ("from inference_planner.releases.versions import is_before", ["is_before"]),
        ("versions.same_minor(log.version, name)", ["same_minor"]),
        ('tuple(map(int, release.split("."))) < (0, 20)', ["<"]),
        ('version == "0.25.1"', ["<"]),
        ("share < version.default_utilization", []),  # a column
    ]:
        assert list(compared_releases(ast.parse(code))) == names, code


def test_blocks_are_split_while_loading_before_0_20():
    """Four digits of logs of 0.13.0 and 0.10.1: Gemma 3 1B and Llama 3.1 8B in float16."""
    for model, gpu, version, logged_gib in [
        ("gemma-3-1b", "rtx-5090", "0.13.0", 1.9148),
        ("llama-3.1-8b", "a100-40gb", "0.10.1", 14.9889),
    ]:
        result = plan(model, gpu, vllm_version=version, gpus_per_node=1, max_model_len=2048)
        assert result.weights_gib_per_gpu == pytest.approx(logged_gib, abs=0.0002), model


def test_a_release_without_formulas_is_answered_with_all_that_are_planned():
    for version in ("0.99.0", "0.9.2"):
        with pytest.raises(BadInput, match=f"Give a release from 0.10 to {NEWEST}"):
            plan("llama-3.1-8b", "h100", vllm_version=version)
            pytest.fail(f"{version} was taken")


def test_a_development_version_is_planned_as_the_release_that_it_becomes():
    for version, release in (
        ("0.23.1rc1.dev531+ga65f93fb2", "0.23.1"),
        ("0.11.1.dev3+gabc", "0.11.1"),
        ("v0.32.0+cu130", "0.32.0"),
    ):
        development = plan("llama-3.1-8b", "h100", vllm_version=version)
        assert development.deployment.settings.vllm_version == release, version
        of_release = plan("llama-3.1-8b", "h100", vllm_version=release)
        assert development.kv_cache_tokens == of_release.kv_cache_tokens, version
