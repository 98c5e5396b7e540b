"""What a session may use is what its cgroup leaves it, not what the machine has."""

from __future__ import annotations

import socket

import psutil
import pytest

from workshop.errors import WorkshopError
from workshop.launch import machine


@pytest.fixture
def cgroup(monkeypatch):
    files: dict[str, str] = {}
    monkeypatch.setattr(machine, "_cgroup_text", lambda name: files.get(name, ""))
    return files


def test_a_session_of_one_cpu_and_four_gib_is_seen_as_such(cgroup):
    cgroup.update(
        {
            "cpu.max": "100000 100000",
            "memory.max": str(4 * 2**30),
            "memory.current": str(3 * 2**30),
            "memory.stat": f"inactive_file {2**29}\nactive_file {2**29}\nanon 1",
        }
    )
    assert machine.cpus() == 1.0
    assert machine.memory_limit_bytes() == 4 * 2**30
    assert machine.memory_available_bytes() <= 2 * 2**30, "what files occupy can be given back"


def test_without_a_limit_the_machine_counts(cgroup):
    cgroup.update({"cpu.max": "max 100000"})
    assert machine.cpus() >= 1
    assert machine.memory_limit_bytes() == psutil.virtual_memory().total


def test_a_limit_of_a_level_above_is_found(tmp_path, monkeypatch):
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "job" / "memory.max").write_text("4294967296\n")
    (tmp_path / "job" / "step" / "memory.max").write_text("max\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine.Path, "read_text", _with_cgroup(machine.Path.read_text, "0::/job/step\n"))
    assert machine._cgroup_text("memory.max") == "4294967296"


def _with_cgroup(original, text):
    return lambda self, *args, **options: text if str(self) == "/proc/self/cgroup" else original(self, *args, **options)


def test_a_free_port_is_free_and_a_taken_one_is_passed_over():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        assert not machine.port_is_free("127.0.0.1", taken)
        assert machine.free_port("127.0.0.1", taken) != taken


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "node07"])
def test_an_address_that_is_given_is_the_one_to_reach(host):
    assert machine.reachable_address(host) == host


def test_all_interfaces_are_reached_by_a_real_address():
    assert machine.reachable_address("0.0.0.0") not in ("0.0.0.0", "", None)


# --- a job on shared nodes


def test_two_jobs_on_a_node_take_different_ports():
    ports = [set(machine.job_ports(job, ["127.0.0.1"])) for job in (1000, 1001, 1002)]
    assert not ports[0] & ports[1] and not ports[1] & ports[2] and all(len(each) == 8 for each in ports)


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
