"""`workshop doctor` where kubectl is: what a cluster lacks for the manifests, by a kubectl that answers as told."""

from __future__ import annotations

import pytest

from workshop.lab import doctor
from workshop.lab.doctor import NOTE, OK


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A kubectl that knows the kinds named in a file, and nodes with these GPUs."""
    (tmp_path / "config").write_text("")
    (tmp_path / "known").write_text("")
    script = tmp_path / "bin" / "kubectl"
    script.parent.mkdir()
    script.write_text(f"""#!/bin/sh
[ -e {tmp_path}/down ] && {{ echo 'The connection to the server was refused' >&2; exit 1; }}
shift
case "$1 $2" in
    "get nodes") cat {tmp_path}/gpus 2>/dev/null ;;
    get*) grep -qx "$2" {tmp_path}/known || {{ echo "error: the server doesn't have a resource type" >&2; exit 1; }} ;;
esac
""")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return tmp_path


def checks() -> dict[str, tuple[str, str]]:
    return {check.name: (check.state, check.found + check.remedy) for check in doctor._kubernetes()}


def test_a_cluster_that_has_everything_is_well(cluster):
    (cluster / "known").write_text("\n".join(doctor.KUBERNETES_KINDS) + "\n")
    (cluster / "gpus").write_text("Tesla-T4\n\nTesla-T4\nNVIDIA-A10G\n")
    results = checks()
    assert {state for state, _ in results.values()} == {OK}
    assert results["GPU nodes"][1] == "NVIDIA-A10G, Tesla-T4"


def test_a_cluster_without_leader_worker_set_is_told_what_does_not_work_there(cluster):
    (cluster / "known").write_text("podmonitors.monitoring.coreos.com\n")
    results = checks()
    assert results["LeaderWorkerSet"][0] == NOTE
    assert "several nodes" in results["LeaderWorkerSet"][1]
    assert results["PodMonitor"][0] == OK
    assert results["GPU nodes"][0] == NOTE and "nodeSelector" in results["GPU nodes"][1]


def test_a_cluster_that_does_not_answer_is_one_line(cluster):
    (cluster / "down").write_text("")
    assert list(checks()) == ["Kubernetes"] and "refused" in checks()["Kubernetes"][1]


def test_without_kubectl_or_settings_there_is_nothing_to_say(cluster, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster / "missing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert checks() == {}
    monkeypatch.setenv("KUBECONFIG", str(cluster / "config"))
    monkeypatch.setenv("PATH", str(cluster))
    assert checks() == {}
