"""What `workshop serve` decides before anything starts."""

from __future__ import annotations

import json
import os
import socket

import pytest
import small_server
from needs import lacking

from workshop.errors import BadInput, WorkshopError
from workshop.servers import local, records
from workshop.servers.flags import flags_of
from workshop.servers.host import disk, machine, processes
from workshop.servers.local import supervise
from workshop.vllm_package import installed


@pytest.fixture(autouse=True)
def with_vllm(workshop_home):
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")


def prepare(*args, **options):
    return local.prepare(*args, **options)


def test_the_teaching_model_is_the_default_and_only_this_machine_is_let_in():
    launch = prepare()
    assert launch.served == launch.name == "teaching-model"
    assert (
        launch.host == "127.0.0.1"
        and launch.url.startswith("http://127.0.0.1:")
        and launch.url.endswith("/v1")
    )
    assert launch.env["HF_HUB_OFFLINE"] == "1"


def test_the_guard_comes_last_so_that_it_is_outermost():
    launch = prepare(vllm_args=("--middleware", "other.Class"))
    assert launch.argv[-2:] == ["--middleware", "workshop.guard.auth.RequireKey"]


def test_flags_that_are_given_win_over_defaults():
    launch = prepare(
        vllm_args=("--max-logprobs", "5", "--kv_cache_memory_bytes=99", "--no-enforce-eager")
    )
    assert launch.argv.count("--max-logprobs") == 1
    assert "--kv-cache-memory-bytes" not in launch.argv and "--enforce-eager" not in launch.argv


def test_a_pipeline_on_the_cpu_does_without_enforce_eager():
    if local.engine_device() == "gpu":
        pytest.skip("this machine has a GPU")
    launch = prepare(vllm_args=("-pp", "2"))
    assert "--enforce-eager" not in launch.argv and "--compilation-config" in launch.argv
    assert launch.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_flags_are_read_in_every_spelling():
    for args, flags in [
        (("--seed", "1", "--dtype=x", "--y"), {"seed": "1", "dtype": "x", "y": ""}),
        (("--tensor-par=2", "-qfp8"), {"tensor-parallel-size": "2", "quantization": "fp8"}),
        (("--tensor_parallel_size", "2"), {"tensor-parallel-size": "2"}),
        (("-tp", "2", "--seed", "-1"), {"tensor-parallel-size": "2", "seed": "-1"}),
        (("--x", "1", "2"), {"x": "1"}),
    ]:
        assert local.flags_of(args) == flags, args


def test_a_key_on_the_command_line_is_refused():
    with pytest.raises(BadInput, match="shown to everybody"):
        prepare(vllm_args=("--api-key", "x"))


def test_ports_of_one_machine_are_on_loopback_whatever_the_site_sets(monkeypatch):
    monkeypatch.setenv("VLLM_HOST_IP", "10.1.2.3")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    env = prepare(host="0.0.0.0").env
    assert (env["VLLM_HOST_IP"], env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == (
        "127.0.0.1",
        "lo",
        "lo",
    )
    for flags in (
        ("--nnodes", "2"),
        ("-n", "2"),
        ("--data-parallel-address", "10.1.2.3"),
        ("-dpa", "10.1.2.3"),
    ):
        several = prepare(vllm_args=flags).env
        assert several["VLLM_HOST_IP"] == "10.1.2.3" and several["NCCL_SOCKET_IFNAME"] == "ib0"


def test_who_lets_other_machines_in_is_told_what_that_means():
    for host, warns in [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]:
        assert ("Other machines reach it" in prepare(host=host).note) == warns, host


def test_headers_of_a_stranger_are_kept_up_to_64_kib():
    argv = prepare().argv
    assert argv[argv.index("--h11-max-incomplete-event-size") + 1] == "65536"
    argv_with_limit = prepare(vllm_args=("--h11-max-incomplete-event-size", "1")).argv
    assert argv_with_limit.count("--h11-max-incomplete-event-size") == 1


def test_host_that_is_no_address_is_one_sentence(subtests):
    for host in ["", "999.1.1.1", "127.0.0.1 ", "\0", "a" * 300, "\udcff"]:
        with (
            subtests.test(ascii(host)),
            pytest.raises(BadInput, match="no address of this machine"),
        ):
            prepare(host=host)


def test_a_model_that_is_not_there_is_named(subtests):
    for model in ("/no/such/folder", "./nothing", "nonsense", "a/b/c"):
        with subtests.test(model), pytest.raises(BadInput, match="no folder"):
            prepare(model)


def test_a_folder_without_config_is_no_model(tmp_path):
    with pytest.raises(BadInput, match=r"config\.json"):
        prepare(str(tmp_path))
    (tmp_path / "weights.safetensors").write_text("")
    with pytest.raises(BadInput, match="a model is a folder"):
        prepare(str(tmp_path / "weights.safetensors"))


def test_a_hub_id_is_served_under_its_short_name():
    launch = prepare("meta-llama/Llama-3.2-1B")
    assert launch.served == "Llama-3.2-1B"
    assert launch.env.get("HF_HUB_OFFLINE") != "1" or "HF_HUB_OFFLINE" in __import__("os").environ


def test_a_taken_port_is_refused_at_once():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(WorkshopError, match="is taken"):
            prepare(port=holder.getsockname()[1])


def test_a_start_that_is_refused_gives_its_port_back(tmp_path):
    port = machine.free_port("127.0.0.1", 20_000)
    (tmp_path / "notes.txt").write_text("no trace")
    for _ in range(2):
        with pytest.raises(BadInput, match="is no trace"):
            prepare(port=port, trace=tmp_path / "notes.txt")
    launch = prepare(port=port)
    start = processes.started(os.getpid())
    records.write(small_server.record(launch.name, pid=os.getpid(), process_started=start))
    for begin in (supervise.run, supervise.begin):
        with pytest.raises(WorkshopError, match="is ready at"):
            begin(launch)
        claim = machine.hold_port("127.0.0.1", port)
        assert claim
        claim.close()


def test_a_number_that_is_no_port_is_refused(subtests):
    for port in [0, -1, 70000]:
        with subtests.test(str(port)), pytest.raises(BadInput, match="no port"):
            prepare(port=port)


def test_a_second_server_of_the_same_name_is_refused(workshop_home):
    start = processes.started(os.getpid())
    records.write(small_server.record("teaching-model", pid=os.getpid(), process_started=start))
    with pytest.raises(WorkshopError, match="is ready at"):
        prepare()
    assert prepare(name="second").name == "second"


def test_a_number_of_ranks_must_be_one(subtests):
    for value in ["0", "two", "-1"]:
        with (
            subtests.test(value),
            pytest.raises(BadInput, match=r"number of ranks|is no whole number"),
        ):
            prepare(vllm_args=(f"--pipeline-parallel-size={value}",))


def test_a_full_disk_is_told_before_the_start(monkeypatch):
    monkeypatch.setattr(disk, "left_bytes", lambda folder: 1000)
    with pytest.raises(WorkshopError, match="too little for a log"):
        prepare()


def test_no_key_is_in_command_or_environment(monkeypatch):
    monkeypatch.setenv("WORKSHOP_API_KEY", "of another server")
    launch = prepare()
    assert "of another server" not in json.dumps([launch.argv, launch.env])


def test_servers_of_other_names_and_users_look_for_ports_elsewhere(monkeypatch):
    ports = {prepare(name=name).port for name in ("a", "b", "c")}
    monkeypatch.setattr(local.os, "getuid", lambda: 12345)
    ports |= {prepare(name=name).port for name in ("a", "b", "c")}
    assert len(ports) == 6, "a class that starts all at once does not race for one port"


def test_few_cores_leave_one_to_the_api_server(monkeypatch):
    for cpus, args, threads in [
        (1.0, (), "1"),
        (2.0, (), "1"),
        (3.0, (), "2"),
        (2.0, ("-tp", "2"), "1"),
        (8.0, ("-tp", "2"), "4"),
    ]:
        if local.engine_device() == "gpu":
            pytest.skip("this machine has a GPU")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(machine, "cpus", lambda cpus=cpus: cpus)
        assert prepare(vllm_args=args).env["OMP_NUM_THREADS"] == threads, cpus


def test_prompts_are_computed_in_pieces_on_the_cpu_too_unless_asked_otherwise():
    if local.engine_device() == "gpu":
        pytest.skip("this machine has a GPU")
    argv = prepare().argv
    assert argv[argv.index("--worker-cls") + 1] == "workshop.servers.cpu_worker.Worker"
    assert not any("chunked-prefill" in arg for arg in argv)
    assert prepare(vllm_args=("--worker-cls", "mine.Worker")).argv.count("--worker-cls") == 1


def test_learners_bring_the_limits_of_a_class_inside_the_guard():
    launch = prepare(learners=30)
    middlewares = [
        launch.argv[place + 1] for place, word in enumerate(launch.argv) if word == "--middleware"
    ]
    assert middlewares == [
        "workshop.guard.fairshare.FairShare",
        "workshop.guard.auth.RequireKey",
    ]
    flags = flags_of(tuple(launch.argv))
    assert flags["max-logprobs"] == "20", (
        "not the whole vocabulary, which is the teaching model's default"
    )
    assert json.loads(flags["override-generation-config"]) == {"max_new_tokens": 1024}
    assert json.loads(flags["structured-outputs-config"]) == {"backend": "guidance"}
    assert launch.env["VLLM_ENFORCE_STRICT_TOOL_CALLING"] == "0"
    on_cpu = local.engine_device() == "cpu"
    assert ("long-prefill-token-threshold" in flags) == on_cpu, (
        "a long prompt is read in small parts there"
    )
    assert "FairShare" not in " ".join(prepare().argv)


def test_flags_of_the_owner_win_over_those_of_a_class(monkeypatch):
    monkeypatch.setenv("WORKSHOP_MAX_TOKENS", "300")
    args = ("--max-logprobs", "5", "--structured-outputs-config.backend", "xgrammar")
    launch = prepare(learners=1, vllm_args=args)
    assert (
        launch.argv.count("--max-logprobs") == 1
        and "--structured-outputs-config" not in launch.argv
    )
    assert '{"max_new_tokens": 300}' in launch.argv


def test_a_limit_that_is_no_number_is_refused_before_the_start(monkeypatch, subtests):
    for variable in ["WORKSHOP_MAX_TOKENS", "WORKSHOP_PER_LEARNER", "WORKSHOP_MAX_SEQUENCES"]:
        with subtests.test(variable), monkeypatch.context() as environment:
            environment.setenv(variable, "many")
            with pytest.raises(BadInput, match=variable):
                prepare(learners=30)
            assert prepare().argv, "without a class nobody reads it"


def test_the_limits_of_a_class_are_put_in_once():
    with pytest.raises(BadInput, match="by itself"):
        prepare(learners=2, vllm_args=("--middleware", "workshop.guard.fairshare.FairShare"))
