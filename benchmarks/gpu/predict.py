"""Write down what the plan says of jobs before they are measured.

python benchmarks/gpu/predict.py JOBS.json … > before.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from inference_planner.settings import Settings

from workshop.engine import measured_runs as recorded

KEYS = (
    "weights_gib_per_gpu",
    "available_kv_gib_per_gpu",
    "kv_cache_tokens",
    "single_stream_tokens_per_s",
)


def main() -> None:
    """Print one JSON object: job name → prediction."""
    said = {}
    for path in sys.argv[1:]:
        for job in json.loads(Path(path).read_text()):
            extra = {
                key: value for key, value in job["extra"].items() if key != "compilation_config"
            }
            plan = recorded.plan_of(
                {"vllm_version": Settings.vllm_version, "pp": 1, **job, "extra": extra}
            )
            said[job["name"]] = {key: round(getattr(plan, key), 4) for key in KEYS}
    print(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
