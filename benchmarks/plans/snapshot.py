"""Keep the answers of 3,000 plans, and compare what the code answers now.

    python benchmarks/plans/snapshot.py compare
    python benchmarks/plans/snapshot.py compare --ignore reasons,advice
    python benchmarks/plans/snapshot.py write

`compare` makes the plans of `snapshot.jsonl.xz` again and lists those that differ, each with its
values before and now; exit code 1 if any does. A change that should keep every answer runs it. A
change of a formula runs it to see what else it moves, and then `write`. Both need one core for
about one minute, and no GPU.

A plan is every value of `workshop plan --json`, or the sentence with which the planner refuses.
The file keeps the arguments of each plan beside its answer: `compare` depends on no choice below.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# the planner of this checkout, whichever is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "planner"))
from inference_planner import errors, list_gpus, list_models, plan
from inference_planner.answer import report

SNAPSHOT = Path(__file__).parent / "snapshot.jsonl.xz"
PLANS = 3000
SEED = 55
MOST_DRAWS = 10
MISSING = "(missing)"
LONGEST_VALUE = 90  # characters of a value in the list of differences
LISTED_VALUES = 8  # of one plan
LISTED_PLANS = 40

# Cards and sizes that hold large models come more often, so that most plans fit.
LARGE_CARDS = ("h100", "h200", "b200", "a100-80gb", "mi300x", "gb200")
# Each row is one subject with its possible settings. A plan draws up to five subjects.
SUBJECTS: tuple[tuple[dict[str, Any], ...], ...] = (
    tuple({"tensor_parallel_size": size} for size in (1, 2, 2, 4, 4, 8, 8, 16, 3)),
    tuple({"pipeline_parallel_size": size} for size in (1, 2, 3, 4)),
    (
        {"data_parallel_size": 2},
        {"data_parallel_size": 2, "enable_expert_parallel": True},
        {"data_parallel_size": 8, "tensor_parallel_size": 1, "enable_expert_parallel": True},
        {"enable_expert_parallel": True},
    ),
    (
        {"decode_context_parallel_size": 2, "tensor_parallel_size": 8},
        {"decode_context_parallel_size": 4},
    ),
    (
        {"gpus_per_node": 1},
        {"gpus_per_node": 4},
        {"gpus_per_node": 4, "nodes": 2},
        {"nodes": 2, "network": "ethernet-100g"},
        {"nodes": 4, "network": "ethernet-25g"},
        {"nodes": 4},
    ),
    tuple({"quantization": name} for name in ("fp8", "fp8", "awq", "gptq", "experts_int8", "int2")),
    tuple({"dtype": name} for name in ("bfloat16", "float16", "float32")),
    tuple({"kv_cache_dtype": name} for name in ("fp8", "fp8", "fp8_e5m2", "bfloat16", "int4")),
    tuple({"max_model_len": tokens} for tokens in (512, 2048, 8192, 32768, 100_001, 1 << 24)),
    tuple({"max_num_seqs": count} for count in (1, 17, 128, 256, 1024, 4096)),
    tuple({"max_num_batched_tokens": tokens} for tokens in (512, 2048, 8192, 16384, 65536)),
    tuple({"gpu_memory_utilization": share} for share in (0.3, 0.8, 0.9, 0.95, 1.0, 1.2)),
    ({"enforce_eager": True},),
    ({"enable_prefix_caching": True}, {"enable_prefix_caching": False}),
    tuple(
        {"vllm_version": name}
        for name in ("0.10.2", "0.19.0", "0.25.1", "0.28.0", "0.30.0", "0.31.0", "0.33.0", "0.9")
    ),
    ({"usage": "llm"},),
    (
        {"enable_lora": True},
        {"enable_lora": True, "max_loras": 4, "max_lora_rank": 32},
        {"enable_lora": True, "max_lora_rank": 64, "fully_sharded_loras": True},
        {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 1},
        {"max_loras": 2},
    ),
    (
        {"spec_method": "mtp", "spec_tokens": 1},
        {"spec_method": "mtp", "spec_tokens": 3},
        {"spec_method": "ngram", "spec_tokens": 4},
        {"spec_method": "eagle3", "spec_model": "eagle3-head", "spec_tokens": 3},
        {"spec_method": "eagle", "spec_model": "eagle-head", "spec_tokens": 2},
        {"spec_method": "draft_model", "spec_model": "llama-3.2-1b", "spec_tokens": 4},
        {"spec_method": "draft_model", "spec_model": "qwen3-0.6b", "spec_tokens": 3},
    ),
    (
        {"language_model_only": True},
        {"limit_mm_per_prompt": {"image": 4, "video": 0}},
    ),
    tuple({"moe_backend": name} for name in ("triton", "marlin", "cutlass", "deep_gemm")),
    (
        {"gpu_memory_gib": 40.0},
        {"free_gib": 12.5},
        {"free_gib": 70.0, "gpu_memory_utilization": 0.8},
    ),
)


def cases() -> Iterator[dict[str, Any]]:
    """Yield PLANS plans, each with its answer: every model with every subject, on all cards.

    Every other plan is drawn again as long as the planner refuses its settings, because a sentence
    shows less of the formulas than a plan.
    """
    draw = random.Random(SEED)
    models = list_models()
    cards = list_gpus()
    for number in range(PLANS):
        model = models[number * len(models) // PLANS]
        card = cards[number // 2 % len(cards)] if number % 2 else draw.choice(LARGE_CARDS)
        for _ in range(MOST_DRAWS):
            settings: dict[str, Any] = {}
            for subject in draw.sample(SUBJECTS, draw.choice((0, 1, 1, 2, 2, 3, 5))):
                settings |= draw.choice(subject)
            case = {"model": model, "gpu": card, "settings": settings}
            case["answer"] = answer(case)
            if "error" not in case["answer"] or number % 2:
                break
        yield case


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Return what `workshop plan --json` prints for these arguments, or how it refuses them."""
    try:
        result = plan(case["model"], case["gpu"], **case["settings"])
    except errors.PlannerError as error:
        return {"error": type(error).__name__, "message": error.message, "remedy": error.remedy}
    return json.loads(report.plan_json(result))


def write(path: Path) -> None:
    """Make the plans, and keep each with its answer on a line of its own."""
    with lzma.open(path, "wt", encoding="utf-8", preset=9 | lzma.PRESET_EXTREME) as file:
        for case in cases():
            file.write(json.dumps(case, ensure_ascii=False) + "\n")
    print(f"{path}: {PLANS:,} plans, {path.stat().st_size / 1000:,.0f} kB")


def values(node: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value of a JSON document with its name, such as `overheads.2.bytes`."""
    if isinstance(node, dict):
        children = node.items()
    elif isinstance(node, list):
        children = enumerate(node)
    else:
        yield name, node
        return
    if not node:
        yield name, node
    for key, child in children:
        yield from values(child, f"{name}.{key}" if name else str(key))


def differences(before: object, now: object) -> dict[str, tuple[object, object]]:
    """Return the values that two answers do not share, by name."""
    old = dict(values(before))
    new = dict(values(now))
    result: dict[str, tuple[object, object]] = {}
    for name in [*old, *(name for name in new if name not in old)]:
        pair = (old.get(name, MISSING), new.get(name, MISSING))
        if repr(pair[0]) != repr(pair[1]):  # 1 and 1.0 and True are three values
            result[name] = pair
    return result


def shortened(value: object) -> str:
    """Return a value for the list of differences."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + " …"


def compare(path: Path, ignored: frozenset[str]) -> int:
    """Make the kept plans again, list what differs, and return the number of plans that do."""
    changed_plans = 0
    total = 0
    changed_keys: Counter[str] = Counter()
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            case = json.loads(line)
            total += 1
            changed = {
                name: pair
                for name, pair in differences(case["answer"], answer(case)).items()
                if name.split(".")[0] not in ignored
            }
            if not changed:
                continue
            changed_plans += 1
            changed_keys.update({name.split(".")[0] for name in changed})
            if changed_plans <= LISTED_PLANS:
                print_plan(total, case, changed)
    if not changed_plans:
        print(f"{total:,} plans, and every value is as before.")
        return 0
    if changed_plans > LISTED_PLANS:
        print(f"… and {changed_plans - LISTED_PLANS:,} plans more.")
    print(f"\n{changed_plans:,} of {total:,} plans differ. Plans that differ in each key:")
    for key, count in changed_keys.most_common():
        print(f"  {count:5,}  {key}")
    return changed_plans


def print_plan(
    number: int, case: dict[str, Any], changed: dict[str, tuple[object, object]]
) -> None:
    """Print the arguments of a plan and its first values that differ."""
    settings = json.dumps(case["settings"])
    print(f"line {number}: {case['model']} on {case['gpu']} {settings}")
    for name, (before, now) in list(changed.items())[:LISTED_VALUES]:
        print(f"  {name}: {shortened(before)} → {shortened(now)}")
    if len(changed) > LISTED_VALUES:
        print(f"  … and {len(changed) - LISTED_VALUES} values more")


def main() -> int:
    """Read the arguments, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("compare", "write"))
    parser.add_argument("--file", type=Path, default=SNAPSHOT, help="another snapshot")
    parser.add_argument(
        "--ignore",
        default="",
        metavar="KEYS",
        help="keys of the JSON that may differ, separated by commas: reasons,advice",
    )
    arguments = parser.parse_args()
    if arguments.action == "write":
        write(arguments.file)
        return 0
    return 1 if compare(arguments.file, frozenset(arguments.ignore.split(","))) else 0


if __name__ == "__main__":
    sys.exit(main())
