"""The reason of an end is the first error of a worker or the engine core, where no rule fits."""

from __future__ import annotations

from workshop.engine import log
from workshop.engine.log import Reader
from workshop.engine.log.failures import SYMPTOM
from workshop.servers.follow import Follower

START = "INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
API = "(APIServer pid=1)"
CORE = "(EngineCore pid=2)"
FRAME = '  File "a.py", line 7, in step\n    value = table[name]\n            ~~~~~^^^^^^'
DEAD = (
    "RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}"
)


def traceback(process: str, exception: str, heading: str = "", frame: str = FRAME) -> str:
    """Return what a process logs of an exception: `heading`, then the traceback, each line with its prefix."""
    lines = f"{heading}\nTraceback (most recent call last):\n{frame}\n{exception}".strip(
        "\n"
    ).split("\n")
    if "pid" in process:
        process = f"{process} ERROR 11-20 10:02:25 [core.py:1512] "
    return "".join(f"{process}{line}\n" for line in lines)


CHAIN = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
CHAIN += f"Traceback (most recent call last):\n{FRAME}\nRuntimeError: cannot build the model"
LOGS = {
    "the API server's last line is a symptom": (
        traceback(CORE, "KeyError: 'lm_head.weight'", "EngineCore failed to start.") + traceback(API, DEAD),
        "vLLM's EngineCore stopped with KeyError: 'lm_head.weight'",
    ),
    "the first of a chain": (
        traceback(CORE, "KeyError: 'rope'" + CHAIN) + traceback(API, DEAD),
        "vLLM's EngineCore stopped with KeyError: 'rope'",
    ),
    "a direct cause": (
        traceback("(Worker_TP0 pid=3)", "KeyError: 'a'" + CHAIN.replace(
            "During handling of the above exception, another exception occurred:",
            "The above exception was the direct cause of the following exception:",
        )),
        "vLLM's Worker_TP0 stopped with KeyError: 'a'",
    ),
    "a rank whose peer has ended writes first": (
        traceback("(Worker_TP1 pid=4)", "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:7")
        + traceback("(Worker_TP2 pid=5)", "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:77, remote process exited")
        + traceback("(Worker_TP3 pid=6)", "BrokenPipeError: [Errno 32] Broken pipe" + CHAIN)
        + traceback("(Worker_TP0 pid=3)", "IndexError: list index out of range")
        + traceback(CORE, "RuntimeError: cancelled", "EngineCore failed to start.")
        + traceback(API, DEAD),
        "vLLM's Worker_TP0 stopped with IndexError: list index out of range",
    ),
    "colors and the labels of srun": (
        traceback("1: \x1b[1;36m(Worker_PP1 pid=4)\x1b[0;0m", "TypeError: 'NoneType' object is not callable")
        + traceback("0: \x1b[1;36m(EngineCore pid=2)\x1b[0;0m", "RuntimeError: cancelled")
        + traceback("0: \x1b[1;36m(APIServer pid=1)\x1b[0;0m", DEAD),
        "vLLM's Worker_PP1 stopped with TypeError: 'NoneType' object is not callable",
    ),
    "two ranks whose lines are mixed": (
        "".join(
            f"{first}\n{second}\n"
            for first, second in zip(
                traceback("0: (Worker_TP0 pid=3)", "KeyError: 'b'").splitlines(),
                traceback("1: (Worker_TP1 pid=3)", "EOFError").splitlines(),
                strict=True,
            )
        ),
        "vLLM's Worker_TP0 stopped with KeyError: 'b'",
    ),
    "a spawned process has no prefix": (
        traceback("", "KeyError: 'c'", "Process EngineCore_0:") + traceback("", DEAD),
        "vLLM's EngineCore_0 stopped with KeyError: 'c'",
    ),
    "a process that was told to end": (
        traceback("(Worker_TP1 pid=4)", "KeyboardInterrupt: terminated" + CHAIN)
        + traceback("(Worker_TP0 pid=3)", "KeyError: 'i'"),
        "vLLM's Worker_TP0 stopped with KeyError: 'i'",
    ),
    "of two spawned processes the one that lost no peer": (
        traceback("", "EOFError", "Process SpawnProcess-1:")
        + traceback("", "KeyError: 'h'", "Process VllmWorkerProcess:")
        + traceback("", "IndexError: later", "Process SpawnProcess-3:")
        + traceback("", DEAD),
        "vLLM's VllmWorkerProcess stopped with KeyError: 'h'",
    ),
    "the API server's own error is quoted where there is no other": (
        traceback("", "KeyError: 'chat'"),
        "vLLM stopped with KeyError: 'chat'",
    ),
    "an error of the API server before it": (
        traceback(API, "TypeError: a look-up was tried again")
        + traceback(CORE, "KeyError: 'd'", "EngineCore failed to start."),
        "vLLM's EngineCore stopped with KeyError: 'd'",
    ),
    "without words of its own it is told by its code": (
        traceback("(Worker_PP1 pid=4)", "AssertionError", frame='  File "a.py", line 7, in f\n    assert tensors is not None\n           ^^^^^^^'),
        "vLLM's Worker_PP1 stopped with AssertionError: assert tensors is not None",
    ),
    "an exception whose name does not end in Error": (
        traceback(CORE, "queue.Empty") + traceback(API, DEAD),
        "vLLM's EngineCore stopped with queue.Empty: value = table[name]",
    ),
    "an error that the engine had survived": (
        traceback(CORE, "ModuleNotFoundError: No module named 'extra'")
        + traceback(CORE, "KeyError: 'e'", "EngineCore failed to start."),
        "vLLM's EngineCore stopped with KeyError: 'e'",
    ),
    "a line that srun has cut": (
        traceback("0: (EngineCore pid=2)", "KeyError: 'f'", frame=FRAME + "\n0: , line 9, in run_engine"),
        "vLLM's EngineCore stopped with KeyError: 'f'",
    ),
}  # fmt: skip


def test_the_first_error_of_the_engine_is_the_reason(subtests):
    for case, (text, sentence) in LOGS.items():
        with subtests.test(case):
            assert log.parse(START + text).error.what == sentence


def test_an_unknown_cause_is_said_to_be_one_with_its_place_in_vllm():
    frames = '  File "/opt/vllm/vllm/v1/worker/gpu_worker.py", line 3, in load\n    self.load()\n'
    frames += (
        '  File "/opt/site-packages/aiter/jit/chip.py", line 63, in arch\n    return arch[name]'
    )
    text = traceback(CORE, "KeyError: 'gfx1101'", "EngineCore failed to start.", frames)
    error = log.parse(START + text + traceback(API, DEAD)).error
    assert error.what == "vLLM's EngineCore stopped with KeyError: 'gfx1101'"
    assert "aiter/jit/chip.py:63, called from vllm/v1/worker/gpu_worker.py:3" in error.remedy
    assert "does not know its cause" in error.remedy


VALUES = " [type=value_error, input_value=ArgsKwargs((), {'secret': 1}), input_type=ArgsKwargs]"
REFUSALS = {
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig\n"
    f"  Value error, data_parallel_external_lb needs more than one rank{VALUES}":
    "data_parallel_external_lb needs more than one rank",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
    f"  Value error, it goes on\nin a second line{VALUES}": "it goes on",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
    f"  Assertion failed, Flash Comm is for experts{VALUES}": "Flash Comm is for experts",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
    "ngram_prompt_lookup_max\n"
    "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=4, input_type=int]":
    "ngram_prompt_lookup_max: Unexpected keyword argument (it is 4)",
    "api_server.py: error: argument --compilation-config/-cc: 1 validation error for CompilationConfig\n"
    "level\n"
    "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=3, input_type=int]":
    "--compilation-config/-cc level: Unexpected keyword argument (it is 3)",
}  # fmt: skip


def test_a_refused_configuration_is_told_in_vllms_words_without_its_values(subtests):
    for text, sentence in REFUSALS.items():
        with subtests.test(sentence):
            lines = "".join(f"{API} {line}\n" for line in text.split("\n"))
            assert log.parse(START + lines).error.what == (
                f"vLLM refuses this configuration: {sentence}"
            )


def test_a_known_failure_is_the_reason_wherever_it_stands():
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    for text in (
        traceback(CORE, "KeyError: 'a'") + traceback("(Worker_TP0 pid=3)", full),
        traceback("(Worker_TP0 pid=3)", full) + traceback(CORE, "KeyError: 'a'"),
    ):
        assert log.parse(START + text).error.key == "gpu-out-of-memory"


def test_nccl_is_the_reason_where_no_rank_had_another():
    text = traceback(
        "(Worker_TP0 pid=3)",
        "torch.distributed.DistBackendError: NCCL error in: x.hpp:7, unhandled system error",
    )
    assert log.parse(START + text + traceback(CORE, "RuntimeError: cancelled")).error.key == "nccl"


def test_a_killed_worker_leaves_consequences_and_the_symptom_is_told():
    text = f"{CORE} ERROR 11-20 10:02:25 [multiproc_executor.py:1] Worker proc VllmWorker-0 died unexpectedly, shutting down.\n"
    text += traceback("(Worker_TP1 pid=4)", "RuntimeError: Connection closed by peer")
    text += traceback(CORE, "RuntimeError: cancelled", "EngineCore failed to start.") + traceback(
        API, DEAD
    )
    error = log.parse(START + text).error
    assert error.key == "worker-died" and error.rank == SYMPTOM and "out of memory" in error.remedy


READY = f"{API} INFO 11-20 10:03:00 [entry.py:140] Starting vLLM server on http://a:1\n"
READY += f"{API} INFO:     Application startup complete.\n"
END = traceback("(Worker_PP1 pid=4)", "KeyError: 'g'", "WorkerProc hit an exception.")
END += traceback(API, "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")
REASON = "vLLM's Worker_PP1 stopped with KeyError: 'g'"


def test_what_ends_a_running_server_is_the_reason():
    assert log.parse(START + READY + END).error.what == REASON


def test_what_a_running_server_survives_is_not_the_reason():
    survived = traceback(
        "(Worker_TP0 pid=3)", "ValueError: no such adapter", "WorkerProc hit an exception."
    )
    answered = f'{API} INFO:     127.0.0.1:7 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    reader = Reader()
    reader.feed(START + READY + survived + answered)
    assert reader.error is None
    reader.feed(END)
    assert reader.error.what == REASON


def test_the_reason_stays_where_the_words_ready_stand_in_the_other_file(tmp_path):
    output, error_file = tmp_path / "output_7.out", tmp_path / "error_7.out"
    output.write_text(START + END)
    error_file.write_text(
        "0: INFO:     Application startup complete.\n0: INFO:     Shutting down\n"
    )
    follower = Follower([output, error_file], own=False)
    follower.read()
    assert follower.reader.error.what == REASON
