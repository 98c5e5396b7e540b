"""What runs inside the pods: downloads go on, waits end, the probe sees workers; with the ConfigMap's files alone."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import inference_planner
import pytest
from hub_server import HUB_ID, FakeHub, model, point_to

from workshop.engine.exact import plan
from workshop.errors import WorkshopError
from workshop.home import cannot_write
from workshop.servers import kubernetes
from workshop.servers.kubernetes import code, pod
from workshop.servers.weights import hub as prefetch_hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    served = FakeHub(HUB_ID, model())
    point_to(served, monkeypatch, tmp_path)
    yield served
    served.close()


def test_a_download_leaves_the_mark_only_when_all_is_whole(hub, tmp_path):
    folder = tmp_path / "models" / "Tiny-Llama"
    assert pod.main(["download", HUB_ID, str(folder)]) == 0
    mark = json.loads((folder / pod.WHOLE).read_text())
    assert (mark["model"], mark["shards"]) == (HUB_ID, 2)
    pod.wait(folder)


def test_a_break_leaves_no_mark_and_the_next_try_goes_on(hub, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "Tiny-Llama"
    hub.cut = 100_000
    assert pod.main(["download", HUB_ID, str(folder)]) == 1
    assert not (folder / pod.WHOLE).exists() and "[workshop]" in capsys.readouterr().out
    hub.cut, hub.ranges[:] = 0, []
    assert pod.main(["download", HUB_ID, str(folder)]) == 0
    assert any(hub.ranges), "the second try asked for the rest"


def test_a_whole_model_is_only_checked(hub, tmp_path, capsys):
    folder = tmp_path / "Tiny-Llama"
    pod.main(["download", HUB_ID, str(folder)])
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert pod.main(["download", HUB_ID, str(folder)]) == 0
    assert "already" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_gated_model_without_a_token_says_what_to_do(hub, tmp_path, capsys):
    hub.gated = "secret-token"
    assert pod.main(["download", HUB_ID, str(tmp_path / "x")]) == 1
    assert "Secret hf-token" in capsys.readouterr().out


def test_a_volume_that_is_too_small_is_refused_before_the_first_byte(
    hub, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("workshop.servers.weights.prefetch.left_bytes", lambda path: 1_000_000)
    assert pod.main(["download", HUB_ID, str(tmp_path / "x")]) == 1
    assert "free" in capsys.readouterr().out and not list(tmp_path.rglob("*.part"))


NOT_IN_A_POD = (
    "slurm",
    "WORKSHOP_MODELS",
    "--to",
    "workshop prefetch",
    "login or transfer node",
    "WORKSHOP_HOME",
)


@contextlib.contextmanager
def as_the_pods_user():
    """Be the pod's user for a while. Root may do everything, so root becomes user 2000; others stay who they are."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(2000)
    try:
        yield os.geteuid()
    finally:
        os.seteuid(user)


@pytest.fixture
def open_path():
    """A folder that every user can reach: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="volume-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("there", [False, True], ids=["a new volume", "files of another user"])
def test_a_volume_that_ignores_fsgroup_gets_the_pods_remedy(hub, open_path, capsys, there):
    folder = open_path / "Tiny-Llama"
    if there:
        folder.mkdir()
    place = folder if there else open_path
    place.chmod(0o555)
    with as_the_pods_user() as user:
        code = pod.main(["download", HUB_ID, str(folder)])
    place.chmod(0o755)
    assert code == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert f"User {user} " in line
    assert f"may not write to {place} (Permission denied): it belongs to user {os.getuid()}" in line
    assert "mode 555" in line and "fsGroup" in line and "volume-owner" in line
    assert not [word for word in NOT_IN_A_POD if word in line]
    assert not hub.tokens, "the Hub is not asked for what cannot be written"


def test_a_server_that_may_not_read_the_volume_says_so(open_path, capsys):
    folder = open_path / "models"
    (folder / "Tiny-Llama").mkdir(parents=True)
    folder.chmod(0o000)
    with as_the_pods_user() as user:
        code = pod.main(["wait", str(folder / "Tiny-Llama")])
    folder.chmod(0o755)
    assert code == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert f"User {user} " in line and "may not read" in line and "volume-owner" in line


def unreachable(hub, monkeypatch):
    hub.cut = 100_000


def a_page(hub, monkeypatch):
    hub.page = "<html>Log in</html>"


def gated(hub, monkeypatch):
    hub.gated = "secret-token"


def an_odd_token(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_a b")


def too_small(hub, monkeypatch):
    monkeypatch.setattr("workshop.servers.weights.prefetch.left_bytes", lambda path: 1_000_000)


def full(hub, monkeypatch):
    def fetch(remote, folder, token):
        raise cannot_write(
            folder, OSError(errno.ENOSPC, "No space left on device"), prefetch_hub.ROOM
        )

    monkeypatch.setattr("workshop.servers.weights.hub.fetch", fetch)


def read_only(hub, monkeypatch):
    def temporary(dir):
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr("workshop.servers.kubernetes.pod.tempfile.TemporaryFile", temporary)


@pytest.mark.parametrize(
    ("trouble", "remedy"),
    [
        (unreachable, "NetworkPolicy"),
        (a_page, "HTTPS_PROXY"),
        (gated, "Secret hf-token"),
        (an_odd_token, "Secret hf-token"),
        (too_small, "--pvc-size"),
        (full, "--pvc-size"),
        (read_only, "Read-only file system"),
    ],
)
def test_each_trouble_of_a_download_gets_a_remedy_of_kubernetes(
    hub, tmp_path, capsys, monkeypatch, trouble, remedy
):
    trouble(hub, monkeypatch)
    assert pod.main(["download", HUB_ID, str(tmp_path / "Tiny-Llama")]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert remedy in line
    assert not [word for word in NOT_IN_A_POD if word in line]


def test_an_unknown_model_gets_a_remedy_of_kubernetes(hub, tmp_path, capsys):
    assert pod.main(["download", "lab/Another", str(tmp_path / "Another")]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert "spelling" in line and "Secret hf-token" in line
    assert not [word for word in NOT_IN_A_POD if word in line]


def test_a_damaged_index_gets_a_remedy_of_kubernetes(tmp_path, capsys):
    (tmp_path / pod.WHOLE).write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert pod.main(["wait", str(tmp_path)]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert "delete the Job" in line
    assert not [word for word in NOT_IN_A_POD if word in line]


def test_waiting_ends_when_the_mark_appears(tmp_path, capsys):
    threading.Timer(0.3, lambda: (tmp_path / pod.WHOLE).write_text("{}")).start()
    began = time.monotonic()
    pod.wait(tmp_path, ask_every_s=0.02)
    assert 0.2 < time.monotonic() - began < 5
    assert "waiting" in capsys.readouterr().out


def test_a_mark_without_its_shards_is_no_model(tmp_path):
    (tmp_path / pod.WHOLE).write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00001.safetensors"}}'
    )
    with pytest.raises(WorkshopError, match="model-00001"):
        pod.wait(tmp_path)


def test_the_probe_counts_workers_that_live_and_have_met_the_others(monkeypatch):
    seen = [
        (["VLLM::Worker_PP1_TP0", ""], "sleeping"),
        (["VLLM::Worker_PP1_TP1", ""], "running"),
        (["/usr/bin/python3", "/usr/bin/vllm", "serve"], "sleeping"),
        (["VLLM::Worker"], "sleeping"),  # has not joined its groups yet
        (["VLLM::Worker_PP1_TP2"], "zombie"),  # dead, not yet buried
        ([], "sleeping"),  # the kernel's own
        (None, "sleeping"),  # another user's
    ]
    processes = [
        SimpleNamespace(info={"cmdline": command_line, "status": status})
        for command_line, status in seen
    ]
    monkeypatch.setattr("psutil.process_iter", lambda attrs: processes)
    pod.workers(2)
    with pytest.raises(WorkshopError, match="2 of 3"):
        pod.workers(3)


def test_the_probe_reads_the_title_that_setproctitle_writes(tmp_path):
    pytest.importorskip("setproctitle")  # vLLM brings it
    title = "import setproctitle, time; setproctitle.setproctitle('VLLM::Worker_TP7'); print(flush=True); time.sleep(60)"
    worker = subprocess.Popen([sys.executable, "-c", title], stdout=subprocess.PIPE)
    try:
        worker.stdout.readline()
        pod.workers(1)
    finally:
        worker.kill()
        worker.wait()


def test_the_config_maps_files_alone_run_download_wait_and_guard(hub, tmp_path):
    for key, text in code.config_map().items():
        path = tmp_path / "code" / (key.removesuffix(".py").replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "key").write_text("right\n")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path / "code"),
        "HF_ENDPOINT": hub.url,
        "HOME": str(tmp_path),
        "WORKSHOP_API_KEY_FILE": str(tmp_path / "key"),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    folder = str(tmp_path / "models" / "Tiny-Llama")
    for command in (("download", HUB_ID, folder), ("wait", folder)):
        done = run("-m", "workshop.servers.kubernetes.pod", *command)
        assert done.returncode == 0, done.stdout + done.stderr
    # others may run here, not so many
    assert run("-m", "workshop.servers.kubernetes.pod", "workers", "9999").returncode == 1
    done = run("-c", "import workshop.guard.auth as a; print(a.__file__); a.RequireKey(None)")
    assert done.returncode == 0 and str(tmp_path) in done.stdout, done.stderr


def test_whatever_the_pods_modules_import_comes_with_them():
    """Only a class's keys need more, and a pod has one key alone."""
    files = {name.replace("/", "."): source_of(name) for name in code.MODULES}
    for name, path in files.items():
        if name.endswith("__init__"):
            continue  # empty in the pod
        for imported in imports(path):
            assert imported in files or f"{imported}.__init__" in files, (
                f"{name} imports {imported}"
            )


HOLDERS = {
    "workshop": Path(pod.__file__).parents[3],
    "inference_planner": Path(inference_planner.__file__).parents[1],
}


def source_of(name: str) -> Path:
    """Return the file of a module such as "workshop/servers/kubernetes/pod"."""
    return HOLDERS[name.partition("/")[0]] / f"{name}.py"


def imports(path: Path) -> set[str]:
    """Return the workshop's modules that a file imports as soon as it is imported itself."""
    modules = set()
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import):
            modules |= {alias.name for alias in statement.names}
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                module = f"{statement.module}.{alias.name}"
                holder = HOLDERS.get(module.partition(".")[0])
                is_module = (
                    holder is not None and (holder / f"{module.replace('.', '/')}.py").exists()
                )
                modules.add(module if is_module else str(statement.module))
    return {name for name in modules if name.startswith(("workshop.", "inference_planner."))}


def test_no_python_of_a_pod_takes_modules_from_where_it_starts(hub, tmp_path):
    """Download, wait and probe, with their words and variables as rendered, in a folder of somebody else's modules."""
    plan_of_a_group = {
        "gpus_per_node": 2,
        "nodes": 2,
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
    }
    docs = kubernetes.manifests(
        plan("llama-3.1-70b", "h100", max_model_len=8192, **plan_of_a_group)
    )
    spoilt, modules, planted = tmp_path / "spoilt", tmp_path / "code", tmp_path / "planted"
    spoilt.mkdir()
    for name in ("json", "psutil", "httpx", "workshop", "sitecustomize", "typing", "ssl"):
        (spoilt / f"{name}.py").write_text(f"open({str(planted)!r}, 'w')\n")
    for key, text in code.config_map().items():
        path = modules / (key.removesuffix(".py").replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    starts = python_starts(docs)
    assert {command[3] for command, _ in starts} == {"download", "wait", "workers", "works"}
    for command, variables in starts:
        variables |= {
            "PYTHONPATH": str(modules),
            "HF_ENDPOINT": hub.url,
            "PATH": os.environ["PATH"],
        }
        arguments = [sys.executable, *command[1:]]
        if command[3] == "works":
            arguments[-1] = "1"  # nobody listens there
            key = tmp_path / "key"
            key.write_text("secret")
            variables["WORKSHOP_API_KEY_FILE"] = str(key)
        elif command[3] != "workers":
            arguments[-1] = str(tmp_path / "models" / "Tiny-Llama")
        if command[3] == "download":
            arguments[-2] = HUB_ID
        done = subprocess.run(
            arguments, env=variables, cwd=spoilt, capture_output=True, text=True, timeout=60
        )
        assert done.stderr == "" and "[workshop]" in done.stdout
        assert not planted.exists(), command


def python_starts(docs: list[dict]) -> list[tuple[list[str], dict[str, str]]]:
    """Return each command of Python in the manifests, of containers and of probes, with its variables, once."""
    starts = []
    for doc in docs:
        parts = doc["spec"].get("leaderWorkerTemplate", doc["spec"]) if "spec" in doc else {}
        for part in ("template", "leaderTemplate", "workerTemplate"):
            pod_spec = parts.get(part, {}).get("spec", {})
            for container in [*pod_spec.get("initContainers", []), *pod_spec.get("containers", [])]:
                variables = {
                    variable["name"]: variable["value"]
                    for variable in container["env"]
                    if "value" in variable
                }
                probes = [
                    container.get(f"{kind}Probe", {})
                    for kind in ("startup", "readiness", "liveness")
                ]
                commands = [container.get("command", [])]
                commands += [probe.get("exec", {}).get("command", []) for probe in probes]
                starts += [
                    (command, variables) for command in commands if command[:1] == ["python3"]
                ]
    return [start for number, start in enumerate(starts) if start not in starts[:number]]
