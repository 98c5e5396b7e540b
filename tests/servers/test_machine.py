"""What a session may use is what its cgroup leaves it, not what the machine has."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from workshop.errors import WorkshopError
from workshop.servers.host import machine

GIB = 2**30


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """Write files of /job and /job/step; this process is in the step, on a machine with 64 GiB left."""
    read_text = machine.Path.read_text

    def read(path, *args, **options):
        return (
            "0::/job/step\n"
            if str(path) == "/proc/self/cgroup"
            else read_text(path, *args, **options)
        )

    def write(**levels: dict[str, str]) -> None:
        for level, files in {"step": {}, **levels}.items():
            folder = tmp_path / {"job": "job", "step": "job/step"}[level]
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in {
                "cpu.max": "max 100000",
                "memory.max": "max",
                "memory.stat": "",
                **files,
            }.items():
                (folder / name).write_text(f"{text}\n")

    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine.Path, "read_text", read)
    monkeypatch.setattr(
        machine.psutil,
        "virtual_memory",
        lambda: SimpleNamespace(total=64 * GIB, available=64 * GIB),
    )
    return write


def memory(limit: int | str, used: int, stat: str = "") -> dict[str, str]:
    return {"memory.max": str(limit), "memory.current": str(used), "memory.stat": stat}


def test_a_session_of_one_cpu_and_four_gib_is_seen_as_such(cgroup):
    stat = f"inactive_file {GIB // 2}\nactive_file {GIB // 2}\nanon 1"
    cgroup(step={"cpu.max": "100000 100000", **memory(4 * GIB, 3 * GIB, stat)})
    assert machine.cpus() == 1.0
    assert machine.memory_limit_bytes() == 4 * GIB
    assert machine.memory_available_bytes() == 2 * GIB, "what files occupy can be given back"


def test_without_a_limit_the_machine_counts(cgroup):
    cgroup()
    assert machine.cpus() >= 1
    assert machine.memory_limit_bytes() == machine.memory_available_bytes() == 64 * GIB


def test_a_limit_of_a_level_above_counts_with_what_all_below_it_use(cgroup):
    """Kernel, cgroup-v2.rst: limits hold for the whole subtree; a login node's user.slice, a job with several steps."""
    cgroup(job=memory(8 * GIB, 7 * GIB), step=memory("max", GIB))
    assert machine.memory_limit_bytes() == 8 * GIB and machine.memory_available_bytes() == GIB


def test_of_limits_on_several_levels_the_least_counts(cgroup):
    cgroup(
        job={"cpu.max": "50000 100000", **memory(4 * GIB, 3 * GIB)}, step=memory(16 * GIB, 2 * GIB)
    )
    assert machine.memory_limit_bytes() == 4 * GIB and machine.memory_available_bytes() == GIB
    assert machine.cpus() == 0.5


def test_a_free_port_is_free_and_a_taken_one_is_passed_over():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        assert not machine.port_is_free("127.0.0.1", taken)
        assert machine.free_port("127.0.0.1", taken) != taken


def test_an_address_that_is_given_is_the_one_to_reach():
    for host in ["127.0.0.1", "10.1.2.3", "node07"]:
        assert machine.reachable_address(host) == host, host


def test_all_interfaces_are_reached_by_a_real_address():
    assert machine.reachable_address("0.0.0.0") not in ("0.0.0.0", "", None)


# --- a job on shared nodes


def test_two_jobs_on_a_node_take_different_ports():
    ports = [set(machine.job_ports(job, ["127.0.0.1"])) for job in (1000, 1001, 1002)]
    assert (
        not ports[0] & ports[1]
        and not ports[1] & ports[2]
        and all(len(job_ports) == 8 for job_ports in ports)
    )


def test_port_of_a_stranger_is_stepped_over():
    first = machine.job_ports(2000, ["127.0.0.1"])[0]
    with socket.create_server(("127.0.0.1", first)):
        assert machine.job_ports(2000, ["127.0.0.1"])[0] != first


def test_loopback_is_no_address_of_a_head(monkeypatch):
    with pytest.raises(WorkshopError, match=r"127\.0\.0\.1"):
        machine.own_address("lo")
    monkeypatch.setattr(machine, "interfaces", lambda: {"lo": "127.0.0.1"})
    with pytest.raises(WorkshopError, match="no address that other nodes reach"):
        machine.own_address("", "localhost")
    assert machine.towards("localhost") == ""
