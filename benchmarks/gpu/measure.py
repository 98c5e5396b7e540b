"""Measure vLLM on the GPUs of this host: memory as its profiling saw it, and speed. Weights are dummies.

    python benchmarks/gpu/measure.py JOBS.json OUT_FOLDER

JOBS.json is a list of {"name", "model", "tp", "pp", "max_model_len", "extra": {LLM() arguments},
"config": {fields that differ}, "speed": bool, "trace": bool, "debug": bool}; without speed a job
ends when the memory is measured. A model
is a catalogue name or a folder with a config.json. Jobs run side by side as long as GPUs are free, and each writes
OUT_FOLDER/NAME.json (what was measured) and NAME.log (vLLM's own log). Needs vLLM with CUDA.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
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
    """Return a folder with the model's config.json; a catalogue name gets one written from the catalogue's facts.

    job["config"] overrides single fields: {"quantization_config": {…}} makes an FP8 variant of a 16-bit model.
    """
    if Path(job["model"]).exists():
        return Path(job["model"])
    from workshop.plan.catalog import load_model

    folder = out / "models" / job["name"]
    folder.mkdir(parents=True, exist_ok=True)
    raw = {**load_model(job["model"]).raw, **job.get("config", {})}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def run_one(job: dict, out: Path) -> None:
    """Start one engine in this process, measure it, and write NAME.json beside its log."""
    from vllm import LLM, SamplingParams

    started = time.time()
    llm = LLM(model=str(model_folder(job, out)), load_format="dummy", skip_tokenizer_init=True,
              max_model_len=job.get("max_model_len"), tensor_parallel_size=job.get("tp", 1),
              pipeline_parallel_size=job.get("pp", 1), enable_prefix_caching=False,
              worker_extension_cls="measure_worker.MemoryReport", **job.get("extra", {}))
    result = {"start_s": round(time.time() - started, 1)}

    def seconds(prompts: int, prompt_tokens: int, new_tokens: int) -> float:
        sampling = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        batch = [{"prompt_token_ids": [(7 * i + j) % 1000 + 10 for j in range(prompt_tokens)]} for i in range(prompts)]
        begin = time.perf_counter()
        llm.generate(batch, sampling, use_tqdm=False)
        return time.perf_counter() - begin

    if job.get("speed", True):
        seconds(1, 32, 16)
        ttft = min(seconds(1, 32, 1) for _ in range(3))
        whole = seconds(1, 32, 257)
        result |= {"ttft_ms_32": round(1000 * ttft, 2), "single_tok_s": round(256 / (whole - ttft), 1)}
        for n in job.get("batches", (16, 64)):
            seconds(n, 256, 4)
            result[f"batch{n}_tok_s"] = round(n * 128 / seconds(n, 256, 128))
    print("RESULT " + json.dumps(result), flush=True)


def collect(job: dict, out: Path, seconds: float) -> dict:
    """Read the log and the ranks' reports of a finished job into one record."""
    text = (out / f"{job['name']}.log").read_text(errors="replace")
    record = {**job, "wall_s": round(seconds, 1)}
    for key, pattern in PATTERNS.items():
        found = re.findall(pattern, text)
        if found:
            values = [float(v.replace(",", "")) for v in found]
            record[key] = int(values[-1]) if key == "kv_cache_tokens" else min(values) if "kv" in key else max(values)
    result = re.search(r"^RESULT (.*)$", text, re.M)
    record |= json.loads(result.group(1)) if result else {"failed": text[-1500:]}
    record["ranks"] = [json.loads(p.read_text()) for p in sorted(out.glob(f"{job['name']}.rank*.json"))]
    (out / f"{job['name']}.json").write_text(json.dumps(record))
    return record


def start(job: dict, out: Path, gpus: list[int]) -> subprocess.Popen:
    env = {**os.environ, **ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
           "WORKSHOP_MEASURE_OUT": str(out / job["name"]), "WORKSHOP_MEASURE_TRACE": "1" if job.get("trace") else "0",
           "WORKSHOP_MEASURE_STOP": "0" if job.get("speed", True) else "1",
           "VLLM_LOGGING_LEVEL": "DEBUG" if job.get("debug") else "INFO",
           "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
           "VLLM_CACHE_ROOT": str(out / "cache" / job["name"])}
    with open(out / f"{job['name']}.log", "wb") as log:
        return subprocess.Popen([sys.executable, __file__, "--one", json.dumps(job), str(out)], stdout=log, stderr=log,
                                env=env, start_new_session=True)


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
                    break          # keep the order: a large job waits for GPUs instead of starving
                continue
            gpus = sorted(free)[:need]
            free -= set(gpus)
            running.append((job, gpus, time.time(), start(job, out, gpus)))
            waiting.remove(job)
        for item in list(running):
            job, gpus, at, process = item
            if process.poll() is not None:
                running.remove(item)
                free |= set(gpus)
                record = collect(job, out, time.time() - at)
                print(f"{time.time() - began:5.0f}s {job['name']}: {record.get('kv_cache_tokens')} tokens, "
                      f"{record.get('single_tok_s')} tok/s", flush=True)
        time.sleep(0.5)
    for job, _, at, process in running:
        os.killpg(process.pid, 9)
        collect(job, out, time.time() - at)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        run_one(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        run_all(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), float(os.environ.get("BUDGET_S", 1e9)))
