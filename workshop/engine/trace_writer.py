"""Write a trace of a running scheduler of vLLM, line by line; `trace` says what a line means.

`workshop serve --trace FILE` starts vLLM with
`--scheduler-cls workshop.engine.trace_writer.traced`; the simulation gives a scheduler of its own
to a Recorder. For vLLM 0.25.1 to 0.33.0, with and without asynchronous scheduling.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path

FILE_VARIABLE = "WORKSHOP_TRACE"
SCHEDULER = "workshop.engine.trace_writer.traced"  # for --scheduler-cls
# seconds of the trace that are lost with a killed engine: vLLM kills its own when it stops
FLUSH_S = 0.05
LIMIT_BYTES = 2**30
BEHIND_BYTES = 64 * 2**20  # what may wait for a slow disk


class Recorder:
    """Notes what a scheduler does, and gives each step to `write` when its answers are there.

    Args:
        scheduler: vLLM's. Methods of it, of its blocks and of their queue are wrapped; its
            decisions stay the same.
        write: takes a step: a dict with the keys of `trace.Step`.
        now: the time in seconds.
        lost: gets an error, which ends the trace and nothing else. Without it errors are raised.
    """

    def __init__(
        self,
        scheduler,
        write: Callable[[dict], None],
        now: Callable[[], float],
        lost: Callable[[Exception], None] | None = None,
    ):
        self._scheduler = scheduler
        self._write = write
        self._now = now
        self._lost = lost
        self._pool = scheduler.kv_cache_manager.block_pool
        self._null = self._pool.null_block.block_id
        # requests whose next step is their first, or their first again
        self._fresh: set[str] = set()
        self._cached: dict[tuple[int, str], None] = {}
        self._under_way: deque[dict] = deque()
        self._steps = 0
        self._on = True
        self._begin()
        self._wrap_methods()

    def _wrap_methods(self) -> None:
        """Wrap the methods whose calls a trace records."""
        pool = self._pool
        queue = pool.free_block_queue
        notes = (
            (self._scheduler, "add_request", self._came),
            (self._scheduler, "schedule", self._scheduled),
            (self._scheduler, "update_from_output", self._updated),
            (pool, "_insert_block_hash", self._store),
            (pool, "_remove_cached_block_hashes", self._drop_of),
            (pool, "reset_prefix_cache", self._reset),
            (queue, "popleft_n", lambda blocks, _: self._take(blocks)),
            (queue, "remove", lambda _, block: self._take([block])),
            (queue, "append_n", lambda _, blocks: self._free(blocks)),
            (queue, "prepend_n", lambda _, blocks: self._free(blocks)),
        )
        wrapped = []
        for owner, name, note in notes:
            wrapped.append((owner, name, self._noted(getattr(owner, name), note)))
        # only now, so that a vLLM without one of the methods stays as it is
        for owner, name, method in wrapped:
            setattr(owner, name, method)

    def _noted(self, original: Callable, note: Callable) -> Callable:
        """Return `original`, wrapped: after each call `note` gets its answer and its arguments."""

        @wraps(original)
        def call(*args, **kwargs):
            answer = original(*args, **kwargs)
            if self._on:
                try:
                    note(answer, *args, **kwargs)
                except Exception as error:
                    if not self._lost:
                        raise
                    self._on = False
                    self._lost(error)
            return answer

        return call

    def _begin(self) -> None:
        """Forget what the last line said; dicts are sets that keep the order."""
        self._taken: dict[int, None] = {}
        self._freed: dict[int, None] = {}
        self._stored: dict[tuple[int, str], None] = {}
        self._removed: dict[tuple[int, str], None] = {}
        self._arrived: list[tuple[str, int]] = []

    def _take(self, blocks: Iterable) -> None:
        self._taken |= dict.fromkeys(block.block_id for block in blocks)

    def _free(self, blocks: Iterable) -> None:
        for block in blocks:
            # else it was free before, and is again
            if self._taken.pop(block.block_id, self) is self:
                self._freed[block.block_id] = None

    def _store(self, _, key: bytes, block, num_tokens: int | None = None) -> None:
        pair = (block.block_id, _text(key))
        if pair not in self._cached:
            self._cached[pair] = None
            self._stored[pair] = None

    def _drop_of(self, keys: list[bytes], block) -> None:
        self._drop((block.block_id, _text(key)) for key in keys)

    def _reset(self, done: bool) -> None:
        if done:
            self._drop(list(self._cached))

    def _drop(self, pairs: Iterable[tuple[int, str]]) -> None:
        for pair in pairs:
            self._cached.pop(pair, None)
            if self._stored.pop(pair, self) is self:
                self._removed[pair] = None

    def _came(self, _, request) -> None:
        self._arrived.append((request.request_id, request.num_prompt_tokens))
        self._fresh.add(request.request_id)

    def _scheduled(self, output, *_, **__) -> None:
        scheduler = self._scheduler
        preempted = sorted(output.preempted_req_ids or ())
        finished = sorted(output.finished_req_ids)
        self._fresh.update(preempted)
        self._fresh.difference_update(finished)
        again = output.scheduled_cached_reqs
        # by group; None where there are none
        blocks = dict(zip(again.req_ids, again.new_block_ids, strict=True))
        for new in output.scheduled_new_reqs:
            blocks[new.req_id] = new.block_ids
        requests = []
        for name in output.num_scheduled_tokens:
            requests.append(self._row(output, name, blocks[name] or ()))
        step = {
            "step": self._steps,
            "time_s": 0.0,
            "budget": scheduler.max_num_scheduled_tokens,
            "kv_cache_usage": round(scheduler.kv_cache_manager.usage, 6),
            "requests": requests,
            "taken": list(self._taken),
            "freed": list(self._freed),
            "preempted": preempted,
            "arrived": self._arrived,
            "finished": finished,
            "stored": list(self._stored),
            "removed": list(self._removed),
            "num_blocks": self._pool.num_gpu_blocks - 1,
            "block_size": scheduler.block_size,
        }
        changes = (requests, finished, preempted, self._arrived, self._freed, self._taken)
        if any(changes):
            self._under_way.append(step)
            self._steps += 1
            self._begin()
        else:
            self._under_way.append({})  # its answers come all the same, and have to find their step

    def _row(self, output, name: str, blocks: Iterable[list[int]]) -> dict:
        """Return what a request does in a step.

        vLLM has added the tokens of the step to the computed ones already.
        """
        request = self._scheduler.requests[name]
        tokens = output.num_scheduled_tokens[name]
        before = request.num_computed_tokens - tokens
        drafted = len(output.scheduled_spec_decode_tokens.get(name, ()))
        prefill_tokens, decode_tokens = tokens, 0
        if before >= request.num_prompt_tokens and tokens <= 1 + drafted:
            prefill_tokens, decode_tokens = 0, tokens
        block_ids = []
        for group in blocks:
            block_ids += [block for block in group if block != self._null]
        prefix_hit_tokens = 0
        if name in self._fresh:
            prefix_hit_tokens = before
            self._fresh.discard(name)
        return {
            "id": name,
            "prefill_tokens": prefill_tokens,
            "decode_tokens": decode_tokens,
            "computed_tokens": before,
            "prefix_hit_tokens": prefix_hit_tokens,
            "drafted": drafted,
            "accepted": 0,
            "blocks": block_ids,
        }

    def _updated(self, _, output, answers) -> None:
        step = self._under_way.popleft()
        if not step:
            return
        if output.scheduled_spec_decode_tokens:
            for row in step["requests"]:
                if row["drafted"]:
                    index = answers.req_id_to_index[row["id"]]
                    new_tokens = answers.sampled_token_ids[index]
                    row["accepted"] = max(0, len(new_tokens) - 1)
        self._write(step | {"time_s": round(self._now(), 6)})


def _text(key: bytes) -> str:
    """Return a block's hash as in vLLM's events: its last 64 bits, without the group's 4 bytes."""
    return key[:-4][-8:].hex()


def line(step: dict) -> bytes:
    """Return a step as a line of JSON."""
    import msgspec  # vLLM brings it; the json module takes twenty times as long

    return msgspec.json.encode(step) + b"\n"


def name_of(file: str, index: int) -> str:
    """Return the file of an engine; of several (data parallel, replicas) each has its own."""
    if not index:
        return file
    return f"{file}.{index}"


class Writer:
    """Writes lines in a thread of its own, each within FLUSH_S: the engine never waits for a disk.

    A full disk, LIMIT_BYTES, or a disk that is too slow end the trace, with a sentence in the log.
    """

    def __init__(self, file: str):
        self._file = file
        self._target = open_private(Path(file))
        self._accepted_bytes = 0
        self._written_bytes = 0
        self._lines: deque[bytes] = deque()
        self._end = threading.Event()
        self._disk = threading.Lock()
        threading.Thread(target=self._run, name="trace", daemon=True).start()

    def write(self, step: dict) -> None:
        """Take a step. Raises OverflowError where there is no room for it."""
        if self._end.is_set():
            return
        text = line(step)
        if self._accepted_bytes + len(text) > LIMIT_BYTES:
            raise OverflowError(f"it is {LIMIT_BYTES >> 20} MiB long")
        if self._accepted_bytes - self._written_bytes > BEHIND_BYTES:
            raise OverflowError("the disk is too slow for it")
        self._accepted_bytes += len(text)
        self._lines.append(text)

    def lost(self, error: Exception) -> None:
        """Say in the log, which is this process's output, why the trace ends."""
        reason = getattr(error, "strerror", None) or str(error) or repr(error)
        print(
            f"[workshop] The trace {self._file} ends here, and the server goes on: {reason}.",
            flush=True,
        )
        self.close()

    def close(self) -> None:
        """Write the lines that wait, and nothing after them."""
        self._end.set()
        self._flush()

    def _run(self) -> None:
        while not self._end.wait(FLUSH_S):
            self._flush()

    def _flush(self) -> None:
        with self._disk:
            waiting = []
            for _ in range(len(self._lines)):
                waiting.append(self._lines.popleft())
            text = b"".join(waiting)
            try:
                remaining = memoryview(text)
                while remaining:
                    remaining = remaining[os.write(self._target, remaining) :]
                self._written_bytes += len(text)
                return
            except OSError as error:
                failure = error
                os.ftruncate(self._target, self._written_bytes)  # to whole lines
        self._lines.clear()
        if not self._end.is_set():
            self.lost(failure)


def open_private(path: Path) -> int:
    """Return the descriptor of a new, empty file that its owner alone can read.

    Raises OSError: it cannot be written, or is something else than a file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file")
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    os.fchmod(descriptor, 0o600)
    return descriptor


def traced(*args, vllm_config, **kwargs):
    """Return vLLM's own choice of a scheduler, with a Recorder that writes FILE_VARIABLE's file."""
    config = vllm_config.scheduler_config
    config.scheduler_cls = None
    scheduler = config.get_scheduler_cls()(*args, vllm_config=vllm_config, **kwargs)
    try:
        engine = vllm_config.parallel_config.data_parallel_index
        writer = Writer(name_of(os.environ[FILE_VARIABLE], engine))
        began_s = time.monotonic()
        shut_down = scheduler.shutdown
        Recorder(scheduler, writer.write, lambda: time.monotonic() - began_s, writer.lost)

        def close_and_shut_down() -> None:
            writer.close()
            shut_down()

        scheduler.shutdown = close_and_shut_down
    except Exception as error:  # a vLLM that is built otherwise
        print(f"[workshop] No trace is written ({error}), and the server goes on.", flush=True)
    return scheduler
