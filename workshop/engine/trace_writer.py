"""Writes a trace: the one module that looks into a running scheduler of vLLM. `trace` says what a line means.

`workshop serve --trace FILE` starts vLLM with `--scheduler-cls workshop.engine.trace_writer.traced`; the simulation
gives a scheduler of its own to a Recorder. For vLLM 0.25.1 to 0.33.0, with and without asynchronous scheduling.
"""

import errno
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path

FILE_VARIABLE = "WORKSHOP_TRACE"
FLUSH_S = (
    0.05  # what a killed engine takes with it: vLLM kills its own without a word when it stops
)
LIMIT_BYTES = 2**30
BEHIND_BYTES = 64 * 2**20  # what may wait for a slow disk
MAX_ID = 128  # characters of a request's id, which stands in every line of its steps; a client may choose it


class Recorder:
    """Notes what a scheduler does, and gives each step to `write` when its answers are there.

    Args:
        scheduler: vLLM's; methods of it, of its blocks and of their queue are wrapped. It decides as without.
        write: takes a step: a dict with the keys of `trace.Step`.
        now: the time in seconds.
        lost: is told of an error, which ends the trace and nothing else; without it errors are raised.
    """

    def __init__(
        self,
        scheduler,
        write: Callable[[dict], None],
        now: Callable[[], float],
        lost: Callable[[Exception], None] | None = None,
    ):
        self._scheduler, self._write, self._now, self._lost = scheduler, write, now, lost
        self._pool = pool = scheduler.kv_cache_manager.block_pool
        self._null = pool.null_block.block_id
        # requests whose next step is their first, or their first again
        self._fresh: set[str] = set()
        self._cached: dict[tuple[int, str], None] = {}
        self._under_way: deque[dict] = deque()
        self._steps, self._on = 0, True
        self._begin()
        notes = (
            (scheduler, "add_request", self._came),
            (scheduler, "schedule", self._scheduled),
            (scheduler, "update_from_output", self._updated),
            (pool, "_insert_block_hash", self._store),
            (pool, "_remove_cached_block_hashes", self._drop_of),
            (
                pool,
                "reset_prefix_cache",
                lambda done: self._drop(list(self._cached) if done else ()),
            ),
            (pool.free_block_queue, "popleft_n", lambda blocks, _: self._take(blocks)),
            (pool.free_block_queue, "remove", lambda _, block: self._take([block])),
            (pool.free_block_queue, "append_n", lambda _, blocks: self._free(blocks)),
            (pool.free_block_queue, "prepend_n", lambda _, blocks: self._free(blocks)),
        )
        for of, name, noted in [
            (of, name, self._noted(getattr(of, name), note)) for of, name, note in notes
        ]:
            setattr(of, name, noted)

    def _noted(self, original: Callable, note: Callable) -> Callable:
        """Return `original`; after each call `note` gets its answer and its arguments."""

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
        pair = block.block_id, _text(key)
        if pair not in self._cached:
            self._cached[pair] = self._stored[pair] = None

    def _drop_of(self, keys: list[bytes], block) -> None:
        self._drop((block.block_id, _text(key)) for key in keys)

    def _drop(self, pairs: Iterable[tuple[int, str]]) -> None:
        for pair in pairs:
            self._cached.pop(pair, None)
            if self._stored.pop(pair, self) is self:
                self._removed[pair] = None

    def _came(self, _, request) -> None:
        self._arrived.append((short_id(request.request_id), request.num_prompt_tokens))
        self._fresh.add(request.request_id)

    def _scheduled(self, output, *_, **__) -> None:
        scheduler = self._scheduler
        preempted, finished = (
            sorted(output.preempted_req_ids or ()),
            sorted(output.finished_req_ids),
        )
        self._fresh.update(preempted)
        self._fresh.difference_update(finished)
        again = output.scheduled_cached_reqs
        # by group; None where there are none
        blocks = dict(zip(again.req_ids, again.new_block_ids, strict=True))
        blocks |= {new.req_id: new.block_ids for new in output.scheduled_new_reqs}
        step = {
            "step": self._steps,
            "time_s": 0.0,
            "budget": scheduler.max_num_scheduled_tokens,
            "kv_cache_usage": round(scheduler.kv_cache_manager.usage, 6),
            "requests": [
                self._row(output, name, blocks[name] or ()) for name in output.num_scheduled_tokens
            ],
            "taken": list(self._taken),
            "freed": list(self._freed),
            "preempted": [short_id(name) for name in preempted],
            "arrived": self._arrived,
            "finished": [short_id(name) for name in finished],
            "stored": list(self._stored),
            "removed": list(self._removed),
            "num_blocks": self._pool.num_gpu_blocks - 1,
            "block_size": scheduler.block_size,
        }
        something = (
            step["requests"] or finished or preempted or self._arrived or self._freed or self._taken
        )
        self._under_way.append(step if something else {})
        if something:
            self._steps += 1
            self._begin()

    def _row(self, output, name: str, blocks: Iterable[list[int]]) -> dict:
        """Return what a request does in a step. vLLM has added the step's tokens to the computed ones already."""
        request, tokens = self._scheduler.requests[name], output.num_scheduled_tokens[name]
        before, drafted = (
            request.num_computed_tokens - tokens,
            len(output.scheduled_spec_decode_tokens.get(name, ())),
        )
        decodes = before >= request.num_prompt_tokens and tokens <= 1 + drafted
        hit = before if name in self._fresh else 0
        self._fresh.discard(name)
        return {
            "id": short_id(name),
            "prefill_tokens": 0 if decodes else tokens,
            "decode_tokens": tokens if decodes else 0,
            "computed_tokens": before,
            "prefix_hit_tokens": hit,
            "drafted": drafted,
            "accepted": 0,
            "blocks": [block for group in blocks for block in group if block != self._null],
        }

    @staticmethod
    def _index_of(answers, short: str) -> int:
        """Return a request's place among a step's answers."""
        if short in answers.req_id_to_index:
            return answers.req_id_to_index[short]
        return next(
            index for name, index in answers.req_id_to_index.items() if short_id(name) == short
        )

    def _updated(self, _, output, answers) -> None:
        step = self._under_way.popleft()
        for row in step["requests"] if output.scheduled_spec_decode_tokens else ():
            if row["drafted"]:
                made = answers.sampled_token_ids[self._index_of(answers, row["id"])]
                row["accepted"] = max(0, len(made) - 1)
        if step:
            self._write(step | {"time_s": round(self._now(), 6)})


def short_id(name: str) -> str:
    """Return a request's id as a trace has it: a long one is cut, and ends in a digest that tells it from others.

    Half a surrogate pair, which UTF-8 cannot hold, is written as an escape: else it would end the trace.
    """
    if not name.isascii():
        name = name.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(name) <= MAX_ID:
        return name
    digest = hashlib.sha256(name.encode("utf-8")).hexdigest()[:16]
    return f"{name[: MAX_ID - len(digest) - 1]}…{digest}"


def _text(key: bytes) -> str:
    """Return a block's hash as vLLM's events have it: 64 bits of it, without the four bytes of its group."""
    return key[:-4][-8:].hex()


def line(step: dict) -> bytes:
    import msgspec  # vLLM brings it; the json module takes twenty times as long

    return msgspec.json.encode(step) + b"\n"


def name_of(file: str, index: int) -> str:
    """Return the file of an engine: with several (data parallel, replicas) each has one of its own."""
    return f"{file}.{index}" if index else file


class Writer:
    """Writes lines in a thread of its own, each within FLUSH_S: the engine does not wait for the disk.

    A full disk, LIMIT_BYTES, or a disk that is too slow end the trace, with a sentence in the log.
    """

    def __init__(self, file: str):
        self._file, self._target = file, open_private(Path(file))
        self._given, self._written = 0, 0  # bytes
        self._lines: deque[bytes] = deque()
        self._end, self._disk = threading.Event(), threading.Lock()
        threading.Thread(target=self._run, name="trace", daemon=True).start()

    def write(self, step: dict) -> None:
        """Take a step. Raises OverflowError where there is no room for it."""
        if self._end.is_set():
            return
        text = line(step)
        if self._given + len(text) > LIMIT_BYTES:
            raise OverflowError(f"it is {LIMIT_BYTES >> 20} MiB long")
        if self._given - self._written > BEHIND_BYTES:
            raise OverflowError("the disk is too slow for it")
        self._given += len(text)
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
        """Write what is left, and nothing after it."""
        self._end.set()
        self._flush()

    def _run(self) -> None:
        while not self._end.wait(FLUSH_S):
            self._flush()

    def _flush(self) -> None:
        with self._disk:
            text = b"".join(self._lines.popleft() for _ in range(len(self._lines)))
            try:
                left = memoryview(text)
                while left:
                    left = left[os.write(self._target, left) :]
                self._written += len(text)
                return
            except OSError as error:
                full = error
                os.ftruncate(self._target, self._written)  # to whole lines
        self._lines.clear()
        if not self._end.is_set():
            self.lost(full)


def open_private(path: Path) -> int:
    """Return a new, empty file that its owner alone can read. Raises OSError, also where it is another thing."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file")
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    os.fchmod(descriptor, 0o600)
    return descriptor


def traced(*args, vllm_config, **kwargs):
    """Return the scheduler that vLLM would take, with a Recorder that writes the file that FILE_VARIABLE names."""
    config = vllm_config.scheduler_config
    config.scheduler_cls = None
    scheduler = config.get_scheduler_cls()(*args, vllm_config=vllm_config, **kwargs)
    try:
        writer = Writer(
            name_of(os.environ[FILE_VARIABLE], vllm_config.parallel_config.data_parallel_index)
        )
        began_s, shut_down = time.monotonic(), scheduler.shutdown
        Recorder(scheduler, writer.write, lambda: time.monotonic() - began_s, writer.lost)
        scheduler.shutdown = lambda: (writer.close(), shut_down())
    except Exception as error:  # a vLLM that is built otherwise
        print(f"[workshop] No trace is written ({error}), and the server goes on.", flush=True)
    return scheduler
