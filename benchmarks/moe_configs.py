"""Record for which experts and GPUs vLLM has tuned files, without a GPU.

    python benchmarks/moe_configs.py            of the vLLM that is installed here

Triton's kernels of experts read their tile sizes from a file that is named by the number of experts
of a rank (E), the width of its part of each (N), the GPU, and how the weights are stored. The files
are in every wheel, also in that for the CPU. Without one vLLM logs "Using default MoE config" and
takes sizes that may be slow. The names alone are recorded.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "planner"))
from inference_planner.releases.moe_configs import FILE

NAME = re.compile(
    r"E=(?P<experts>\d+),N=(?P<width>\d+),device_name=(?P<device>[^,]+?)"
    r"(,dtype=(?P<dtype>\w+))?(,backend=\w+)?(,block_shape=\[(?P<block>\d+),\d+\])?\.json"
)
MAKER = "NVIDIA_"  # other makers' GPUs have kernels of their own in most cases


def folder() -> Path:
    """Return the folder of tuned files in the installed vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("vLLM is not installed here. `make workshop` installs it.")
    package = Path(spec.submodule_search_locations[0])
    return package / "model_executor" / "layers" / "fused_moe" / "configs"


def recorded() -> dict[str, dict[str, list[str]]]:
    """Return {GPU: {how weights are stored: ["experts x width", ...]}} of all tuned files."""
    shapes_of: dict[str, dict[str, set[tuple[int, int]]]] = defaultdict(lambda: defaultdict(set))
    for file in folder().glob("E=*.json"):
        match = NAME.fullmatch(file.name)
        if match is None or not match["device"].startswith(MAKER):
            continue
        stored = match["dtype"] or "16 bit"
        if match["block"]:
            stored += f" in blocks of {match['block']}"
        shape = int(match["experts"]), int(match["width"])
        shapes_of[match["device"].removeprefix(MAKER)][stored].add(shape)
    return {
        device: {
            stored: [f"{experts}x{width}" for experts, width in sorted(shapes)]
            for stored, shapes in sorted(of_device.items())
        }
        for device, of_device in sorted(shapes_of.items())
    }


def main() -> None:
    """Write the table, a line for each GPU and way of storing."""
    release = version("vllm").split("+")[0]
    lines = [f' "source": "benchmarks/moe_configs.py with vllm {release}"']
    for device, of_device in recorded().items():
        inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in of_device.items())
        lines.append(f" {json.dumps(device)}: {{\n{inner}\n }}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
