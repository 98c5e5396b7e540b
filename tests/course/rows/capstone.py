"""Rows of test_every_check for the capstone: its checks take what the learner has chosen, so the rows make some."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from workshop.batch.progress import Summary
from workshop.engine.planning import plan
from workshop.engine.reconcile.compare import reconcile
from workshop.servers import kubernetes

ROOT = Path(__file__).parents[3]
LOG = files("workshop.data") / "logs" / "llama-3.1-8b_tp1_h200.log"
# 908,240 tokens of KV cache
PLAN = plan("llama-3.1-8b", "h200", gpus_per_node=1, max_model_len=8192, usage="serve")
LARGE = plan(
    "llama-3.1-70b",
    "h100",
    gpus_per_node=4,
    tensor_parallel_size=4,
    max_model_len=32768,
    usage="serve",
)
TWO_NODES = plan(
    "llama-3.1-405b", "h100", gpus_per_node=8, nodes=2, max_model_len=8192, usage="serve"
)
TOO_SMALL = plan("llama-3.1-405b", "h100", gpus_per_node=1, max_model_len=8192)
COMPARED = reconcile(LOG, "llama-3.1-8b", "h200")
MANIFEST = kubernetes.render(PLAN)
OTHER = kubernetes.render(
    plan("mistral-7b-v0.3", "h200", gpus_per_node=1, max_model_len=8192, usage="serve")
)
SBATCH = "#SBATCH --gpus-per-node=4\nvllm serve Llama-3.1-70B --tensor-parallel-size=4 --max-model-len=32768"
RUN = "docker run --gpus all vllm/vllm-openai\n  meta-llama/Llama-3.1-70B\n  --tensor-parallel-size 4\n  --max-model-len 32768"
ONE = "#SBATCH --gpus-per-node=1\nvllm serve meta-llama/Llama-3.1-8B --max-model-len 8192"  # TP 1 is vLLM's default
POD = (
    "kind: Pod\nargs: [/models/Llama-3.1-8B, --max-model-len, '8192']\nlimits: {nvidia.com/gpu: 1}"
)
SPLIT = "#SBATCH --nodes=2\n#SBATCH --gpus=16\nvllm serve Llama-3.1-405B -tp 8 -pp 2 --max-model-len 8192"
# 0.2 s a row
SUMMARY = Summary("complete", 20, 20, 20, 0, 0, 0, 4.0, 100, 640, Path("answers.jsonl"), None)
AGAIN = Summary("complete", 20, 20, 0, 0, 0, 0, 0.1, 0, 0, Path("answers.jsonl"), None)
WORDS = {
    "need": "We sort fifty thousand abstracts of papers into twelve fields, all of them in our own building.",
    "surprise": "I expected a hundred requests at once; the plan found 605, and the log agreed with it.",
    "next": "On Monday I send a thousand rows, read fifty of the answers, and then send the others.",
}

ROWS = {
    "capstone.weights": (
        # 8,030,261,248 parameters of two bytes; the index of the FP8 checkpoint says 487 GB
        [("llama-3.1-8b", 14.96), ("llama-3.1-8b", 15), ["llama-3.1-405b-fp8", 453.8]],
        [
            (("llama-3.1-8b", 16.06), "GB of 10**9"),
            (("llama-3.1-8b", 16060522496), "divide by 2**30"),
            (("llama-3.1-8b", 7.48), "half"),
            (("llama-3.1-8b", 29.9), "twice"),
            (("llama-3.1-8b", 12), "too small"),
            (("llama-9b", 12), "llama-9b"),
            (15, "give (model, your GiB)"),
        ],
    ),
    "capstone.at_once": (
        [
            (PLAN, 1500, 605),
            (PLAN, 1500, 605.4),
            (PLAN, 8192, 112),
            (LARGE, 2000, LARGE.kv_cache_tokens // 2000),
        ],
        [
            ((PLAN, 1500, 909856), "those are tokens"),
            ((PLAN, 1500, 1500 / 909856), "other way round"),
            ((PLAN, 1500, 111.07), "requests of 8,192"),
            ((LARGE, 2000, 4 * LARGE.kv_cache_tokens / 2000), "do not multiply"),
            ((PLAN, 1500, 500), "too small"),
            ((PLAN, 9000, 102), "longest request"),
            ((TOO_SMALL, 1500, 1), "does not fit"),
            (605, "give (p, request_tokens"),
        ],
    ),
    "capstone.script": (
        [
            (PLAN, MANIFEST),
            (TWO_NODES, kubernetes.render(TWO_NODES)),
            (LARGE, (ROOT / "slurm" / "70b.sbatch").read_text()),
            (LARGE, SBATCH),
            (LARGE, RUN),
            (PLAN, ONE),
            (PLAN, ONE.replace("8192", "8K")),
            (PLAN, POD.replace("]", ', "--tensor-parallel-size", "1"]')),
            (PLAN, POD.replace("[", "[--tensor-parallel-size, '1', ")),
            (PLAN, POD + '\n- --tensor-parallel-size\n- "1"'),
            (TWO_NODES, SPLIT),
            # all it reads
            (
                plan("opt-125m", "h200", max_model_len=2048),
                "podman run vllm/vllm-openai\n facebook/opt-125m",
            ),
        ],
        [
            ((LARGE, RUN.replace("size 4", "size 2")), "says 2 for --tensor-parallel-size"),
            ((LARGE, RUN.replace("--max-model-len 32768", "")), "nothing for --max-model-len"),
            (
                (LARGE, SBATCH.replace("32768", "32000")),
                "says 32000 for --max-model-len; the plan has 32768",
            ),
            ((LARGE, f"{SBATCH} --api-key abc"), "a key in it"),
            ((PLAN, f'{ONE} --api-key "$VLLM_API_KEY"'), "on a command line"),
            ((PLAN, POD.replace("]", ', "--api-key", "sk-mistral-2024-secret"]')), "a key in it"),
            ((PLAN, ONE.replace("8B", "70B")), "does not name the plan's model, Llama-3.1-8B"),
            ((PLAN, OTHER), "does not name the plan's model"),
            (
                (
                    PLAN,
                    "# vllm serve Llama-3.1-8B\n# --tensor-parallel-size 1 --max-model-len 8192",
                ),
                "does not name",
            ),
            ((TWO_NODES, SPLIT.replace(" -pp 2", "")), "nothing for --pipeline-parallel-size"),
            ((TWO_NODES, SPLIT.replace("-tp 8", "-tp 16")), "says 16 for --tensor-parallel-size"),
            ((LARGE, "70b.sbatch"), "the text itself"),
            (SBATCH, "give (p, the text"),
        ],
    ),
    "capstone.gap": (
        # -0.23 %, the largest of that log
        [
            (COMPARED, "overhead per GPU"),
            (COMPARED, " Overhead per gpu"),
        ],
        [
            ((COMPARED, "weights per GPU"), "0.03 %, and another one by more"),
            ((COMPARED, "KV cache size"), "another one by more"),
            ((COMPARED, "CUDA graphs, captured"), "no quantity with an error"),
            ((COMPARED, 0.23), "no quantity with an error"),
            ("overhead per GPU", "give (compared"),
        ],
    ),
    "capstone.hours": (
        [(SUMMARY, 50_000, 50_000 * 0.2 / 3600), (SUMMARY, 50_000, 2.78), (SUMMARY, 18_000, 1)],
        [
            ((SUMMARY, 50_000, 10_000), "seconds"),
            ((SUMMARY, 50_000, 166.7), "minutes"),
            ((SUMMARY, 50_000, 4 / 3600), "the rows of this run"),
            ((SUMMARY, 50_000, 50_000 * 4 / 3600), "whole run"),
            ((SUMMARY, 50_000, 2), "too small"),
            ((AGAIN, 50_000, 2), "nothing new"),
            (2.78, "give (summary"),
        ],
    ),
    "capstone.words": (
        [WORDS],
        [
            ("I need it", "a dict with the keys"),
            ({"need": WORDS["need"]}, "a dict with the keys"),
            (WORDS | {"next": "More of it."}, "fewer than 12 words: say what you do next"),
            (WORDS | {"next": WORDS["need"]}, "say the same"),
            (WORDS | {"surprise": WORDS["next"] + " Yes."}, "put a figure"),
            (WORDS | {"need": 5}, "'need' has fewer"),
        ],
    ),
}
