"""Measure vLLM on the GPUs of this host: memory as its profiling saw it, and speed. Weights are dummies.

    python benchmarks/gpu/measure.py JOBS.json OUT_FOLDER [--only NAME,NAME]

JOBS.json is a list of {"name", "model", "tp", "pp", "max_model_len", "extra": {LLM() arguments}, "env": {…},
"config": {fields that differ}, "speed": bool, "batches": [16, 64, 256], "mixed": [[requests that decode, prompts that
each step reads, tokens of a prompt]], "profile": bool, "trace": bool,
"prompts": [1024, 8192], "energy": bool, "processor": bool, "zero_biases": bool (dummy biases would send all tokens to
the same experts), "limit_s": when it is ended}; "prompts" times the first token after a lone prompt of each
length, "energy" reads NVML's counter around one stream and each batch; without speed a job ends when the
memory is measured. A model is a catalog name or a folder with a config.json. Jobs run side by side as long as GPUs
are free, and each writes OUT_FOLDER/NAME.json (what was measured) and NAME.log (vLLM's own log).
Needs vLLM with CUDA; no network, no weights, no tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from kernels import kernel_times
from processor import write_processor
from timings import first_tokens, mixed_steps, profiled, seconds, speeds

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from workshop.servers.host.energy import taken_joules  # noqa: E402

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # NVLink multicast stays off: on a host that others share, a program that uses it can take the GPUs out of service.
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm",
    "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
}
PATTERNS = {
    "weights_gib_per_gpu": r"Model loading took ([\d.]+) GiB",
    "available_kv_gib_per_gpu": r"Available KV cache memory: ([\d.]+) GiB",
    "kv_cache_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "max_concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
    "cuda_graph_gib": r"Graph capturing finished in \d+ secs, took ([\d.]+) GiB",
    "cuda_graph_estimate_gib": r"Estimated CUDA graph memory: ([\d.]+) GiB",
}


def model_folder(job: dict, out: Path) -> Path:
    """Return a folder with the model's config.json; a catalog name gets one written from the catalog's facts.

    job["config"] overrides single fields: {"quantization_config": {…}} makes an FP8 variant of a 16-bit model.
    job["folder"] names it, by default the job: vLLM calls what it compiles by the model's path.
    """
    if "model" in job and Path(job["model"]).exists():
        return Path(job["model"])
    folder = out / "models" / job.get("folder", job["name"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(job)))
    if job.get("processor"):
        write_processor(folder)
    return folder


def config_of(job: dict) -> dict:
    """Return the job's config.json: its own, or a catalog model's with the fields that differ."""
    from inference_planner.catalog import load_model

    return {**(load_model(job["model"]).raw if "model" in job else {}), **job.get("config", {})}


def engine(job: dict, out: Path):
    """Start the job's engine in this process."""
    from vllm import LLM

    extra = dict(job.get("extra", {}))
    if draft := extra.get("speculative_config", {}).get("model"):
        facts = {"config": draft} if isinstance(draft, dict) else {"model": draft}
        folder = model_folder({"name": f"{job['name']}-draft", **facts}, out)
        extra["speculative_config"] = {**extra["speculative_config"], "model": str(folder)}
    if job.get("profile"):
        extra["profiler_config"] = {
            "profiler": "torch",
            "torch_profiler_dir": str(out / "trace" / job["name"]),
            "torch_profiler_with_stack": False,
            "torch_profiler_use_gzip": False,
        }
    extra.setdefault("skip_tokenizer_init", True)
    extra.setdefault("enable_prefix_caching", False)
    return LLM(
        model=str(model_folder(job, out)),
        load_format="dummy",
        max_model_len=job.get("max_model_len"),
        tensor_parallel_size=job.get("tp", 1),
        pipeline_parallel_size=job.get("pp", 1),
        worker_extension_cls="measure_worker.MemoryReport",
        disable_log_stats="speculative_config"
        not in extra,  # what was guessed and accepted is counted there
        **extra,
    )


def run_one(job: dict, out: Path) -> None:
    """Start one engine in this process, measure it, and print the result into its log."""
    started = time.time()
    llm = engine(job, out)
    result = {"start_s": round(time.time() - started, 1)}
    if job.get("zero_biases"):
        result["zeroed"] = llm.collective_rpc("zero_biases")
    if job.get("speed", True):
        energy = taken_joules if job.get("energy") else None
        result |= speeds(llm, job.get("batches", [16, 64]), energy)
        result |= first_tokens(llm, job.get("prompts", []))
    if "speculative_config" in job.get("extra", {}):
        result["speculation"] = {
            m.name: m.value
            for m in llm.get_metrics()
            if "spec_decode" in m.name and hasattr(m, "value")
        }
    print("RESULT " + json.dumps(result), flush=True)
    trace = out / "trace" / job["name"]
    # each is printed: what was measured stays, whatever comes
    for step in job.get("mixed", []):
        print(
            "MIXED " + json.dumps(mixed_steps(llm, *step, trace if job.get("profile") else None)),
            flush=True,
        )
    if job.get("profile"):
        with profiled(llm, trace):
            seconds(llm, 1, 32, 24)
        print("KERNELS " + json.dumps(kernel_times(trace)), flush=True)


def collect(job: dict, out: Path, seconds: float) -> dict:
    """Read the log and the ranks' reports of a finished job into one record."""
    text = (out / f"{job['name']}.log").read_text(errors="replace")
    record = {**job, "wall_s": round(seconds, 1)}
    for key, pattern in PATTERNS.items():
        matches = re.findall(pattern, text)
        if matches:
            values = [float(v.replace(",", "")) for v in matches]
            record[key] = (
                int(values[-1])
                if key == "kv_cache_tokens"
                else min(values)
                if "kv" in key
                else max(values)
            )
    result = re.search(r"^RESULT (.*)$", text, re.M)
    record |= json.loads(result.group(1)) if result else {"failed": text[-1500:]}
    if "mixed" in job:
        record["mixed"] = [json.loads(line) for line in re.findall(r"^MIXED (.*)$", text, re.M)]
    kernels = re.search(r"^KERNELS (.*)$", text, re.M)
    if kernels:
        record["kernels"] = json.loads(kernels.group(1))
    record["ranks"] = [
        json.loads(p.read_text()) for p in sorted(out.glob(f"{job['name']}.rank*.json"))
    ]
    (out / f"{job['name']}.json").write_text(json.dumps(record))
    return record


def start(job: dict, out: Path, gpus: list[int]) -> subprocess.Popen:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(max(gpus) + 1)]
    env = {
        **os.environ,
        **ENVIRONMENT,
        "CUDA_VISIBLE_DEVICES": ",".join(names[number] for number in gpus),
        "WORKSHOP_MEASURE_OUT": str(out / job["name"]),
        "WORKSHOP_MEASURE_TRACE": "1" if job.get("trace") else "0",
        "WORKSHOP_MEASURE_STOP": "0" if job.get("speed", True) else "1",
        "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
        "VLLM_CACHE_ROOT": str(out / "cache" / job["name"]),
        **job.get("env", {}),
    }
    with open(out / f"{job['name']}.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, __file__, "--one", json.dumps(job), str(out)],
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )


def report(job: dict, out: Path, began: float, at: float) -> None:
    """Collect a job that has ended, and say so in one line."""
    record = collect(job, out, time.time() - at)
    figures = {k: v for k, v in record.items() if k.endswith("tok_s") or k == "kv_cache_tokens"}
    print(
        f"{time.time() - began:5.0f}s {job['name']}: {figures or record.get('failed', '')[-600:]}",
        flush=True,
    )


def run_all(jobs: list[dict], out: Path, budget_s: float) -> None:
    """Run jobs side by side while GPUs are free; a job that is not done when the budget ends is stopped."""
    import torch

    out.mkdir(parents=True, exist_ok=True)
    began, waiting, running = time.time(), list(jobs), []
    free = set(range(torch.cuda.device_count()))
    while (waiting or running) and time.time() - began < budget_s:
        for job in list(waiting):
            need = job.get("tp", 1) * job.get("pp", 1)
            if need > len(free):
                if need > 1:
                    break  # keep the order: a large job waits for GPUs instead of starving
                continue
            gpus = sorted(free)[:need]
            free -= set(gpus)
            running.append((job, gpus, time.time(), start(job, out, gpus)))
            waiting.remove(job)
        for item in list(running):
            job, gpus, at, process = item
            if process.poll() is None and time.time() - at > job.get("limit_s", budget_s):
                os.killpg(process.pid, 9)
                process.wait()
            if process.poll() is not None:
                running.remove(item)
                free |= set(gpus)
                report(job, out, began, at)
        time.sleep(0.5)
    for job, _, at, process in running:
        os.killpg(process.pid, 9)
        report(job, out, began, at)


def main() -> None:
    """Run the jobs of a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", help="names of jobs, with commas")
    parser.add_argument("--budget-s", type=float, default=1e9, help="stop what is not done by then")
    options = parser.parse_args()
    jobs = json.loads(options.jobs.read_text())
    run_all(
        [job for job in jobs if not options.only or job["name"] in options.only.split(",")],
        options.out,
        options.budget_s,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
