"""Nothing listens where other machines could reach it, though the host's name resolves to an address of its network.

The servers run in a network namespace of their own, so that every port in it is theirs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
from needs import lacking

from workshop.vllm_package import installed

ADDRESS = "10.9.8.7"
NAMESPACE = f"""
set -e
hostname badhost
printf '127.0.0.1 localhost\\n{ADDRESS} badhost\\n' >"$1/hosts"
mount --bind "$1/hosts" /etc/hosts
mount -t tmpfs none /dev/shm
ip link set lo up
ip link add veth0 type veth peer name veth1
ip address add {ADDRESS}/24 dev veth0
ip link set veth0 up
ip link set veth1 up
ip route add default via 10.9.8.1
shift
exec "$@"
"""


@pytest.fixture
def namespace():
    """Run Python code in a new namespace, with a short TMPDIR and a private /dev/shm; return what it prints as JSON."""
    if (
        not shutil.which("ip")
        or subprocess.run(["unshare", "-rnmu", "true"], capture_output=True).returncode
    ):
        lacking("network namespaces: iproute2, and a kernel that lets this user make one")
    folder = tempfile.mkdtemp(prefix="ns")

    def run(code: str, **environment: str):
        done = subprocess.run(
            ["unshare", "-rnmu", "sh", "-c", NAMESPACE, "sh", folder, sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=400,
            env={**os.environ, "TMPDIR": folder, **environment},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    yield run
    shutil.rmtree(folder)


LISTENING = """
import json, os, psutil, socket, sys, time
def listening():
    return sorted({each.laddr.ip for each in psutil.net_connections("inet")
                   if each.status == psutil.CONN_LISTEN or each.type == socket.SOCK_DGRAM and not each.raddr})
"""


def test_the_namespace_shows_a_port_that_others_reach(namespace):
    addresses = namespace(
        LISTENING
        + """
with socket.create_server((socket.gethostname(), 0)):
    print(json.dumps(listening()))"""
    )
    assert addresses == [ADDRESS], (
        "a host's name that resolves to the network: the case of these tests"
    )


@pytest.mark.starts
def test_a_server_listens_on_loopback_alone_and_killed_it_leaves_nothing(namespace, tmp_path):
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    report = namespace(
        LISTENING
        + """
import signal
from pathlib import Path
from workshop.servers import local, records
from workshop.servers.local import supervise
record = supervise.start(local.prepare())
home = Path(os.environ["TMPDIR"])
folders = [folder for folder in home.iterdir() if folder.name.startswith("workshop-")]
found = {"listening": listening(), "ports": len([each for each in psutil.net_connections("inet") if not each.raddr]),
         "folders": [oct(folder.stat().st_mode & 0o777) for folder in folders],
         "sockets": len([each for folder in folders for each in folder.iterdir() if each.is_socket()]),
         "outside": [str(each) for each in home.iterdir() if each.is_socket()]}
os.killpg(record.pid, signal.SIGKILL)
deadline = time.monotonic() + 60
while records.read(record.name).state != "failed" or any(folder.exists() for folder in folders):
    assert time.monotonic() < deadline, "the watcher writes the end down, and tidies up"
    time.sleep(0.1)
print(json.dumps({**found, "left": [each.name for each in home.iterdir() if each.name != "hosts"],
                  "left_memory": os.listdir("/dev/shm")}))""",
        WORKSHOP_HOME=str(tmp_path / "home"),
        VLLM_HOST_IP=ADDRESS,
    )
    assert report["listening"] == ["127.0.0.1"] and report["ports"] > 10
    assert report["folders"] == ["0o700"] and report["sockets"] >= 3 and report["outside"] == []
    assert (report["left"], report["left_memory"]) == ([], [])


@pytest.mark.starts
def test_jupyterlab_and_its_kernels_listen_on_loopback_alone(namespace, tmp_path):
    addresses = namespace(
        LISTENING
        + """
from pathlib import Path
from urllib.request import Request, urlopen
from workshop.lab import session
from workshop.servers.local import supervise
jupyter = session.start_jupyter(Path(os.environ["WORKSHOP_HOME"]).parent)
try:
    session.wait_for_jupyter(jupyter)
    address, _, token = jupyter.url.partition("/lab/tree/")
    token = token.partition("token=")[2]
    kernel = json.load(urlopen(Request(f"{address}/api/kernels?token={token}", data=b"{}", method="POST")))
    deadline = time.monotonic() + 60
    while len([each for each in psutil.net_connections("inet") if each.status == psutil.CONN_LISTEN]) < 6:
        assert time.monotonic() < deadline, "JupyterLab's port and the kernel's five"
        time.sleep(0.1)
    print(json.dumps(listening()))
finally:
    supervise.end(jupyter.process)""",
        WORKSHOP_HOME=str(tmp_path / "home"),
    )
    assert addresses == ["127.0.0.1"]


def test_torchs_stores_listen_where_they_are_told():
    code = """
import psutil, socket
from datetime import timedelta
from workshop.workarounds import loopback_tcp_store
loopback_tcp_store.apply()
from torch.distributed import TCPStore, rendezvous
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
store, _, _ = next(rendezvous(f"tcp://127.0.0.1:{port}", rank=0, world_size=1))
again = TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=5), multi_tenant=True)
chosen = TCPStore(host_name="localhost", port=0, is_master=True, world_size=-1, wait_for_workers=False)
store.set("a", "1"), chosen.set("a", "2")
client = TCPStore("127.0.0.1", chosen.port, is_master=False)
assert client.get("a") == b"2"
print(sorted({each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == "LISTEN"}))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "['127.0.0.1']", done.stderr
