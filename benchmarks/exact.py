"""Our formulas against vLLM's own model classes, and how many of its architectures can be planned. Needs no GPU.

    python benchmarks/exact.py record [NAME …]      # builds the catalog: TP 1 to 8, PP 2
    python benchmarks/exact.py compare              # formulas against the record: what differs, and by how much
    python benchmarks/exact.py registry             # every architecture of vLLM's registry with default sizes
    python benchmarks/exact.py ours                 # the same without its classes: our figures alone, anew
    python benchmarks/exact.py page                 # the table of these in docs/exact.md

`record`, `registry` and `ours` need vLLM (the CPU build does); the first two go on where they stopped. `record` writes
planner/inference_planner/data/exact/catalog.json, from which models without formulas are planned where there is no vLLM, and
tests/data/exact/catalog.json, with which tests compare the formulas.
Run it again when the version of vLLM is raised, then `compare`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from inference_planner.answer import builds  # noqa: E402
from inference_planner.catalog import list_models, load_model  # noqa: E402
from inference_planner.catalog.config import ModelConfig  # noqa: E402
from inference_planner.catalog.estimate import unknown_part  # noqa: E402
from inference_planner.catalog.families import FAMILIES as FORMULAS  # noqa: E402
from inference_planner.catalog.families import has_formulas  # noqa: E402
from inference_planner.catalog.read import from_dict  # noqa: E402
from inference_planner.model import kv_cache  # noqa: E402
from inference_planner.model.weights import parts, tensor_bytes, weight_bytes  # noqa: E402
from inference_planner.split import ranks  # noqa: E402
from inference_planner.split.deployment import partition_layers  # noqa: E402

from workshop.engine.exact import ask  # noqa: E402
from workshop.errors import WorkshopError  # noqa: E402

SPLITS = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2))
LENGTH, BATCH = 8192, 8192  # tokens: max_model_len at most, max_num_batched_tokens
# (model, what) -> why our figure is another on purpose
PATTERNS = "its modules in 16 bit are patterns in the catalog, which fbgemm_fp8 does not read: the class quantizes all"
HOPPER = "the formula is that of MXFP4 as a Hopper lays it out (measured); the class on a CPU pads otherwise"
KNOWN = {
    (model, f"weights of stage {stage}"): why
    for model, why in (
        ("llama-3.1-405b-fp8", PATTERNS),
        ("gpt-oss-20b", HOPPER),
        ("gpt-oss-120b", HOPPER),
    )
    for stage in (0, 1)
}
ZEROS = "the class has the zero points of a symmetric checkpoint too, which Marlin gives back after loading"
GPTQ = ("qwen2.5-7b-gptq-int4", "qwen2.5-72b-gptq-int4", "qwen3-30b-a3b-gptq-int4")
KNOWN |= {(model, f"weights of stage {stage}"): ZEROS for model in GPTQ for stage in (0, 1)}
# allowed: this share, or so much on a rank (a rope table, scales, biases)
ROUNDING, SMALL_BYTES = 2e-4, 5 << 20
TYPES = {  # of architectures whose model_type is neither in Transformers' tables nor the name of vLLM's module
    "Cosmos3ForConditionalGeneration": "cosmos3_omni",
    "DeepseekOCRForCausalLM": "deepseek_vl_v2",
    "DeepseekVLV2ForCausalLM": "deepseek_vl_v2",
    "FunASRForConditionalGeneration": "fun_asr_nano",
    "LightOnOCRForConditionalGeneration": "lighton_ocr",
    "Qwen3ASRRealtimeGeneration": "qwen3_asr",
}
DOCS, MARKER = ROOT / "docs" / "exact.md", "<!-- registry -->"
REGISTRY = Path(__file__).with_name("exact_registry.json")
CATALOG = builds.DATA / "exact" / "catalog.json"
# of architectures with formulas, whose record no plan reads
COMPARED = ROOT / "tests" / "data" / "exact" / "catalog.json"


def jobs_of(m: ModelConfig) -> Iterator[dict]:
    """Yield what the worker is asked about a model: every split that its formulas allow."""
    for tp, pp in SPLITS:
        if not ranks.tp_problem(m, tp) and pp <= m.num_hidden_layers:
            length = min(LENGTH, m.default_model_len or m.max_position_embeddings)
            yield {
                "config": dict(m.raw),
                "tp": tp,
                "pp": pp,
                "max_model_len": length,
                "max_num_batched_tokens": BATCH,
            }


def build(m: ModelConfig, worker: ask.ExactWorker) -> dict:
    """Return the record of a model: every split as vLLM's class says, or why it says nothing."""
    entry = {
        "name": m.name,
        "digest": builds.digest(m.raw),
        "architecture": m.architecture,
        "builds": [],
    }
    for job in jobs_of(m):
        answer = worker.build(job)
        if "error" in answer:
            entry.setdefault("errors", {})[f"TP {job['tp']} PP {job['pp']}"] = answer[
                "error"
            ].splitlines()[0][:200]
            continue
        split = {k: answer[k] for k in ("stages", "kv_cache")}
        bytes_each = kv_cache.kv_dtype_bytes(m)
        entry["builds"].append(
            {"tp": job["tp"], "pp": job["pp"], "kv_bytes_each": bytes_each, **split}
        )
        entry["vllm"] = answer["vllm"]
    return entry


def recorded() -> list[dict]:
    """Return the records of all models, those that plans read first."""
    files = [file for file in (CATALOG, COMPARED) if file.exists()]
    return [entry for file in files for entry in json.loads(file.read_text())["models"]]


def record(models: list[ModelConfig]) -> None:
    """Build models and write them down one by one; what is there already stays."""
    entries = recorded()
    there = {entry["digest"] for entry in entries}
    with ask.ExactWorker() as worker:
        for m in models:
            if builds.digest(m.raw) in there:
                continue
            began = time.perf_counter()
            entry = build(m, worker)
            there.add(entry["digest"])
            summary = entry.get("errors") or f"{len(entry['builds'])} splits"
            print(f"{m.name}: {summary}, {time.perf_counter() - began:.0f} s", flush=True)
            if entry["builds"]:  # of a model that the class refuses, a plan learns nothing
                entries.append(entry)
                write(entries)


def write(entries: list[dict]) -> None:
    """Write one line a model, so that a change of one is a change of one line."""
    version = next((entry.pop("vllm") for entry in entries if "vllm" in entry), "") or ask.version()
    for entry in entries:
        entry.pop("vllm", None)
    for file, with_formulas in ((CATALOG, False), (COMPARED, True)):
        lines = ",\n".join(
            "  " + json.dumps(entry, separators=(",", ":"))
            for entry in entries
            if has_formulas(entry["architecture"]) == with_formulas
        )
        file.write_text(f'{{\n "vllm": "{version}",\n "models": [\n{lines}\n ]\n}}\n')


def formula_bytes(m: ModelConfig, tp: int, pp: int, stage: int) -> int:
    """Return the bytes of all tensors of a rank by our formulas, rope tables with them, not rounded to blocks."""
    before, after = ranks.stage_weights(m, stage == 0, stage == pp - 1)
    layers = partition_layers(m.num_hidden_layers, pp)[stage]
    total = sum(sum(tensor_bytes(m, w, 0, tp)) for w in (*before, *after))
    total += sum(count * part.bytes for count, part in parts(m, tp, layers=layers))
    rope_bytes = 4 if m.traits.rope_float32 else 2
    return total + sum(positions * dim * rope_bytes for positions, dim in m.rope_tables)


def differences(m: ModelConfig, split: dict) -> dict[str, tuple[int, int]]:
    """Return {what: (by our formulas, by vLLM's class)} of everything that is compared of a split."""
    tp, pp, cache = split["tp"], split["pp"], split["kv_cache"]
    stages = partition_layers(m.num_hidden_layers, pp)
    lay = kv_cache.layout(m, tp, "auto", cache["max_model_len"], cache["max_in_flight_tokens"])
    language = [stage["tensor_bytes"] - stage.get("encoder_bytes", 0) for stage in split["stages"]]
    text = replace(m, text_only=True)
    out = {}
    for i in range(pp):
        out[f"weights of stage {i}"] = (formula_bytes(text, tp, pp, i), language[i])
    for i in range(pp):
        ours = kv_cache.pool_bytes_per_block(lay, tuple(stages[i]))
        out[f"bytes of a block on stage {i}"] = (ours, cache["pool_bytes_per_block"][i])
    out["blocks of a request"] = (kv_cache.blocks_per_request(lay), cache["blocks_per_request"])
    out["KV bytes a token"] = (kv_cache.kv_cache_bytes_per_token(m), cache["bytes_per_token"])
    return out


def compared(entry: dict, m: ModelConfig) -> Iterator[tuple[str, str, int, int]]:
    """Yield (split, what, ours, vLLM's) of everything compared of a model."""
    for split in entry["builds"]:
        for what, (ours, theirs) in differences(m, split).items():
            yield f"TP {split['tp']} PP {split['pp']}", what, ours, theirs


def same(entry: dict, what: str, ours: int, theirs: int) -> bool:
    """True where a figure agrees but for rounding, or is known to be another."""
    near = SMALL_BYTES if what.startswith("weights") else 0
    return abs(ours - theirs) <= max(near, ROUNDING * theirs) or (entry["name"], what) in KNOWN


def compare() -> None:
    """Print every difference beyond rounding, and how many figures agree."""
    models = {builds.digest(m.raw): m for m in map(load_model, list_models())}
    agree = exactly = total = 0
    for entry in (e for e in recorded() if e["architecture"] in FORMULAS):
        for split, what, ours, theirs in compared(entry, models[entry["digest"]]):
            near, total = same(entry, what, ours, theirs), total + 1
            agree += near
            exactly += ours == theirs
            if not near:
                print(
                    f"{entry['name']}, {split}, {what}: {ours:,} against {theirs:,} ({ours / theirs - 1:+.3%})"
                )
    print(f"{agree} of {total} figures agree, {exactly} of them to the byte; known to differ:")
    for (name, what), why in KNOWN.items():
        print(f"  {name}, {what}: {why}")


def default_configs() -> dict[str, dict]:
    """Return {architecture: config.json with default sizes} of vLLM's registry; {} where nobody has a default.

    The sizes are those of the Transformers library's (or vLLM's own) config class of the model type; for text models
    whose config class only their own code has, Llama's.
    """
    from workshop.workarounds import cpu_package_name

    cpu_package_name.apply()
    from transformers import CONFIG_MAPPING, LlamaConfig
    from transformers.models.auto import modeling_auto
    from vllm.model_executor.models import registry
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    types, llama = {}, LlamaConfig().to_json_string(use_diff=False)
    for name in (
        "CAUSAL_LM",
        "IMAGE_TEXT_TO_TEXT",
        "SEQ_TO_SEQ_CAUSAL_LM",
        "SPEECH_SEQ_2_SEQ",
        "MULTIMODAL_LM",
    ):
        for model_type, classes in getattr(
            modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {}
        ).items():
            types |= dict.fromkeys([classes] if isinstance(classes, str) else classes, model_type)
    out = {}
    for kind in ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS"):
        for architecture, (module, _) in getattr(registry, kind).items():
            model_type = TYPES.get(architecture) or types.get(
                architecture, module.rpartition(".")[2] or module
            )
            config_classes = next(
                (
                    mapping
                    for mapping in (_CONFIG_REGISTRY, CONFIG_MAPPING)
                    if model_type in mapping
                ),
                None,
            )
            raw = (
                {}
                if config_classes is not None or kind == "_MULTIMODAL_MODELS"
                else json.loads(llama)
            )
            # a config class whose own defaults do not go together
            with contextlib.suppress(Exception):
                raw = json.loads(config_classes[model_type]().to_json_string(use_diff=False))
            both = {
                "architectures": [architecture],
                "model_type": model_type,
                "torch_dtype": "bfloat16",
            }
            multimodal = kind == "_MULTIMODAL_MODELS"
            sizes = "Llama's" if config_classes is None else "default"
            out[architecture] = {
                "multimodal": multimodal,
                "sizes": sizes,
                "config": {**raw, **both} if raw else {},
            }
    return out


def real_configs(folders: list[Path]) -> dict[str, tuple[str, dict]]:
    """Return {architecture: (name, config.json)} of the catalog and of folders of configs."""
    configs = {}
    for file in (file for folder in folders for file in sorted(folder.rglob("*config.json"))):
        raw = json.loads(file.read_text())
        name = (
            file.parent.name
            if file.name == "config.json"
            else file.stem.removesuffix("_config").replace("--", "/")
        )
        configs.setdefault((raw.get("architectures") or [""])[0], (name, raw))
    return configs | {
        m.architecture: (m.name, dict(m.raw)) for m in map(load_model, reversed(list_models()))
    }


def registry(folders: list[Path]) -> None:
    """Write down what came of each architecture of the registry: ours anew, the class of those that were not built."""
    there = registry_rows()
    with ask.ExactWorker() as worker:
        for architecture, row, config in configs_of_registry(folders):
            earlier = there.get(architecture, {})
            if not config:
                row["class"] = (
                    "neither Transformers nor vLLM has sizes for it, and no config.json was at hand"
                )
            elif earlier.get("class") == "built" and earlier["sizes"] == row["sizes"]:
                row = earlier | row | {"ours": said_by_us(architecture, config)}
            else:
                job = {"config": config, "tp": 1, "pp": 1}
                answer = worker.build(job)
                if "error" in answer and row["multimodal"]:
                    answer = worker.build(job | {"language_model_only": True})
                row |= said_by_class(answer) | {"ours": said_by_us(architecture, config)}
            there[architecture] = row
            print(architecture, row, flush=True)
    write_registry(there, ask.version())


def renew_our_figures(folders: list[Path]) -> None:
    """Write our figure anew into every row of the registry whose config is at hand; ask no class."""
    there = registry_rows()
    for architecture, row, config in configs_of_registry(folders):
        earlier = there.get(architecture, {})
        if config and earlier.get("sizes") == row["sizes"]:
            earlier["ours"] = said_by_us(architecture, config)
    write_registry(there, json.loads(REGISTRY.read_text())["vllm"])


def registry_rows() -> dict[str, dict]:
    """Return the recorded rows by architecture."""
    return json.loads(REGISTRY.read_text())["architectures"] if REGISTRY.exists() else {}


def configs_of_registry(folders: list[Path]) -> Iterator[tuple[str, dict, dict]]:
    """Yield (architecture, the first fields of its row, the config with which its class is asked).

    A config of the catalog or of the folders goes before one with default sizes; {} where there is none.
    """
    real = real_configs(folders)
    for architecture, entry in default_configs().items():
        sizes, config = real.get(architecture, (entry["sizes"], entry["config"]))
        row = {
            "multimodal": entry["multimodal"],
            "formulas": architecture in FORMULAS,
            "sizes": sizes,
        }
        yield architecture, row, config


def write_registry(rows: dict[str, dict], version: str) -> None:
    """Write the rows, one line an architecture."""
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows, key=str.lower)
    )
    REGISTRY.write_text(f'{{\n "vllm": "{version}",\n "architectures": {{\n{lines}\n }}\n}}\n')


def filled(document: str) -> str:
    """Return docs/exact.md with the table of architectures, behind its marker."""
    rows = json.loads(REGISTRY.read_text())["architectures"]
    text = [
        "",
        f"All {len(rows)} architectures of the registry, each asked with the sizes that are named:",
        "",
    ]
    for kind, multimodal in (("text", False), ("multimodal", True)):
        rows_of_kind = [row for row in rows.values() if row["multimodal"] == multimodal]
        sized = sum("ours" in row for row in rows_of_kind)
        built = sum(row["class"] == "built" for row in rows_of_kind)
        planned = sum(
            row["class"] == "built" or is_planned_without_it(row.get("ours", {}))
            for row in rows_of_kind
        )
        text.append(
            f"- **{kind}**: {len(rows_of_kind)}; {sized} with sizes at hand, {built} of them built by their class, {planned} planned (by the class, formulas or an estimate)."
        )
    without = [f"`{name}`" for name, row in rows.items() if "ours" not in row]
    text += [
        f"- **without sizes**: {len(without)}, which only the `config.json` of their models has (give `workshop plan` its folder): {', '.join(without)}.",
        "",
        "| architecture | sizes | weights, GiB | of these the encoder | layers with a cache | ours | what was said |",
        "|---|---|---:|---:|---|---:|---|",
        *(_registry_line(name, row) for name, row in rows.items()),
    ]
    head = document.partition(MARKER)[0]
    return head + MARKER + "\n" + "\n".join(text) + "\n"


def is_planned_without_it(ours: dict) -> bool:
    """Return True if formulas or an estimate plan an architecture where there is no vLLM."""
    return "weights_bytes" in ours and "not_estimated" not in ours


def _registry_line(name: str, row: dict) -> str:
    ours, theirs = row.get("ours", {}).get("weights_bytes"), row.get("weights_bytes")
    encoder = row.get("encoder_bytes", 0)
    off = (
        f"{ours / (theirs - encoder) - 1:+.1%}"
        if ours and theirs
        else f"{ours / 2**30:,.1f} GiB"
        if ours
        else "none"
    )
    cells = (
        f"`{name}`",
        row["sizes"] if "ours" in row else "",
        f"{theirs / 2**30:,.2f}" if theirs else "",
        f"{encoder / 2**30:,.2f}" if encoder else "",
        ", ".join(f"{n} {kind.removesuffix('Spec')}" for kind, n in row.get("layers", {}).items()),
        f"{off} {_basis(row)}" if "ours" in row else "",
        "" if row["class"] == "built" else row["class"].replace("|", "/")[:110],
    )
    return f"| {' | '.join(cells)} |"


def _basis(row: dict) -> str:
    """Return what our figure of a row is; an estimate that the plan does not give says what it lacks."""
    if row["formulas"]:
        return "formulas"
    part = row["ours"].get("not_estimated")
    return f"not given ({part})" if part else "estimate"


def said_by_class(answer: dict) -> dict:
    """Return in short what vLLM's class said of an architecture."""
    if "error" in answer:
        line = next(
            (line for line in answer["error"].splitlines() if "Value error" in line),
            answer["error"],
        )
        return {"class": line.strip().splitlines()[0][:160]}
    counts: dict[str, int] = {}
    for group in answer["kv_cache"]["groups"]:
        counts[group["kind"]] = counts.get(group["kind"], 0) + sum(group["layers"])
    stage = answer["stages"][0]
    encoder = {"encoder_bytes": stage["encoder_bytes"]} if "encoder_bytes" in stage else {}
    return {"class": "built", "weights_bytes": stage["tensor_bytes"], **encoder, "layers": counts}


def said_by_us(architecture: str, config: dict) -> dict:
    """Return the language part's weights by our formulas or estimate, or why the config is refused.

    "not_estimated" is the part for which a plan without vLLM gives no estimate.
    """
    try:
        model = replace(from_dict(config, name=architecture), text_only=True)
        figures = {"weights_bytes": weight_bytes(model)}
    except WorkshopError as error:
        return {"refused": error.message[:160]}
    part = "" if architecture in FORMULAS else unknown_part(config, has_checkpoint=False)
    return figures | ({"not_estimated": part} if part else {})


def main() -> None:
    """Record, compare, or count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "compare", "registry", "ours", "page"))
    parser.add_argument("names", nargs="*", help="models to record, instead of the whole catalog")
    parser.add_argument(
        "--configs", type=Path, nargs="*", default=(), help="folders of config.json for registry"
    )
    options = parser.parse_args()
    if options.what == "compare":
        compare()
    elif options.what == "registry":
        registry(options.configs)
    elif options.what == "ours":
        renew_our_figures(options.configs)
    elif options.what == "page":
        DOCS.write_text(filled(DOCS.read_text()))
    else:
        record([load_model(name) for name in options.names or list_models()])


if __name__ == "__main__":
    main()
