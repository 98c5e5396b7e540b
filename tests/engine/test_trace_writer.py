"""What a trace may cost and may not: the disk, the file's readers, the server."""

from __future__ import annotations

import json
import resource
import stat
import time
from types import SimpleNamespace

import pytest

from workshop.engine import trace_writer
from workshop.engine.trace_writer import Recorder, Writer

LINE = {"step": 1, "text": "x" * 80}


def wait_until(true) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_lines_are_on_the_disk_while_the_engine_goes_on(tmp_path):
    path = tmp_path / "trace"
    writer = Writer(str(path))
    writer.write(LINE)
    wait_until(lambda: path.stat().st_size)
    assert json.loads(path.read_text()) == LINE and stat.S_IMODE(path.stat().st_mode) == 0o600
    writer.write(LINE)
    writer.close()
    writer.write(LINE)
    assert path.read_text().count("\n") == 2


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path):
    path = tmp_path / "trace"
    path.write_text("old\n")
    path.chmod(0o644)
    Writer(str(path)).close()
    assert path.read_text() == "" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_disk_ends_the_trace_at_a_whole_line_and_says_so(tmp_path, capfd):
    path, before = tmp_path / "trace", resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = Writer(str(path))
    writer.write(LINE)
    wait_until(lambda: path.stat().st_size)
    # half a line is left
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, before[1]))
    try:
        writer.write(LINE)
        wait_until(lambda: "ends here" in capfd.readouterr().out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.write(LINE)
    writer.close()
    assert path.read_bytes() == trace_writer.line(LINE)


def scheduler() -> SimpleNamespace:
    """As much of vLLM's scheduler as a Recorder wraps."""

    def having(*names: str, **more) -> SimpleNamespace:
        return SimpleNamespace(**{name: lambda *args: args for name in names}, **more)

    queue = having("popleft_n", "remove", "append_n", "prepend_n")
    hashes = ("_insert_block_hash", "_remove_cached_block_hashes", "reset_prefix_cache")
    pool = having(*hashes, free_block_queue=queue, null_block=SimpleNamespace(block_id=0))
    calls = ("add_request", "schedule", "update_from_output")
    return having(*calls, kv_cache_manager=SimpleNamespace(block_pool=pool))


def test_an_error_of_the_trace_is_not_the_engines(tmp_path, capfd):
    writer = Writer(str(tmp_path / "trace"))
    fake_scheduler = scheduler()
    Recorder(fake_scheduler, writer.write, time.monotonic, writer.lost)
    assert fake_scheduler.schedule("a step that it cannot read") == ("a step that it cannot read",)
    assert fake_scheduler.schedule("the next") == ("the next",)
    assert capfd.readouterr().out.count("ends here, and the server goes on") == 1


@pytest.mark.parametrize("limit", ["LIMIT_BYTES", "BEHIND_BYTES"])
def test_a_trace_has_an_end(limit, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_writer, limit, 150)
    writer = Writer(str(tmp_path / "trace"))
    with pytest.raises(OverflowError, match=r"MiB long|too slow"):
        for _ in range(100):
            writer.write(LINE)
    writer.close()


def test_an_id_that_utf_8_cannot_hold_ends_the_trace_and_not_the_engine(tmp_path, capfd):
    """A client chooses it (request_id); this one is half a surrogate pair."""
    path, fake_scheduler = tmp_path / "trace", scheduler()
    fake_scheduler.max_num_scheduled_tokens = fake_scheduler.block_size = 16
    fake_scheduler.kv_cache_manager.usage = 0.5
    fake_scheduler.kv_cache_manager.block_pool.num_gpu_blocks = 9
    output = SimpleNamespace(
        preempted_req_ids=None,
        finished_req_ids={"\ud800"},
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[]),
        scheduled_new_reqs=[],
        num_scheduled_tokens={},
        scheduled_spec_decode_tokens={},
    )
    fake_scheduler.schedule = lambda: output
    fake_scheduler.update_from_output = lambda *_: "the answers"
    writer = Writer(str(path))
    Recorder(fake_scheduler, writer.write, time.monotonic, writer.lost)
    assert fake_scheduler.schedule() is output
    assert fake_scheduler.update_from_output(output, None) == "the answers"
    assert "ends here, and the server goes on" in capfd.readouterr().out
    assert path.read_bytes() == b""


def test_another_vllm_serves_without_a_trace(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv(trace_writer.FILE_VARIABLE, str(tmp_path / "trace"))
    bare = SimpleNamespace(shutdown=lambda: None)
    scheduling = SimpleNamespace(
        scheduler_cls="ours", get_scheduler_cls=lambda: lambda vllm_config: bare
    )
    config = SimpleNamespace(
        scheduler_config=scheduling, parallel_config=SimpleNamespace(data_parallel_index=0)
    )
    assert trace_writer.traced(vllm_config=config) is bare and scheduling.scheduler_cls is None
    assert "No trace is written" in capfd.readouterr().out
