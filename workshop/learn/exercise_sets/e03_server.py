"""Exercises of notebook 03: the split, the endpoint, the time of loading, what a log says, why a start failed."""

from __future__ import annotations

from workshop.learn.exercises import Exercise, close_to

GIB = 2**30
GPUS_PER_NODE, NODES = 4, 4
# 405B in bfloat16: 405.85e9 parameters, 2 bytes each (the weights' index on the Hub says 811.7 GB); site.sh: 0.25 GB/s.
WEIGHTS_GB, LOAD_GB_PER_S = 812.0, 0.25
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
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return "give two numbers: (tensor_parallel_size, pipeline_parallel_size)"
    answer = tuple(answer)
    if answer == (GPUS_PER_NODE, NODES):
        return None
    if answer == (GPUS_PER_NODE * NODES, 1):
        return "that is what the script does without the switch: every layer on all 16 GPUs"
    product = answer[0] * answer[1] if all(isinstance(each, int) for each in answer) else 0
    return (
        f"their product is {product}, and the job has {GPUS_PER_NODE * NODES} GPUs: the two have to be equal"
        if product != GPUS_PER_NODE * NODES
        else "tensor parallelism stays inside a node: one stage of layers a node"
    )


def _endpoint(answer: object) -> str | None:
    import workshop

    if not isinstance(answer, str):
        return f"{answer!r} is no address"
    right = f"{workshop.connect().url}/chat/completions"
    if answer == right:
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
    unknown = [cause for cause in answer.values() if cause is not ... and cause not in CAUSES]
    if unknown:
        return f"{unknown[0]!r} is no cause of the list: {', '.join(CAUSES)}"
    wrong = [letter for letter in RIGHT if answer.get(letter) != RIGHT[letter]]
    if not wrong:
        return None
    return f"{len(RIGHT) - len(wrong)} of {len(RIGHT)} are right; log {wrong[0]}: {CLUES[wrong[0]]}"


def _kv_tokens(answer: object) -> str | None:
    if isinstance(answer, tuple):
        return (
            "Python reads 1,229,264 as three numbers: leave out the commas"
            if answer == (1, 229, 264)
            else "give one number, without commas"
        )
    return _KV_TOKENS(answer)


_KV_TOKENS = close_to(
    1_229_264,
    rel=1e-9,
    unit="tokens",
    near_misses={
        93.79: "those are GiB a GPU; the line after them counts tokens",
        32.89: "those are the weights, in GiB",
        131_072: "that is the longest request (max_model_len)",
        243_696: "that is 405b-fp8: choose 70b",
    },
)
EXERCISES = {
    "server.split": Exercise(
        "Split 405B as vLLM recommends",
        _split,
        (
            "PARALLEL=pipeline: TP inside a node, one pipeline stage a node.",
            "Four GPUs a node, four nodes: the script's `if` says which is which.",
        ),
    ),
    "server.budget": Exercise(
        "Predict how long 405B takes to load",
        close_to(
            WEIGHTS_GB / LOAD_GB_PER_S,
            rel=0.02,
            unit="s",
            near_misses={
                WEIGHTS_GB / LOAD_GB_PER_S / 60: "those are minutes; the answer is in seconds",
                WEIGHTS_GB * LOAD_GB_PER_S: "bytes divided by speed, not times",
                WEIGHTS_GB / LOAD_GB_PER_S + 900: "that is with the 15 minutes; here it is loading alone",
                WEIGHTS_GB / 2 / LOAD_GB_PER_S: "two bytes a parameter: 405 billion parameters are 812 GB",
            },
        ),
        ("Seconds = bytes / (bytes a second). bfloat16: two bytes a parameter.", "812 GB / 0.25 GB/s"),
    ),
    "server.kv_tokens": Exercise(
        "Read the KV cache of 70B out of its log",
        _kv_tokens,
        (
            "Play the recorded start of 70b to its end: the last of the figures counts tokens.",
            "GPU KV cache size: 1,229,264 tokens",
        ),
    ),
    "server.endpoint": Exercise(
        "Write down the address of the chat endpoint",
        _endpoint,
        (
            "An endpoint is the server's address and a path. llm.url is the address with /v1.",
            'f"{llm.url}/chat/completions"',
        ),
    ),
    "server.causes": Exercise(
        "Say why five starts failed",
        _causes,
        (
            "The last error is rarely the first: whoever notices a death complains after it. grep for the first.",
            "A port, B kv, C shard, D killed, E divide",
        ),
    ),
}
