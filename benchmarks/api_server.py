"""Ask a real API server whether it takes the manifests: `kubectl apply --dry-run=server`, with no cluster behind it.

python benchmarks/api_server.py --bin FOLDER     # with etcd and kube-apiserver in it

It starts etcd and kube-apiserver on this machine, and applies each overlay, on OpenShift, with the guard's image and with
each component. The API server checks what its release knows: fields, names, immutability, quantities. It gets a definition
of each other kind (LeaderWorkerSet, PodMonitor, …) that takes any field; the pods inside are tried as Pods. A manifest
with a mistake must be refused, or the server checks nothing. No scheduler, no kubelet: no pod starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from workshop.engine.exact import plan
from workshop.servers import kubernetes
from workshop.servers.kubernetes import COMPONENTS, Options

TOKEN = "of-this-run"
START_S = 120.0
IMAGE = "registry.example.org/vllm-workshop:v0.32.0"
ROUTE = {"http_route": "llm.example.org", "gateway": "edge/public"}
VARIANTS = {
    "vLLM's own image": Options(),
    "guard": Options(guard_image=IMAGE),
    "OpenShift": Options(openshift=True),
    "claim": Options(claim="shared-models", model_path="team/my-llama"),
    "ingress": Options(ingress="llm.example.org", replicas=2, queue="gpus", rdma="rdma/ib"),
    "route": Options(**ROUTE, pull_secret="registry", priority_class="course"),
}
# A server with what the component changes, where a plain one has nothing of it.
NEEDED = {"gke-gateway": Options(**ROUTE), "ingress-nginx": Options(ingress="llm.example.org")}


def definition(group: str, version: str, kind: str) -> dict:
    """Return a CustomResourceDefinition that takes any field."""
    plural = f"{kind.lower().removesuffix('y')}ies" if kind.endswith("y") else f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # groups of Kubernetes itself want to be approved
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def documents() -> Iterator[tuple[str, list[dict]]]:
    """Yield each case's name and its documents, as kubectl's own kustomize makes them."""
    plans = {
        "one node": plan("mistral-7b", "t4", gpus_per_node=2, dtype="half", usage="serve"),
        "two nodes": plan("llama-3.1-405b", "h100", gpus_per_node=8, nodes=2, max_model_len=32768),
    }
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for nodes, made in plans.items():
            for variant, options in VARIANTS.items():
                yield f"{nodes}, {variant}", kubernetes.manifests(made, options)
        for component in [*COMPONENTS, "openshift"]:
            options = replace(NEEDED.get(component, Options()), name="server")
            kubernetes.write(plans["one node"], tree, options)
            own = {
                "namespace": "physics",
                "resources": ["../overlays/server"],
                "components": [f"../components/{component}"],
            }
            (tree / "own").mkdir(exist_ok=True)
            (tree / "own/kustomization.yaml").write_text(yaml.safe_dump(own))
            done = subprocess.run(
                ["kubectl", "kustomize", tree / "own"], capture_output=True, text=True, check=True
            )
            yield f"component {component}", list(yaml.safe_load_all(done.stdout))


def pods_inside(docs: list[dict]) -> list[dict]:
    """Return a Pod of each template of a LeaderWorkerSet, which the server cannot look into."""
    pods = []
    for doc in docs:
        parts = doc.get("spec", {}).get("leaderWorkerTemplate", {})
        for name in ("leaderTemplate", "workerTemplate"):
            if name in parts:
                metadata = {**parts[name]["metadata"], "name": name.lower()}
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
                pods.append({**pod, "spec": parts[name]["spec"]})
    return pods


class ApiServer:
    """etcd and kube-apiserver of a folder, until the end of a `with`; `apply` asks it."""

    def __init__(self, folder: Path, binaries: Path):
        self.folder, self.binaries = folder, binaries
        self.port, self.etcd, peer = (free_port() for _ in range(3))
        self.commands = [
            [
                binaries / "etcd",
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls=http://127.0.0.1:{self.etcd}",
                f"--advertise-client-urls=http://127.0.0.1:{self.etcd}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
            ],
            [
                binaries / "kube-apiserver",
                f"--etcd-servers=http://127.0.0.1:{self.etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--cert-dir={folder / 'certificates'}",
                f"--token-auth-file={folder / 'tokens'}",
                "--authorization-mode=AlwaysAllow",
                "--service-account-issuer=https://localhost",
                f"--service-account-key-file={folder / 'key'}",
                f"--service-account-signing-key-file={folder / 'key'}",
                "--service-cluster-ip-range=10.0.0.0/24",
                # No controller makes the account and the class that they ask for.
                "--disable-admission-plugins=ServiceAccount,Priority",
            ],
        ]

    def __enter__(self) -> ApiServer:
        (self.folder / "tokens").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        key = ["openssl", "genrsa", "-out", self.folder / "key", "2048"]
        subprocess.run(key, check=True, capture_output=True)
        self.running = []
        for command in self.commands:
            log = (self.folder / f"{Path(command[0]).name}.log").open("w")
            self.running.append(subprocess.Popen(command, stdout=log, stderr=log))
        until = time.monotonic() + START_S
        while self.kubectl("get", "--raw=/readyz").returncode:
            if time.monotonic() > until or any(
                process.poll() is not None for process in self.running
            ):
                raise SystemExit((self.folder / "kube-apiserver.log").read_text()[-3000:])
            time.sleep(1)
        return self

    def __exit__(self, *error: object) -> None:
        for process in reversed(self.running):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)

    def kubectl(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess:
        """Run kubectl against this server."""
        server = ["--insecure-skip-tls-verify", f"--server=https://127.0.0.1:{self.port}"]
        return subprocess.run(
            ["kubectl", *server, f"--token={TOKEN}", *arguments],
            input=text,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
        )

    def apply(self, docs: list[dict], *options: str) -> list[str]:
        """Return what the server refuses of some documents, a line each."""
        text = yaml.safe_dump_all(docs)
        done = self.kubectl("apply", "--filename=-", "--validate=true", *options, text=text)
        return done.stderr.strip().splitlines() if done.returncode else []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def definitions(cases: dict[str, list[dict]], own: set[str]) -> list[dict]:
    """Return the definitions of the kinds that a server does not have of itself."""
    kinds = {(doc["apiVersion"], doc["kind"]) for docs in cases.values() for doc in docs}
    made = []
    for api, kind in sorted(kinds):
        group, _, version = api.rpartition("/")
        if group and api not in own:
            made.append(definition(group, version, kind))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="a folder with both programs")
    binaries = parser.parse_args().bin.resolve()
    if not shutil.which("kubectl"):
        parser.error("kubectl is missing: install it first")
    cases = dict(documents())
    refused = 0
    with tempfile.TemporaryDirectory() as name, ApiServer(Path(name), binaries) as server:
        own = set(server.kubectl("api-versions").stdout.split())
        version = json.loads(server.kubectl("get", "--raw=/version").stdout)["gitVersion"]
        print(f"kube-apiserver {version}")
        extra = definitions(cases, own)
        problems = server.apply(extra)
        if problems:
            raise SystemExit("\n".join(problems))
        for resource in extra:
            name_of_kind = f"crd/{resource['metadata']['name']}"
            server.kubectl("wait", "--for=condition=established", name_of_kind)
        server.kubectl("create", "namespace", "physics")
        for case, docs in cases.items():
            problems = server.apply([*docs, *pods_inside(docs)], "--dry-run=server")
            refused += bool(problems)
            print(f"{'✗' if problems else '✓'} {case}: {len(docs)} documents")
            for problem in problems:
                print(f"    {problem}")
        spoiled = cases["one node, vLLM's own image"]
        spoiled[-1]["spec"]["template"]["spec"]["containers"][0]["livenessProbe"][
            "periodSeconds"
        ] = -1
        if not server.apply(spoiled, "--dry-run=server"):
            raise SystemExit("The server took a manifest with a mistake, so it checks nothing.")
        print("✓ a probe every -1 seconds is refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
