"""Exercises of notebook 03: the split, the endpoint, the time of loading, what a log says, why a start failed."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

import workshop
from workshop.learn.judging import Exercise, close_to, exactly, pair

GPUS_PER_NODE, NODES = 4, 4
# 405B in bfloat16: 405.85e9 parameters, 2 bytes each (the weights' index on the Hub says 811.7 GB); site.sh: 0.25 GB/s.
WEIGHTS_GB, LOAD_GB_PER_S = 812.0, 0.25
LOAD_S = WEIGHTS_GB / LOAD_GB_PER_S
THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
CAUSES = {
    "port": "another program listens on the port",
    "kv": "the KV cache is too small for one request of max_model_len",
    "shard": "a file of the weights is damaged",
    "killed": "a process was killed, mostly for want of memory",
    "divide": "the attention heads cannot be divided by the tensor parallel size",
    "disk": "the disk is full",
    "gated": "the model is gated, and there is no token",
}
RIGHT = {"A": "port", "B": "kv", "C": "shard", "D": "killed", "E": "divide"}
CLUES = {
    "A": "its very last line says it",
    "B": "grep it for 'KV cache'",
    "C": "grep it for 'safetensors|Safetensor'",
    "D": "grep it for 'died|killed|exited'",
    "E": "the first number in its last error is a count of heads",
}


def _split(answer: object) -> str | None:
    given, gpus = pair(answer), GPUS_PER_NODE * NODES
    if given is None or not all(isinstance(each, int) for each in given):
        return "give two numbers: (tensor_parallel_size, pipeline_parallel_size)"
    if given == (GPUS_PER_NODE, NODES):
        return None
    if given[0] * given[1] != gpus:
        return f"their product is {given[0] * given[1]}, and the job has {gpus} GPUs: the two have to be equal"
    return "tensor parallelism stays inside a node: one stage of layers a node"


def _place(address: SplitResult) -> tuple:
    """Return what decides where a request goes: this machine has several names."""
    host = "localhost" if address.hostname in THIS_MACHINE else address.hostname
    return address.scheme, host, address.port, address.path.rstrip("/")


def _endpoint(answer: object) -> str | None:
    if not isinstance(answer, str):
        return f"{answer!r} is no address: give a string"
    if _place(urlsplit(answer)) == _place(urlsplit(f"{workshop.connect().url}/chat/completions")):
        return None
    if answer.lstrip("/") in ("v1/chat/completions", "chat/completions"):
        return "that is the path: the address of the server, llm.url, comes before it"
    if answer.endswith("/v1/completions"):
        return "that endpoint continues a text; a conversation goes to another one"
    if "/v1/v1" in answer:
        return "llm.url ends in /v1 already"
    return f"{answer} is not it; list(llm.get('/openapi.json')['paths']) shows what the server has"


def _causes(answer: object) -> str | None:
    if not isinstance(answer, dict):
        return "give a dict: a letter, then the cause"
    unknown = [cause for cause in answer.values() if cause not in CAUSES]
    if unknown:
        return f"{unknown[0]!r} is no cause of the list: {', '.join(CAUSES)}"
    wrong = [letter for letter in RIGHT if answer.get(letter) != RIGHT[letter]]
    if not wrong:
        return None
    return f"{len(RIGHT) - len(wrong)} of {len(RIGHT)} are right; log {wrong[0]}: {CLUES[wrong[0]]}"


EXERCISES = {
    "server.split": Exercise(
        "Split 405B as vLLM recommends",
        _split,
        "With PARALLEL=pipeline, tensor parallelism stays inside a node, and each node is one stage of the pipeline.",
        "Find the script's `if`: which number is the GPUs of a node, which the nodes of the job?",
        wrong={(16, 1): "that is what the script does without the switch: every layer on all 16 GPUs"},
    ),
    "server.budget": Exercise(
        "Predict how long 405B takes to load",
        close_to(LOAD_S, "s", rel=0.003, digits=3),
        "Seconds = bytes / (bytes a second). bfloat16: two bytes a parameter.",
        "Parameters times two bytes are the GB of the weights. How many seconds does one GB take at that speed?",
        wrong={
            LOAD_S / 60: "those are minutes; the answer is in seconds",
            WEIGHTS_GB * LOAD_GB_PER_S: "bytes divided by speed, not times",
            LOAD_S + 900: "that is with the 15 minutes; here it is loading alone",
            LOAD_S / 2: "two bytes a parameter: 405 billion parameters are 812 GB",
            LOAD_S * 8: "the speed is in GB/s, not in Gbit/s",
        },
    ),
    "server.kv_tokens": Exercise(
        "Read the KV cache of 70B out of its log",
        exactly(1_229_264, "tokens"),
        "Play the recorded start of 70b to its end: the last of the figures counts tokens.",
        "The log has a line that begins with “GPU KV cache size”. Write its number without commas.",
        wrong={
            (1, 229, 264): "Python reads 1,229,264 as three numbers: leave out the commas",
            93.79: "those are GiB a GPU; the line after them counts tokens",
            32.89: "those are the weights, in GiB",
            131_072: "that is the longest request (max_model_len)",
            243_696: "that is 405b-fp8: choose 70b",
        },
    ),
    "server.endpoint": Exercise(
        "Write down the address of the chat endpoint",
        _endpoint,
        "An endpoint is the server's address and a path. llm.url is the address with /v1.",
        "What OpenAI calls a conversation is a chat. list(llm.get('/openapi.json')['paths']) shows every path.",
    ),
    "server.causes": Exercise(
        "Say why five starts failed",
        _causes,
        "The last error is rarely the first: whoever notices a death complains after it. grep for the first.",
        "Try cluster.grep(letter, 'in use|KV cache|Safetensor|died|divisible') on each log, and read the first line.",
    ),
}
