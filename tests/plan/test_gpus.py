"""GPUs of the catalogue: what they have, how they are found, and slices of them."""

from __future__ import annotations

import pytest
from inference_planner.catalog import list_gpus, load_gpu
from inference_planner.catalog.gpus import MIB
from inference_planner.speed import decode_terms

from workshop.engine.exact import plan
from workshop.errors import BadInput


@pytest.mark.parametrize("name", list_gpus())
def test_gpus_see_a_little_less_than_the_driver_reports(name):
    gpu = load_gpu(name)
    lost = 1 - gpu.engine_bytes / (gpu.driver_mib * MIB)
    assert 0 <= lost < 0.05 and gpu.source and gpu.bandwidth_gb_s > 100 and gpu.link_gb_s > 0


@pytest.mark.parametrize(
    "name",
    [
        "H200",
        "h200-sxm",
        "NVIDIA H200",
        "a100",
        "A100-SXM4-80GB",
        "mi300x",
        "H100 NVL 94GB",
        "b300",
        "RTX PRO 6000 Blackwell 96GB",
        "h100-mig-3g.40gb",
    ],
)
def test_gpus_are_found_under_their_usual_spellings(name):
    assert load_gpu(name).engine_bytes > 0


@pytest.mark.parametrize(
    "name", [name for name in list_gpus() if load_gpu(name).kubernetes_product]
)
def test_gpus_are_found_under_nvml_s_name_and_kubernetes_label(name):
    label = load_gpu(name).kubernetes_product
    assert load_gpu(label).name == load_gpu(label.replace("-", " ")).name == name


def test_a_slice_of_a_gpu_runs_what_fits_on_it_alone():
    """3g.40gb of an H100: 39.5 GiB, 60 of 132 multiprocessors, half the memory bandwidth (NVIDIA's MIG user guide)."""
    g = load_gpu("h100-mig-3g.40gb")
    assert (g.engine_gib, g.sm_count, g.bandwidth_gb_s) == (39.5, 60, 3350 / 2)
    assert plan("llama-3.1-8b", g, max_model_len=8192).gpus == 1
    refused = plan("llama-3.1-70b", g)
    assert not refused.fits and "parallel" not in " ".join(refused.advice), (
        "what is advised would be refused"
    )
    assert "No split" not in " ".join(refused.advice), "none was tried: slices cannot be joined"
    with pytest.raises(BadInput, match="slice"):
        plan("llama-3.1-70b", g, tensor_parallel_size=4)


def test_experts_of_four_bits_are_read_as_fast_on_an_h100_as_on_an_h200():
    """Triton's kernels unpack them: multiprocessors decide, of which both have 132 (docs/gpu.md). 16-bit ones do not."""

    def ms(model: str, gpu: str) -> float:
        terms = decode_terms(
            plan(model, gpu, tensor_parallel_size=1, max_model_len=8192).deployment, batch=64
        )
        return next(t.ms for t in terms if t.name == "experts")

    assert ms("gpt-oss-20b", "h100") == ms("gpt-oss-20b", "h200")
    assert ms("qwen3-30b-a3b", "h100") == pytest.approx(
        ms("qwen3-30b-a3b", "h200") * 4.8 / 3.35, rel=0.01
    )
