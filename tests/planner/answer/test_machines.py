"""The catalog of cloud VMs, and which of them hold a model."""

from __future__ import annotations

import pytest
from inference_planner.answer import machines
from inference_planner.catalog import load_gpu

from workshop.errors import BadInput


def test_there_are_at_least_ten_machines_each_with_a_source_and_a_known_gpu():
    all_machines = machines.list_machines()
    assert len(all_machines) >= 10 and len({machine.provider for machine in all_machines}) >= 3
    for machine in all_machines:
        assert load_gpu(machine.gpu).name == machine.gpu
        assert machine.source and len(machine.date) == 10
        assert machine.gpus >= 1 and machine.vcpus >= 4 * machine.gpus and machine.memory_gib > 0


def test_the_machine_of_the_first_document_is_there():
    # learn.microsoft.com, NCads_H100_v5: 80 vCPU, 640 GB, 2 GPUs of 94 GB, temporary disk 7152 GiB
    machine = next(m for m in machines.list_machines() if m.name == "Standard_NC80adis_H100_v5")
    assert (machine.gpu, machine.gpus, machine.vcpus, machine.memory_gib) == (
        "h100-nvl",
        2,
        80,
        640,
    )
    assert machine.local_disk_gb == round(7152 * 2**30 / 1e9)


def fitting(model: str, **settings) -> set[str]:
    return {offer.machine.name for offer in machines.offers(model, **settings) if offer.fits}


def test_70b_fits_two_gpus_of_94_gb_and_no_t4s():
    names = fitting("llama-3.3-70b", max_model_len=32768)
    assert "Standard_NC80adis_H100_v5" in names  # 141 GB of weights in 2 × 93 GiB
    assert not names & {"g4dn.12xlarge", "Standard_NC64as_T4_v3"}  # 4 × 16 GB


def test_405b_in_16_bit_fits_where_there_is_a_terabyte_of_gpu_memory():
    # 812 GB of weights. GPU memory as the vendors give it, in GB: 8 × 141 H200, 4 × 288 GB300, 8 × 180 B200,
    # 8 × 192 MI300X, 8 × 288 B300. Not 8 × 80 H100 (640), 4 × 186 GB200 (744), 8 × 96 RTX PRO 6000 (768).
    assert fitting("llama-3.1-405b", max_model_len=16384) == {
        "p5en.48xlarge",
        "Standard_ND128isr_GB300_v6",
        "a4x-maxgpu-4g-metal",
        "a4-highgpu-8g",
        "p6-b200.48xlarge",
        "Standard_ND96isr_MI300X_v5",
        "p6-b300.48xlarge",
    }


def test_the_machines_of_each_provider_reach_this_years_gpus():
    # The providers' pages: AWS P6, Google A4, A4X and G4, Azure ND GB200 v6, GB300 v6 and MI300X v5.
    sizes = {m.name: (m.gpus, m.gpu, m.vcpus, m.memory_gib) for m in machines.list_machines()}
    assert sizes["p6-b200.48xlarge"] == (8, "b200", 192, 2048)
    assert sizes["p6-b300.48xlarge"] == (8, "b300", 192, 4096)
    assert sizes["p6e-gb200.36xlarge"] == (4, "gb200", 144, 960)
    assert sizes["a4-highgpu-8g"] == (8, "b200", 224, 3968)
    assert sizes["a4x-highgpu-4g"] == (4, "gb200", 140, 884)
    assert sizes["g4-standard-384"] == (8, "rtx-pro-6000", 384, 1440)
    assert sizes["Standard_ND128isr_NDR_GB200_v6"] == (4, "gb200", 128, 900)
    assert sizes["Standard_ND128isr_GB300_v6"] == (4, "gb300", 128, 864)
    assert sizes["Standard_ND96isr_MI300X_v5"] == (8, "mi300x", 96, 1850)


def test_the_machines_are_listed_by_their_gpu_memory():
    gpu_memory_gb = [m.gpus * load_gpu(m.gpu).marketing_gb for m in machines.list_machines()]
    assert gpu_memory_gb == sorted(gpu_memory_gb)


def test_what_does_not_fit_says_what_would_and_comes_last():
    offers = machines.offers("llama-3.1-405b")
    assert [offer.fits for offer in offers] == sorted(
        (offer.fits for offer in offers), reverse=True
    )
    assert all(offer.why for offer in offers)
    assert any("fp8" in offer.why for offer in offers if not offer.fits)


def test_a_gpu_that_cannot_run_the_weights_is_named_not_counted():
    t4 = next(offer for offer in machines.offers("gpt-oss-20b") if offer.machine.gpu == "t4")
    assert t4.plan is None and "mxfp4" in t4.why


def test_disks_are_counted_in_the_vendors_unit():
    assert "141.1 GB" in machines.disk_problem("llama-3.3-70b", 120)
    assert machines.disk_problem("llama-3.3-70b", 142)  # no room is left beside them
    assert machines.disk_problem("llama-3.3-70b", 150) == ""


def test_unknown_names_are_refused():
    with pytest.raises(BadInput, match="not in the catalog"):
        machines.offers("llama-9")
    with pytest.raises(BadInput, match="dtype"):
        machines.offers("llama-3.1-8b", dtype="float12")
    with pytest.raises(BadInput, match="no argument 'max_modellen'"):
        machines.offers("llama-3.1-8b", max_modellen=8192)


def test_the_sizes_that_were_asked_for_are_those_of_the_plans():
    offers = machines.offers("llama-3.1-8b", tensor_parallel_size=4)
    assert {offer.plan.tensor_parallel_size for offer in offers if offer.fits} == {4}
    assert all(not offer.fits for offer in offers if offer.machine.gpus < 4)


def test_all_settings_but_those_of_the_hardware_are_those_of_the_plans():
    settings = {
        "enable_lora": True,
        "max_lora_rank": 64,
        "spec_method": "ngram",
        "spec_tokens": 3,
        "hf_overrides": {"rope_theta": 1e6},
        "compilation_config": {"mode": 0},
    }
    offers = machines.offers("llama-3.1-8b", nodes=2, gpus_per_node=1, **settings)
    commands = [offer.plan.command for offer in offers if offer.fits]
    flags = ("--max-lora-rank 64", "--speculative-config", "--hf-overrides", "--compilation-config")
    assert commands
    for command in commands:
        assert all(flag in command for flag in flags) and "--nnodes" not in command
