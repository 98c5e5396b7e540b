"""Families without formulas on a GPU: what vLLM's log says, beside what plan/exact.py had said before.

    python benchmarks/gpu/new_families.py --jobs FILE --predict  # where vLLM's CPU build is; writes FILE_predictions.json
    python benchmarks/gpu/new_families.py --jobs FILE OUT_FOLDER # on one H200; writes OUT_FOLDER/FILE

Weights are dummies; a config.json is all that a model needs: a job has it whole, or names a catalog "model" and the
fields of "config" that differ. One engine runs at a
time, alone on the GPU, and the next processes import vLLM meanwhile. A job that fails or takes too long is written down
as such, and the next one runs. Needs vLLM with CUDA for the second line; no network, no weights, no tokenizer.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
import measure  # noqa: E402

JOBS = HERE / "jobs" / "new_families.json"
GPU, JOB_LIMIT_S, AHEAD = "h200", 110.0, 2
SAID = ("weights_gib_per_gpu", "available_kv_gib_per_gpu", "kv_cache_tokens", "max_concurrency")


def predict(job: dict, worker, version: str) -> dict:
    """Return what the plan says of a job before it ran; `worker` asks vLLM's classes."""
    from inference_planner.answer.choose import Split
    from inference_planner.answer.parallelism import plan_of
    from inference_planner.catalog.read import from_dict
    from inference_planner.split.deployment import prepare

    from workshop.engine import exact

    extra = dict(job["extra"])
    more = {k: extra.pop(k) for k in ("enable_prefix_caching",) if k in extra}
    model = from_dict(measure.config_of(job), name=job["name"])
    d = prepare(
        model, GPU, usage="llm", max_model_len=job["max_model_len"], vllm_version=version, **extra
    )
    p = plan_of(Split(exact.attach(d, worker, **more), []))
    return {
        "name": job["name"],
        **{key: round(getattr(p, key), 4) for key in SAID},
        "vllm_classes": p.source,
    }


def child(job: dict, out: Path) -> None:
    """Import vLLM, wait for the GPU, start the engine, and let vLLM's log say the rest."""
    import measure_worker  # noqa: F401  writes down exact bytes; see there
    from vllm import LLM

    folder = out / "models" / job["name"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(measure.config_of(job)))
    sys.stdin.readline()  # our turn
    began = time.perf_counter()
    llm = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=job["max_model_len"],
        worker_extension_cls="measure_worker.MemoryReport",
        **job["extra"],
    )
    config = llm.llm_engine.vllm_config.cache_config
    facts = {"block_size": config.block_size, "num_gpu_blocks": config.num_gpu_blocks}
    print(
        "RESULT " + json.dumps({"start_s": round(time.perf_counter() - began, 1), **facts}),
        flush=True,
    )
    sys.stdout.flush()
    os._exit(0)  # nothing is asked of the engine


def start(job: dict, out: Path) -> subprocess.Popen:
    """Start the process of a job; it waits for a line on its standard input before it touches the GPU."""
    env = {
        **os.environ,
        **measure.ENVIRONMENT,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "WORKSHOP_MEASURE_OUT": str(out / job["name"]),
        "PYTHONPATH": f"{HERE}:{HERE.parents[1]}:{os.environ.get('PYTHONPATH', '')}",
        "VLLM_CACHE_ROOT": str(out / "cache"),
    }
    with open(out / f"{job['name']}.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, __file__, "--one", json.dumps(job), str(out)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )


def finish(process: subprocess.Popen, limit_s: float) -> None:
    """Give a process its turn and wait for its end; one that takes too long is killed with all that it started."""
    try:
        process.communicate(b"go\n", timeout=max(1.0, limit_s))
    except (subprocess.TimeoutExpired, OSError):
        os.killpg(process.pid, 9)
        process.wait()


def run(path: Path, out: Path, budget_s: float, only: list[str]) -> list[dict]:
    """Run the jobs one after the other and return a record of each: what the log said, or how it failed."""
    out.mkdir(parents=True, exist_ok=True)
    began, records = time.time(), []
    jobs = [job for job in json.loads(path.read_text()) if not only or job["name"] in only]
    predictions = {
        prediction["name"]: prediction
        for prediction in json.loads(beside(path).read_text())["predictions"]
    }
    waiting = [start(job, out) for job in jobs[: 1 + AHEAD]]
    for number, job in enumerate(jobs):
        at = time.time()
        left = budget_s - (at - began)
        if left < 5:
            break
        finish(waiting[number], min(JOB_LIMIT_S, left))
        if number + 1 + AHEAD < len(jobs):
            waiting.append(start(jobs[number + 1 + AHEAD], out))
        record = measure.collect({**job, "tp": 1, "pp": 1}, out, time.time() - at)
        records.append({**record, "predicted": predictions.get(job["name"])})
        comparison = {
            key: (record.get(key), (predictions.get(job["name"]) or {}).get(key)) for key in SAID
        }
        print(
            f"{time.time() - began:5.0f}s {job['name']}: {comparison} {record.get('failed', '')[-300:]}",
            flush=True,
        )
        write(records, out / path.name)
    for process in waiting:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
    return records


def beside(path: Path) -> Path:
    """Return where the predictions for a file of jobs are."""
    return path.with_name(f"{path.stem}_predictions.json")


def write(records: list[dict], path: Path) -> None:
    """Write all that is known by now, so that whatever ends this leaves what was measured."""
    # torch would take memory
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpus = []
    with contextlib.suppress(OSError):
        gpus = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    versions = {name: importlib.metadata.version(name) for name in ("vllm", "torch")}
    host = {"gpus": gpus, **versions}
    text = json.dumps({**host, "date": time.strftime("%Y-%m-%d"), "runs": records}, indent=1)
    path.write_text(text + "\n")


def main() -> None:
    """Predict, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=Path("new_families"))
    parser.add_argument(
        "--predict", action="store_true", help="write the predictions down, without a GPU"
    )
    parser.add_argument("--jobs", type=Path, default=JOBS)
    parser.add_argument("--only", default="", help="names of jobs, with commas")
    parser.add_argument("--version", default="0.25.1", help="the vLLM that --predict is for")
    parser.add_argument(
        "--budget-s", type=float, default=450.0, help="stop what is not done by then"
    )
    options = parser.parse_args()
    if options.predict:
        from workshop.engine.exact import ExactWorker

        with ExactWorker() as worker:
            jobs = json.loads(options.jobs.read_text())
            lines = ",\n".join(
                "  " + json.dumps(predict(job, worker, options.version)) for job in jobs
            )
        head = f'{{\n "gpu": "{GPU}",\n "usage": "llm",\n "vllm_version": "{options.version}",\n'
        beside(options.jobs).write_text(f'{head} "predictions": [\n{lines}\n ]\n}}\n')
        return
    names = options.only.split(",") if options.only else []
    if any(
        "failed" in record
        for record in run(options.jobs, options.out.resolve(), options.budget_s, names)
    ):
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        child(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
