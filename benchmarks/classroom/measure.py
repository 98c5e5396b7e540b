"""Classes of several sizes against one local server with the teaching model; no server of yours is touched.

    python benchmarks/classroom/measure.py [--learners 10 40]

Prints each class's sentence and writes benchmarks/classroom/classroom.json: what `workshop classroom --json` prints,
with the machine, versions and date. The simulation runs on the server's machine, so both share its cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "classroom.json"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, nargs="+", default=[10, 40])
    learners = parser.parse_args().learners
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WORKSHOP_HOME"] = folder
        for variable in ("WORKSHOP_URL", "WORKSHOP_API_KEY", "WORKSHOP_SHARED"):
            os.environ.pop(variable, None)
        from workshop.course.classroom import run as classroom
        from workshop.servers import local
        from workshop.servers.local import supervise

        record = supervise.start(local.prepare())
        try:
            reports = []
            for count in learners:
                reports.append(classroom.run(count))
                print(f"{count}: {reports[-1]}", flush=True)
        finally:
            supervise.stop(record.name)
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "load_before": [round(load, 2) for load in LOAD],
        "python": platform.python_version(),
        "vllm_version": record.vllm_version,
        "model": record.model,
    }
    results = [{**report.to_dict(), "url": "local"} for report in reports]
    RESULTS.write_text(json.dumps({**facts, "classes": results}, indent=1) + "\n", encoding="utf-8")


def processor() -> str:
    """Return the processor's name, as Linux has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


LOAD = os.getloadavg()

if __name__ == "__main__":
    main()
