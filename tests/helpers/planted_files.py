"""A folder as anybody may leave it: Python files with the names of modules that are known."""

from __future__ import annotations

from pathlib import Path

STANDARD = ("json", "re", "typing", "logging", "dataclasses", "sitecustomize", "usercustomize")
PACKAGES = (
    "torch",
    "vllm",
    "numpy",
    "workshop",
    "click",
    "pydantic",
    "transformers",
    "typing_extensions",
)
NOT_INSTALLED = (
    "flashinfer",
    "ray",
    "runai_model_streamer",
    "jupyterlab",
    "ipykernel_launcher",
    "debugpy",
)


class Planted:
    """A folder with Python files of names that are known, each of which writes down that it ran."""

    def __init__(self, folder: Path):
        self.folder = folder / "anybody's"
        self.marks = folder / "marks"
        self.folder.mkdir()
        for name in (*STANDARD, *PACKAGES, *NOT_INSTALLED, "planted_plugin"):
            code = f"open({str(self.marks)!r}, 'a').write({name!r} + ' ')\nraise ImportError('planted ' + {name!r})\n"
            (self.folder / f"{name}.py").write_text(code)
        # vLLM loads what any distribution on sys.path names here
        plugin = self.folder / "planted-1.0.dist-info"
        plugin.mkdir()
        (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
        groups = ("vllm.general_plugins", "vllm.platform_plugins")
        lines = "".join(f"[{group}]\nplanted = planted_plugin:run\n" for group in groups)
        (plugin / "entry_points.txt").write_text(lines)

    @property
    def ran(self) -> str:
        return self.marks.read_text() if self.marks.exists() else ""
