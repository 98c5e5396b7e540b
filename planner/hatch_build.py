"""Put the planner of the course into a wheel of its own: workshop/plan and its data, as `inference_planner`.

The name is changed in imports and in what is printed, so that both distributions can be installed side by side.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COURSE = Path(__file__).parents[1] / "workshop"
FILES = (
    "errors.py",
    "files.py",
    "lazy.py",
    "python_process.py",
    "plan/**/*.py",
    "plan/catalog/*.json",
    "data/exact/*.json",
    "data/runs/*.json",
)
NOT_ASKED = {"plan/recorded.py", "plan/models_page.py"}  # they make docs of the course
OURS = {
    re.compile(r"\bworkshop\.(?=errors\b|files\b|lazy\b|plan\b)"): "inference_planner.",
    re.compile(r"\bfrom workshop import\b"): "from inference_planner import",
    re.compile(r"\bworkshop plan\b"): "inference-planner",
}


class CustomBuildHook(BuildHookInterface):
    """Copies the files into a folder, renamed, for as long as the wheel is written."""

    def initialize(self, version: str, build_data: dict) -> None:
        if not COURSE.is_dir():
            raise FileNotFoundError(f"{COURSE} is not there: the planner is built inside the course's repository.")
        self.folder = tempfile.TemporaryDirectory()
        for source in (path for pattern in FILES for path in sorted(COURSE.glob(pattern))):
            inside = source.relative_to(COURSE)
            if inside.as_posix() not in NOT_ASKED:
                text = source.read_text(encoding="utf-8")
                for ours, theirs in OURS.items() if source.suffix == ".py" else ():
                    text = ours.sub(theirs, text)
                copy = Path(self.folder.name) / inside
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(text, encoding="utf-8")
                build_data["force_include"][str(copy)] = f"inference_planner/{inside.as_posix()}"
        build_data["force_include"][str(COURSE.parent / "LICENSE")] = "inference_planner/LICENSE"

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        self.folder.cleanup()
