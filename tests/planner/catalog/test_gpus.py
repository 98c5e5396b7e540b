"""GPUs of the catalog: what they have, how they are found, and slices of them."""

from __future__ import annotations

import re

import pytest
from inference_planner.catalog import list_gpus, load_gpu
from inference_planner.catalog.gpus import MIB
from inference_planner.speed.roofline import decode_terms

from workshop.engine.planning import plan
from workshop.errors import BadInput


def test_gpus_see_a_little_less_than_the_driver_reports():
    for name in list_gpus():
        gpu = load_gpu(name)
        lost = 1 - gpu.engine_bytes / (gpu.driver_mib * MIB)
        assert 0 <= lost < 0.05 and gpu.source and gpu.bandwidth_gb_s > 100 and gpu.link_gb_s > 0, (
            name
        )


# NVML's full names, and what a shop or a person writes
SPELLINGS = {
    "a100-40gb": "NVIDIA A100-SXM4-40GB",
    "a100-80gb-pcie": "NVIDIA A100 80GB PCIe",
    "h100": "NVIDIA H100 80GB HBM3",
    "b300": "NVIDIA B300 SXM6 AC",
    "gb10": "DGX Spark",
    "gb200": "gb200 nvl72",
    "mi250x": "AMD Instinct MI250X",
    "mi300x": "AMD Instinct MI300X VF",
    "rtx-6000-ada": "NVIDIA RTX 6000 Ada Generation",
    "rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "rtx-pro-6000-max-q": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "titan-rtx": "NVIDIA TITAN RTX",
    "rtx-4090-48gb": "4090 48GB",
    "r9700": "AMD Radeon AI PRO R9700",
    "gaudi-2": "Intel Gaudi 2 96GB",
    "rtx-3090-ti": "3090Ti",
    "rtx-4080": "NVIDIA_GeForce_RTX_4080",
    "rtx-pro-5000": "PRO 5000",
    "rx-7900-xtx": "7900 XTX",
}


def test_a_card_is_found_as_people_write_it():
    for name, spelling in SPELLINGS.items():
        assert load_gpu(spelling).name == name, spelling


def test_a_name_of_the_catalog_is_found_in_any_case_and_with_any_separator():
    for name in list_gpus():
        gpu = load_gpu(name)
        for text in filter(None, (name, gpu.title, gpu.kubernetes_product, *gpu.aliases)):
            with_vendor = text if "amd" in text.lower() else f"NVIDIA {text}"
            for spelling in (text.lower(), text.upper(), with_vendor):
                for separator in " -_":
                    written = re.sub("[ _-]", separator, spelling)
                    assert load_gpu(written).name == name, written


def test_the_spellings_of_one_card_are_one_card():
    for name in [
        "RTX 4090",
        "geforce rtx 4090",
        "rtx4090",
        "4090",
        "rtx_4090",
        "RTX 4090 GPU",
        "4090-24G",
    ]:
        assert load_gpu(name).name == "rtx-4090", name


def test_no_two_cards_share_a_spelling():
    owners: dict[str, set[str]] = {}
    for name in list_gpus():
        gpu = load_gpu(name)
        for spelling in (name, gpu.title, gpu.kubernetes_product, *gpu.aliases):
            owners.setdefault(spelling.lower(), set()).add(name)
    owners.pop("", None)
    assert [spelling for spelling, names in owners.items() if len(names) > 1] == []


GIB_IN_LOGS = [
    # "total_gpu_memory (… GiB)" and "Free memory on device (…/… GiB)" of public vLLM logs, 2025 and 2026
    ("rtx-pro-6000", 95.01),
    ("a100-40gb", 39.49),
    ("a100-80gb", 79.25),
    ("l4", 22.03),
    ("l40s", 44.42),
    ("b200", 178.35),
    ("b300", 267.69),
    ("gb200", 184.31),
    ("gb300", 276.62),
    ("gb10", 121.69),
    ("mi300x", 191.98),
    ("rtx-3090", 23.56),
    ("rtx-4090", 23.52),
    ("rtx-5090", 31.36),
    ("l20", 44.52),
    ("a10", 22.07),
    ("v100-16gb", 15.77),
    ("v100-32gb", 31.74),  # ChatGLM-Finetuning issue 73
    ("a800", 79.33),  # PB-LLM issue 3
    ("h20", 95.00),  # DiffSynth-Studio issue 1238
    ("h100", 79.19),
    ("h200", 139.80),
    ("rtx-4090-d", 23.52),
    ("jetson-agx-orin", 61.37),
    ("jetson-thor", 122.82),
]


def test_a_card_has_the_memory_that_logs_print():
    for name, gib in GIB_IN_LOGS:
        assert load_gpu(name).engine_gib == pytest.approx(gib, abs=0.01), name


def test_formats_follow_the_generation():
    """FP8 units from Ada (8.9), CDNA 3 and RDNA 4 on, and in Gaudi; FP4 units from Blackwell (10.0) and CDNA 4 on (vendors' datasheets)."""
    for gpu in map(load_gpu, list_gpus()):
        other_with_fp8 = gpu.compute_capability in (
            "gfx942",
            "gfx950",
            "gfx1201",
            "gaudi2",
            "gaudi3",
        )
        has_fp8 = 8.9 <= gpu.capability < 100
        assert bool(gpu.fp8_tflops) == (has_fp8 or other_with_fp8), gpu.name
        has_fp4 = 10 <= gpu.capability < 100 or gpu.compute_capability == "gfx950"
        assert bool(gpu.fp4_tflops) == has_fp4, gpu.name


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

    assert ms("gpt-oss-20b", "h100") == pytest.approx(ms("gpt-oss-20b", "h200"))
    assert ms("qwen3-30b-a3b", "h100") == pytest.approx(
        ms("qwen3-30b-a3b", "h200") * 4.8 / 3.35, rel=0.01
    )


def test_measured_is_said_of_cards_that_were_measured_alone():
    """docs/accuracy.md: every recorded run is of an H100 SXM or an H200 SXM. Hopper is compute capability 9.0 (NVIDIA)."""
    for name in list_gpus():
        says = plan("llama-3.2-1b", name, tensor_parallel_size=1, max_model_len=2048).basis
        if name in ("h100", "h200"):
            assert says == "measured here", name
        elif load_gpu(name).compute_capability == "9.0":
            assert says == "same generation", name
        else:
            assert says == "never measured", name


def test_unified_memory_is_never_all_free():
    """llamastash issue 80: with another tenant resident, 0.28 does not start on a GB10 at its default utilization."""
    assert "--free-gib" in plan("llama-3.2-1b", "gb10", max_model_len=2048).reasons[0]
    half = plan("llama-3.2-1b", "gb10", free_gib=52, max_model_len=2048)
    assert (
        half.fits and half.deployment.settings.gpu_memory_utilization == 0.42
    )  # (52 - 0.6) / 121.69


def test_a_card_of_another_size_was_not_measured():
    def basis(gpu: str | None, **memory: float) -> str:
        return plan("llama-3.1-8b", gpu, max_model_len=2048, **memory).basis

    assert basis("h100", gpu_memory_gib=64) == "same generation"
    assert basis(None, gpu_memory_gib=80) == "never measured"
    assert basis("h100", free_gib=60) == "measured here"


# nvidia-smi mig -lgip: GiB and multiprocessors of a profile, in the MIG user guide and public logs
PROFILES = {
    "a100-40gb-mig-4g.20gb": (19.62, 56),
    "a100-80gb-mig-7g.80gb": (79.0, 98),
    "a30-mig-2g.12gb": (11.69, 28),
    "gh200-mig-3g.48gb": (46.5, 60),
    "h100-mig-1g.20gb": (19.62, 26),
    "h100-nvl-mig-3g.47gb": (46.12, 60),
    "h200-mig-1g.18gb": (16.0, 16),
    "rtx-pro-6000-mig-2g.48gb": (47.38, 94),
}


def test_slices_have_the_published_memory_and_their_share_of_the_card():
    for name, (gib, multiprocessors) in PROFILES.items():
        part, whole = load_gpu(name), load_gpu(name.partition("-mig-")[0])
        assert part.engine_gib == pytest.approx(gib, abs=0.01), name
        assert part.sm_count == multiprocessors and part.is_slice, name
        assert part.bf16_tflops == pytest.approx(
            whole.bf16_tflops * multiprocessors / whole.sm_count
        ), name
        assert load_gpu(f"{name}+me") == part, name
        assert part.compute_capability == whole.compute_capability, name


def test_a_slice_whose_memory_is_not_published_has_no_more_than_its_share():
    for name in ("b200-mig-1g.23gb", "b200-mig-3g.90gb", "h200-mig-3g.71gb"):
        part, whole = load_gpu(name), load_gpu(name.partition("-mig-")[0])
        share = part.bandwidth_gb_s / whole.bandwidth_gb_s
        assert 0.9 < part.engine_gib / (share * whole.engine_gib) < 0.92, name


def test_an_unnamed_card_as_large_as_a_gb10_is_taken_to_share_its_memory():
    """121.69 GiB of a GB10, 122.82 of a Thor: no card with a memory of its own has as much."""
    for gib in (121.69, 122.82, 61.37):
        shared = plan("llama-3.1-8b", gpu_memory_gib=gib, max_model_len=8192)
        assert "0.95" not in " ".join(shared.advice), gib
        assert shared.deployment.gpu.unified_memory, gib
    for gib in (23.52, 79.19, 139.8):
        assert not plan(
            "llama-3.1-8b", gpu_memory_gib=gib, max_model_len=8192
        ).deployment.gpu.unified_memory, gib
