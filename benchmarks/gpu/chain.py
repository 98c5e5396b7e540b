"""The whole chain on this host: serve → connect → explore → check → batch → class → stop → reconcile → X-ray.

    python benchmarks/gpu/chain.py OUT_FOLDER [--rows 20000] [--learners 40]
    python benchmarks/gpu/chain.py OUT_FOLDER --dummy llama-3.1-70b -tp 4 [--config JSON] [any flag of vllm serve]

Every step is what a person does: the commands as commands, the widgets as objects. OUT_FOLDER/chain.json says of each
step what came out, how long it took, or how it failed (the next ones still run); the server's log and the commands'
words lie beside it. With --dummy a catalog model's sizes with dummy weights: the same but for what its words would
have to mean something for. Runs on a host without a network; with a GPU on the GPU, else on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "sampling")]
import dummy  # noqa: E402

os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
TRUTH = (
    "everything off",
    "top_k 20, temperature 1.5",
    "top_p 0.9, temperature 0.6",
    "min_p 0.05, temperature 1.6",
    "top_k 30, top_p 0.8, temperature 1.5",
    "frequency_penalty -2, temperature 0.7, top_k 4",
    "repetition_penalty 0.6, temperature 1.3",
)


class Chain:
    """The steps, and what came of each."""

    def __init__(self, out: Path, rows: int, learners: int, model: Path | None, flags: list[str]):
        self.out, self.rows, self.learners, self.flags = out, rows, learners, flags
        self.dummy = model
        self.results: dict[str, dict] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[dict]:
        """Time a step, and keep its result or its failure."""
        self.results[name] = result = {}
        began = time.perf_counter()
        try:
            yield result
        except Exception as error:
            result["failed"] = "".join(traceback.format_exception(error))[-3000:]
        result["seconds"] = round(time.perf_counter() - began, 2)
        print(f"{name}: {json.dumps(result, ensure_ascii=False)[:400]}", flush=True)
        (self.out / "chain.json").write_text(
            json.dumps({**facts(), "steps": self.results}, indent=1) + "\n"
        )

    def workshop(self, *arguments: str, may_find_faults: bool = False) -> str:
        """Run a command, keep its words, return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "workshop", *arguments],
            capture_output=True,
            text=True,
            timeout=550,
        )
        with open(self.out / "commands.log", "a") as log:
            log.write(
                f"$ workshop {' '.join(arguments)}   → {done.returncode}\n{done.stdout}{done.stderr}\n"
            )
        assert done.returncode == 0 or may_find_faults, (done.stdout + done.stderr)[-3000:]
        return done.stdout

    def run(self) -> None:
        """Run every step."""
        with self.step("doctor") as result:
            result["says"] = self.workshop("doctor", may_find_faults=True)[-2000:]
        with self.step("serve"):
            model = [str(self.dummy), "--load-format", "dummy"] if self.dummy else []
            self.workshop(
                "serve",
                *model,
                *self.flags,
                "--trace",
                str(self.out / "trace.jsonl"),
                "--background",
            )
        from workshop.servers import records

        record = next(iter(records.own()), None)
        if record is None:
            return
        serves = "failed" not in self.results["serve"]
        try:
            if serves:
                self.use()
        finally:
            with self.step("stop"):
                self.workshop("stop", record.name)
            (self.out / "server.log").write_bytes(Path(record.log).read_bytes())
        if not serves:
            return
        with self.step("reconcile") as result:
            report = json.loads(self.workshop("reconcile", str(self.out / "server.log"), "--json"))
            result["rows"] = [
                {
                    key: row[key]
                    for key in ("quantity", "predicted", "actual", "unit", "error_percent")
                }
                for row in report["rows"]
            ]
        with self.step("xray") as result:
            self.workshop(
                "xray", str(self.out / "trace.jsonl"), "--html", str(self.out / "xray.html")
            )
            result["steps"] = (self.out / "trace.jsonl").read_bytes().count(b"\n")

    def use(self) -> None:
        """Use the server."""
        from workshop import connect

        with self.step("connect") as result:
            llm = connect()
            answer = llm.complete(self.prompt(0), max_tokens=12, temperature=0)
            result |= {"model": llm.model, "text": answer.choices[0].text}
        with self.step("key") as result:
            result |= without_key(llm)
        with self.step("explorer") as result:
            result |= explorer(llm, self.prompt(1), pictures_at_least=10 if self.dummy else 30)
        if not self.dummy:
            with self.step("viewer") as result:
                result |= viewer(llm)
            with self.step("truth") as result:
                result |= truth_test(llm)
        with self.step("batch") as result:
            result |= self.batch()
        with self.step("batch killed") as result:
            result |= self.killed()
        if not self.learners:
            return
        with self.step("class") as result:
            text = self.workshop(
                "bench", "--class", str(self.learners), "--seconds", "60", "--json"
            )
            (point,) = json.loads(text)["points"]
            errors = point["errors"]
            result |= {
                "learners": self.learners,
                "holds": point["holds"],
                "completed": point["load"]["requests"] - sum(errors.values()),
                "errors": errors,
                "p95_ttft_ms": point["ttft_ms"]["p95"],
            }

    def prompt(self, number: int) -> str:
        """Return a prompt that no other number has."""
        return f"{number} Boston is a"

    def input(self, name: str, rows: int) -> Path:
        """Write prompts that differ."""
        path = self.out / name
        path.write_text(
            "".join(
                json.dumps({"custom_id": f"row-{n}", "prompt": self.prompt(n)}) + "\n"
                for n in range(rows)
            )
        )
        return path

    def batch(self) -> dict:
        """Answer the file of prompts through the server."""
        out = self.out / "answers.jsonl"
        began = time.perf_counter()
        self.workshop(
            "batch", str(self.input("prompts.jsonl", self.rows)), str(out), "--max-tokens", "32"
        )
        seconds = time.perf_counter() - began
        meta = json.loads(Path(f"{out}.meta.json").read_text())
        return {
            "rows_per_s": round(self.rows / seconds, 1),
            **self.check(out, self.rows),
            "meta": meta,
        }

    def killed(self) -> dict:
        """Kill a batch in its middle, run it again, and count."""
        rows, out = self.rows // 2, self.out / "killed.jsonl"
        arguments = [
            "batch",
            str(self.input("killed_prompts.jsonl", rows)),
            str(out),
            "--max-tokens",
            "32",
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "workshop", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = 0
        while process.poll() is None and before < rows // 8:
            time.sleep(0.02)
            before = out.read_bytes().count(b"\n") if out.exists() else 0
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.workshop(*arguments)
        return {"answered_at_the_kill": before, **self.check(out, rows)}

    @staticmethod
    def check(out: Path, rows: int) -> dict:
        """Every row is there exactly once."""
        ids = [json.loads(line)["custom_id"] for line in out.read_text().splitlines()]
        assert sorted(ids) == sorted(f"row-{n}" for n in range(rows)), (
            f"{len(ids)} lines, {len(set(ids))} rows"
        )
        return {"rows": rows, "each_once": True}


def without_key(llm) -> dict:
    """Ask every kind of path without the key: only /health may answer."""
    import requests

    codes = {
        path: requests.get(llm.root + path, timeout=20).status_code
        for path in ("/health", "/v1/models", "/metrics", "/version", "/openapi.json")
    }
    assert codes.pop("/health") == 200 and set(codes.values()) == {401}, codes
    return {"without_key": codes}


def explorer(llm, prompt: str, pictures_at_least: int) -> dict:
    """Move the explorer's sliders, sample, step back."""
    from workshop.course.widgets.sampling.view import SamplingExplorer

    widget = SamplingExplorer(llm, prompt)
    pictures, steps = set(), []
    for name, value in [
        *(("temperature", 0.1 * n) for n in range(1, 20)),
        *(("top_k", n) for n in range(1, 20)),
        *(("top_p", 0.05 * n) for n in range(1, 20)),
    ]:
        began = time.perf_counter()
        widget.sliders[name].value = value
        steps.append(1000 * (time.perf_counter() - began))
        pictures.add(widget.picture.value)
    began = time.perf_counter()
    for _ in range(8):
        widget.sample()
    token_s = (time.perf_counter() - began) / 8
    widget.step_back()
    assert (
        len(pictures) >= pictures_at_least and len(widget.output) == 7 and not widget.banner.value
    )
    return {
        "slider_step_ms": {"p50": round(statistics.median(steps), 2), "max": round(max(steps), 2)},
        "sampled_token_ms": round(1000 * token_s, 1),
        "tokens_seen": len(widget.result.probabilities),
    }


def viewer(llm) -> dict:
    """Colour a text by its logprobs."""
    from workshop.course.widgets.logprobs.view import LogprobsViewer

    widget = LogprobsViewer(
        llm, "San Francisco is a city in California. Boston is a city in the moon."
    )
    assert len(widget.rows) > 15 and not widget.banner.value
    return {"rows": len(widget.rows)}


def truth_test(llm) -> dict:
    """Draw 2,000 samples a setting and prompt, and compare them with what the explorer draws."""
    import truth
    from cases import on_gpu

    from workshop.servers.host import gpus

    server, compute = truth.Server(llm), on_gpu if gpus.visible() else truth.ours
    outcomes = [
        truth.compare(server, case, prompt, compute)
        for case in truth.CASES
        if case.name in TRUTH
        for prompt in truth.PROMPTS
    ]
    most = max(outcomes, key=lambda outcome: outcome.evidence)
    assert not most.alarm, [asdict(outcome) for outcome in outcomes if outcome.alarm]
    wrong_case, wrong = truth.WRONG["top_k and top_p before temperature"]
    case = next(case for case in truth.CASES if case.name == wrong_case)
    found_out = sum(truth.compare(server, case, prompt, wrong).alarm for prompt in truth.PROMPTS)
    return {
        "compared": len(outcomes),
        "evidence_of_alarm": most.evidence,
        "of": most.case,
        "wrong_order_found_out": f"{found_out} of {len(truth.PROMPTS)}",
    }


def facts() -> dict:
    """What this ran on."""
    from workshop.servers.host import gpus
    from workshop.vllm_package import installed

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "vllm_version": installed()[1],
        "gpus": [str(gpu) for gpu in gpus.visible()],
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def main() -> None:
    """Run the chain; exit code 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--learners", type=int, default=40, help="of the class; 0: none")
    parser.add_argument(
        "--dummy", help="a catalog model with dummy weights, instead of the teaching model"
    )
    parser.add_argument(
        "--config",
        type=json.loads,
        default={},
        help="fields of its config.json that differ, as JSON",
    )
    options, flags = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    os.environ["WORKSHOP_HOME"] = str(options.out / "home")
    for variable in ("WORKSHOP_URL", "WORKSHOP_API_KEY", "WORKSHOP_SHARED"):
        os.environ.pop(variable, None)
    model = (
        dummy.write(options.dummy, options.out / options.dummy, options.config)
        if options.dummy
        else None
    )
    chain = Chain(options.out, options.rows, options.learners, model, flags)
    chain.run()
    sys.exit(any("failed" in result for result in chain.results.values()))


if __name__ == "__main__":
    main()
