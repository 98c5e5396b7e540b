"""What runs inside the pods: downloads go on, waits end, the probe sees workers; with the ConfigMap's files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from hub_server import HUB_ID, FakeHub, model

from workshop.errors import WorkshopError
from workshop.launch import kubernetes, pod


@pytest.fixture
def hub(monkeypatch, tmp_path):
    served = FakeHub(HUB_ID, model())
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield served
    served.close()


def test_a_download_leaves_the_mark_only_when_all_is_whole(hub, tmp_path):
    folder = tmp_path / "models" / "Tiny-Llama"
    assert pod.main(["download", HUB_ID, str(folder)]) == 0
    mark = json.loads((folder / pod.WHOLE).read_text())
    assert (mark["model"], mark["shards"]) == (HUB_ID, 2)
    pod.wait(folder)


def test_a_break_leaves_no_mark_and_the_next_try_goes_on(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("workshop.launch.weights.hub.TRIES", 1)
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
    assert "HF_TOKEN" in capsys.readouterr().out


def test_a_volume_that_is_too_small_is_refused_before_the_first_byte(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("workshop.launch.weights.prefetch.left_bytes", lambda path: 1_000_000)
    assert pod.main(["download", HUB_ID, str(tmp_path / "x")]) == 1
    assert "free" in capsys.readouterr().out and not list(tmp_path.rglob("*.part"))


def test_waiting_ends_when_the_mark_appears(tmp_path, capsys):
    threading.Timer(0.3, lambda: (tmp_path / pod.WHOLE).write_text("{}")).start()
    began = time.monotonic()
    pod.wait(tmp_path, ask_every_s=0.02)
    assert 0.2 < time.monotonic() - began < 5
    assert "waiting" in capsys.readouterr().out


def test_a_mark_without_its_shards_is_no_model(tmp_path):
    (tmp_path / pod.WHOLE).write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001.safetensors"}}')
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
    processes = [SimpleNamespace(info={"cmdline": words, "status": status}) for words, status in seen]
    monkeypatch.setattr("psutil.process_iter", lambda attrs: processes)
    pod.workers(2)
    with pytest.raises(WorkshopError, match="2 of 3"):
        pod.workers(3)


def test_the_probe_reads_the_title_that_setproctitle_writes(tmp_path):
    pytest.importorskip("setproctitle")  # vLLM brings it
    title = (
        "import setproctitle, time; setproctitle.setproctitle('VLLM::Worker_TP7'); print(flush=True); time.sleep(60)"
    )
    worker = subprocess.Popen([sys.executable, "-c", title], stdout=subprocess.PIPE)
    try:
        worker.stdout.readline()
        pod.workers(1)
    finally:
        worker.kill()
        worker.wait()


def test_the_config_maps_files_alone_run_download_wait_and_guard(hub, tmp_path):
    for key, text in kubernetes.code().items():
        path = tmp_path / "code" / "workshop" / (key.removesuffix(".py").replace(".", "/") + ".py")
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

    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    folder = str(tmp_path / "models" / "Tiny-Llama")
    for words in (("download", HUB_ID, folder), ("wait", folder)):
        done = run("-m", "workshop.launch.pod", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert run("-m", "workshop.launch.pod", "workers", "9999").returncode == 1  # others may run here, not so many
    done = run("-c", "import workshop.launch.auth as a; print(a.__file__); a.RequireKey(None)")
    assert done.returncode == 0 and str(tmp_path) in done.stdout, done.stderr
