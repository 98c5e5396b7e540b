"""Every check of the course: right answers in every form, near misses, and wrong ones with the words that they get."""

from __future__ import annotations

import contextlib
import json
import math
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from capstone_rows import CAPSTONE

import workshop
from workshop.errors import WorkshopError
from workshop.learn.exercise_sets.e01_memory import TIGHT
from workshop.learn.exercise_sets.e02_parallelism import DECIDED, toy
from workshop.learn.exercise_sets.e03_server import RIGHT as CAUSES
from workshop.learn.exercises import all_exercises
from workshop.learn.timeline import Span
from workshop.learn.widgets.memory.case import Case
from workshop.use.logprobs import total_logprob

TIGHT_CASE = Case(**TIGHT)
# Eight requests by four threads: the first four take 4, 1, 1 and 1 s, the others begin as threads become free.
SPANS = [
    Span("", sent, sent + 0.1, sent + seconds, 10)
    for sent, seconds in ((0, 4), (0, 1), (0, 1), (0, 1), (1, 2), (1, 1), (1, 1), (2, 1))
]
LATER = [*SPANS[:4], *(Span("", 3 + n, 4 + n, 5.5 + n, 10) for n in (0, 0.1, 0.2, 0.4))]
SWEEP = {1: (100, 1.0), 2: (190, 1.1), 4: (300, 1.4), 8: (380, 2.2), 16: (400, 4.5)}
FIVE = ["dtype", "startup", "shm", "volume", "key"]
SMALL = ["Standard_NC64as_T4_v3", "g4dn.12xlarge", "Standard_NC24ads_A100_v4"]  # 59, 59 and 79 GiB for 131.4
FRAME = pd.DataFrame({"text": ["a city on", "the port", "a bay", " a  b"]})
URL = "http://127.0.0.1:8000/v1"
PROMPT_TOKENS = {
    "San Francisco is a": 5,
    "Question: What is Boston?\nAnswer:": 9,
}  # the teaching model's tokenizer.json


def response(tokens: int = 16, reason: str = "stop", stop: str | None = ".", prompt: int = 5) -> dict:
    """A server's answer, as JSON has it."""
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return {"choices": [{"text": " city", "finish_reason": reason, "stop_reason": stop}], "usage": usage}


class Typed:
    """The same as openai's package gives it."""

    def __init__(self, data: dict):
        self.model_dump = lambda: data


@pytest.fixture(autouse=True)
def counting_server(monkeypatch):
    """A server that counts as the teaching model's does."""

    def complete(prompt, *, max_tokens, min_tokens=None, temperature):
        assert min_tokens in (None, max_tokens), "the count must not depend on what the model says"
        return SimpleNamespace(usage=SimpleNamespace(**response(max_tokens, prompt=PROMPT_TOKENS[prompt])["usage"]))

    monkeypatch.setattr(workshop, "connect", lambda: SimpleNamespace(complete=complete, url=URL))


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    path = tmp_path_factory.mktemp("batch") / "answers.jsonl"
    path.write_text("".join(json.dumps({"custom_id": name}) + "\n" for name in ("a", "b", "a", "c")))
    return path


def parts(first, second):
    x, w1, w2 = toy()
    return tuple(np.maximum(x @ w1[:, half], 0) @ w2[half] for half in (first, second))


def without_f():
    x, w1, w2 = toy()
    return x @ w1[:, :4] @ w2[:4], x @ w1[:, 4:] @ w2[4:]


def whole():
    x, w1, w2 = toy()
    return np.maximum(x @ w1, 0) @ w2


HALVES = parts(slice(0, 4), slice(4, 8))
COUNTS = {"lines": 4, "different": 3, "twice": 1}
WORDS = {"a": 3, "the": 1}


def best(scored):
    return max(scored, key=lambda label: total_logprob(scored[label]))


def surprising(rows):
    return max((row for row in rows if row.logprob is not None), key=lambda row: row.surprise_bits).token


PATH = object()
# Of each check: right answers, then wrong ones with the words that they get. PATH stands for the batch's output.
CHECKS = {
    "start.stop": (
        [response(), Typed(response())],
        [
            (response(reason="length", stop=None), "which string"),
            (response(stop=None), "end-of-text"),
            (response(stop="port"), "'port' ended it; a full stop"),
            (response(prompt=4), "another prompt: usage counts 4"),
            (" city.", "whole answer"),
            (response()["choices"][0], "whole answer"),
        ],
    ),
    "start.total_tokens": (
        [45],
        [
            (40, "the prompt's tokens count"),
            (44, "one more token"),
            (21, "the first request"),
            (5, "the prompt's tokens alone"),
            (46, "nothing is added"),
            (99, "too large"),
            ("45", "without quotes"),
        ],
    ),
    "memory.weights_405b": (
        [810, 405e9 * 2 / 1e9],
        [
            (405, "16 bits"),
            (1620, "float32"),
            (754.4, "GiB"),
            (810e9, "10**9"),
            (6480, "gigabits"),
            (807, "too small"),
            (800, "too small"),
            (815, "too large"),
            ("810", "without quotes"),
            ("810 GB", "without the unit"),
        ],
    ),
    "memory.gpus_405b": (
        [{"H100": 11, "A100": 21}],
        [
            ({"H100": 10, "A100": 20}, "round up"),
            ({"H100": 10.125, "A100": 21}, "part"),
            ({"H100": "11", "A100": "21"}, "without quotes"),
            ({"H100": 16, "A100": 21}, "fewer are enough"),
            ({"H100": 11, "A100": 2}, "too few"),
            (11, "give both"),
        ],
    ),
    "memory.kv_bytes_per_token": (
        [131072, (2, 32, 8, 128, 2), [2, 32, np.int64(8), 128.0, 2]],
        [
            (65536, "K or V"),
            ((2, 32, 32, 128, 2), "8 KV heads"),
            ((2, 32, 8, 64, 2), "K or V"),
            ((131, 72), "commas"),
            ((2, 32, "8", 128, 2), "not a number"),
            (524288, "8 KV heads"),
            (262144, "already the factor 2"),
            (4096, "one layer"),
            (128, "KiB"),
            (1048576, "bits"),
            (131000, "too small"),
            ("128 KiB", "without the unit: it is bytes"),
        ],
    ),
    "memory.kv_request_70b": (
        [39.0625, 39.06, 39.1],
        [
            (40.0, "131,072"),
            (39, "one digit after the point"),
            (15.625, "70B has 80"),
            (0.3125, "one token"),
            (41.943, "GB"),
            (41_943_040_000, "bytes"),
            (312.5, "64 heads"),
            (19.53, "twice as much"),
            (39.4, "too large"),
        ],
    ),
    "memory.fewest_h100": (
        [3],
        [
            (1, "80 GB"),
            (2, "not one request"),
            (4, "pipeline_parallel_size"),
            (8, "more than needed"),
            (16, "two nodes"),
            ((1, 3), "that is the split"),
            (5, "too large"),
        ],
    ),
    "memory.one_change": (
        [
            replace(TIGHT_CASE, kv_cache_dtype="fp8"),
            replace(TIGHT_CASE, gpus=8),
            SimpleNamespace(case=replace(TIGHT_CASE, gpus=8)),
        ],
        [
            (TIGHT_CASE, "nothing is changed"),
            (replace(TIGHT_CASE, requests=8), "smaller requests"),
            (replace(TIGHT_CASE, context=65536), "smaller context"),
            (replace(TIGHT_CASE, gpus=8, kv_cache_dtype="fp8"), "2 changes"),
            (replace(TIGHT_CASE, weights="fp8"), "not 16"),
            ("fp8", "sliders.case"),
        ],
    ),
    "memory.block_tokens": (
        [12640],
        [
            (790, "those are the blocks"),
            (49.375, "not fewer"),
            (25280, "not counted twice"),
            (101120, "on a CPU"),
            (6320, "more than 8"),
            (12_600, "too small"),
        ],
    ),
    "parallelism.nvlink": (
        [900],
        [
            (450, "one direction"),
            (225, "three neighbours"),
            (1800, "every pair once"),
            (600, "more than four pairs"),
            (300, "more pairs"),
            (150, "one pair"),
            (890, "too small"),
        ],
    ),
    "parallelism.partial_sums": (
        [HALVES, HALVES[::-1], parts(slice(0, None, 2), slice(1, None, 2)), [half.tolist() for half in HALVES]],
        [
            (parts(slice(0, 8), slice(0, 8)), "whole already"),
            (parts(slice(0, 4), slice(0, 4)), "must match"),
            ([whole() / 2] * 2, "other columns"),
            (without_f(), "f is missing"),
            ((0.3 * whole(), 0.7 * whole()), "four of the hidden numbers"),
            (parts(slice(0, 3), slice(3, 8)), "four of the hidden numbers"),
            ((np.ones(4), np.ones(4)), "shape"),
            (3, "both partial results"),
        ],
    ),
    "parallelism.decide": (
        [DECIDED, {name: list(each) for name, each in DECIDED.items()}],
        [
            ({**DECIDED, "A": (4, 1)}, "nothing is split"),
            ({**DECIDED, "D": (4, 1)}, "71"),
            ({**DECIDED, "D": (1, 1)}, "too small"),
            ({**DECIDED, "D": (1, 71)}, "71 is not the number of GPUs"),
            ({**DECIDED, "B": (1, 1)}, "too small"),
            ({**DECIDED, "C": (2, 8)}, "other way"),
            ({**DECIDED, "C": (16, 1)}, "fast network"),
            ({**DECIDED, "C": (4, 4)}, "GPUs of a node"),
            ({**DECIDED, "B": 4}, "give (tensor"),
            ({"A": (1, 1)}, "all of"),
        ],
    ),
    "parallelism.all_reduce_bytes": (
        [8_257_536],
        [
            (4_128_768, "two all-reduces"),
            (65536, "one layer"),
            (252, "the messages"),
            (8 * 8_257_536, "however many GPUs"),
            (16 * 8_257_536, "one token"),
            (7.875, "MiB"),
            (8_000_000, "too small"),
        ],
    ),
    "parallelism.tokens_tp2": (
        [131072],
        [
            (65536, "one rank"),
            (32768, "more room"),
            (262144, "not four"),
            (1024, "bytes of one token"),
            (512, "on each rank"),
            (131000, "too small"),
        ],
    ),
    "server.output_path": (
        ["/scratch/ada/%x_%j.out", "--output=/scratch/ada/%x_%j.out", "#SBATCH --output=/scratch/ada/%x_%j.out"],
        [
            ("/scratch/ada/70b_4711.out", "differ from job to job"),
            ("/scratch/ada/%x_$SLURM_JOB_ID.out", "not bash"),
            ("~/%x_%j.out", "not bash"),
            ("/scratch/ada/%x_%j/output.out", "SLURM makes no folder: without /scratch/ada/70b_4711"),
            ("%x_%j.out", "would write to 70b_4711.out"),
            ("/scratch/ada/%j_%x.out", "4711_70b.out"),
            (4711, "give a string"),
        ],
    ),
    "server.split": (
        [(8, 2), [8, 2]],
        [
            ((16, 1), "all 16"),
            ((8, 4), "product is 32"),
            ((1, 16), "stays inside a node"),
            ((4, 4), "counts more"),
            ((2, 8), "other way round"),
            (4, "two numbers"),
            (("4", "4"), "two numbers"),
        ],
    ),
    "server.budget": (
        [3248, 3247.2, 3240, 3250, 405.9e9 * 2 / 0.25e9],
        [
            (3248 / 60, "minutes"),
            (203, "not times"),
            (4148, "15 minutes"),
            (1624, "two bytes"),
            (3248 * 8, "Gbit"),
            (3300, "too large"),
        ],
    ),
    "server.weights_gib": (
        [131.56, (32.89, 4), [4, 32.89], 131.6, 132],
        [
            (32.89, "one rank"),
            ((32.89, 1), "one rank"),
            (141.26, "GB"),
            (8.2225, "divided"),
            ((32.89, 3), "from 0 to 3"),
            (65.78, "more ranks"),
            (128, "too small"),
        ],
    ),
    "server.kv_tokens": (
        [1_229_264],
        [
            ((1, 229, 264), "leave out the commas"),
            ("1,229,264", "without quotes"),
            (93.79, "GiB a GPU"),
            (32.89, "weights"),
            (131_072, "max_model_len"),
            (243_696, "405b-fp8"),
            (1_229_000, "too small"),
        ],
    ),
    "server.endpoint": (
        [f"{URL}/chat/completions", f"{URL}/chat/completions/", "http://localhost:8000/v1/chat/completions"],
        [
            ("/v1/chat/completions", "the path"),
            (f"{URL}/completions", "conversation"),
            (f"{URL}/v1/chat/completions", "already"),
            ("http://127.0.0.1:9000/v1/chat/completions", "is not it"),
            (f"{URL}/chat", "is not it"),
            ("localhost:8000/v1/chat/completions", "begins with http"),
            (8000, "give a string"),
        ],
    ),
    "server.causes": (
        [CAUSES, pd.Series(CAUSES)],
        [
            ({**CAUSES, "C": "disk"}, "4 of 5 are right; log C"),
            ({**CAUSES, "A": "kv", "B": "port"}, "3 of 5"),
            ({"A": "port"}, "1 of 5"),
            ({"A": "gremlins"}, "no cause"),
            (["port", "kv", "shard", "killed", "divide"], "a dict"),
        ],
    ),
    "sampling.length": (
        [response(33, prompt=9), Typed(response(40, prompt=9)), response(30, prompt=9)],
        [
            (response(12, prompt=9), "at least 30"),
            (response(29, prompt=9), "at least 30"),
            (response(41, prompt=9), "limit it to 40"),
            (response(33, prompt=5), "another prompt"),
            ("text", "no answer of a server"),
        ],
    ),
    "sampling.softmax": (
        [0.8437947, 0.8438, 0.844, 0.84],
        [
            (0.85, "too large"),
            (20.0855, "divide it"),
            (0.75, "exponentiate first"),
            (23.8, "below the line"),
            (0.8808, "exp(0) is 1"),
            (84.38, "not percent"),
        ],
    ),
    "sampling.temperature": (
        [0.25 / 0.325, 0.7692, 0.77],
        [
            (0.25, "divide by the sum"),
            (0.5, "temperature 1"),
            (0.3398, "temperature 2"),
            (0.7071, "square root"),
            (0.325, "sum of the squares"),
            (76.92, "not percent"),
            (0.78, "too large"),
        ],
    ),
    "sampling.top_k": (
        [{"city": 5 / 7, "port": 2 / 7}, {"city": 0.71, "port": 0.29}],
        [
            ({"city": 0.5, "port": 0.2}, "shared out"),
            ({"city": 1.0}, "others should"),
            ({"city": 0.6, "port": 0.4}, "keep their ratio"),
            ({"city": "0.71", "port": "0.29"}, "without quotes"),
            (0.7, "no dictionary"),
        ],
    ),
    "sampling.top_p": (
        [3],
        [
            (1, "0.5"),
            (2, "0.7"),
            (4, "stop as soon"),
            (5, "all of them"),
            (0, "at least"),
            ("three", "not a number"),
        ],
    ),
    "sampling.order": (
        [4],
        [
            (3, "divides by the temperature first"),
            (5, "0.89"),
            (2, "0.55"),
            (1, "below 1"),
            (0, "at least"),
        ],
    ),
    "sampling.min_p": (
        [3],
        [(1, "relative to the best"), (2, "0.15"), (4, "0.1 is"), (5, "0.05"), (0, "compared with itself")],
    ),
    "sampling.frequency_penalty": (
        [math.exp(-1.5), 0.2231, 0.223, 0.22],
        [
            (0.6065, "each time"),
            (1.5, "its logit lost"),
            (-1.5, "change of its logit"),
            (4.4817, "other way round"),
            (0.125, "not halved"),
            (0.23, "too large"),
        ],
    ),
    "sampling.constant": (
        ["repetition_penalty", "repetition penalty", "Repetition-Penalty "],
        [
            ("nothing", "one parameter"),
            ("everything", "cancels"),
            ("temperature", "cancels"),
            ("frequency_penalty", "it subtracts"),
            ("min_p", "differences"),
            (5, "as a text"),
        ],
    ),
    "logprobs.entries": (
        [6],
        [(5, "when it is not"), (1, "logprobs=0"), (4, "always there"), (10, "besides"), (8192, "vocabulary")],
    ),
    "logprobs.generated": (
        [("20", "49"), ["20", "49"], (" 20", "49 ")],
        [
            (("49", "20"), "other way round"),
            (("20-minute", "49"), "two tokens"),
            (("20", "20"), "nearer to 0"),
            (("49", "49"), "begins with"),
            ("20", "two texts"),
            (("a", "b"), "are not it"),
        ],
    ),
    "logprobs.prompt": (
        [("San", "Question"), ["San", "Question"]],
        [
            (("Question", "San"), "other way round"),
            (("San", "San"), "not rank 1"),
            (("Question", "Question"), "what stood there"),
            (("San Francisco", "Question"), "two tokens"),
            ("San", "two texts"),
        ],
    ),
    "logprobs.probability": (
        [math.exp(-8.533774), 0.000197, 0.0002],
        [
            (-8.5338, "logprob itself"),
            (12.31, "surprise in bits"),
            (0.01966, "percent"),
            (5085, "the sign"),
            (0.0027, "not 2"),
            (0.0003, "too large"),
        ],
    ),
    "logprobs.bits": (
        [10],
        [
            (6.931, "nats"),
            (-10, "positive"),
            (1024, "halvings"),
            (3.0103, "base 10"),
            (0.0009766, "probability itself"),
        ],
    ),
    "logprobs.perplexity": (
        [math.exp(2), 7.389, 7.39, 7.4],
        [
            (2.0, "exponentiate"),
            (math.exp(6), "number of tokens"),
            (math.exp(-2), "the sign"),
            (4, "with e"),
            (math.e, "all three"),
            (7, "too small"),
        ],
    ),
    "logprobs.classify": (
        [best],
        [
            (lambda scored: max(scored, key=lambda label: sum(row.logprob for row in scored[label])), "None"),
            (lambda scored: min(scored, key=lambda label: total_logprob(scored[label])), "more probable"),
            (lambda scored: max(scored, key=lambda label: total_logprob(scored[label]) / len(scored[label])), "means"),
            (lambda scored: "no", "more probable"),
            (lambda scored: max(scored, key=scored.get), "cannot be compared with each other"),
            (lambda scored: max(map(total_logprob, scored.values())), "return the label"),
            ("no", "no function"),
        ],
    ),
    "logprobs.surprising": (
        [surprising, lambda rows: min((row for row in rows if row.logprob), key=lambda row: row.logprob)],
        [
            (lambda rows: rows[1], "least surprising"),
            (lambda rows: " Berlin", "' moon' has the lowest"),
            (lambda rows: rows[2], "least surprising"),
            (lambda rows: "", "leave it out"),
            (lambda rows: rows[3], "lowest logprob"),
            (lambda rows: max(rows, key=lambda row: row.surprise_bits), "both are None"),
            (lambda rows: max(row.surprise_bits for row in rows if row.logprob), "return the token"),
            (" Berlin", "no function"),
        ],
    ),
    "logprobs.raw": (
        [math.log(0.4), -0.916, -0.92, -0.9],
        [
            (0.0, "processed one"),
            (0.4, "logarithm"),
            (0.9163, "negative"),
            (-1.3219, "bits"),
            (-0.3979, "base 10"),
            (-0.8, "too large"),
        ],
    ),
    "many.waves": (
        [{3: 1, 4: 1, 5: 2}, pd.Series({3: 1, 4: 1, 5: 2})],
        [
            ({3: 1, 4: 1, 5: 1}, "fifth"),
            ({3: 1, 4: 2, 5: 2}, "4 prompts"),
            ({3: 3, 4: 4, 5: 5}, "3 prompts"),
            ({3: 1, 4: 1, 5: 5}, "only the fifth"),
            ({3: 1, 4: 1, 5: "2"}, "5 prompts: give 2 as a number"),
            ([1, 1, 2], "a dict"),
        ],
    ),
    "many.barrier": (
        [(SPANS, 4 + 2), (LATER, 6.5)],
        [
            ((SPANS, 4), "slowest request"),
            ((SPANS, 12), "one after the other"),
            ((SPANS, 3), "no thread ever waited"),
            ((LATER, 5.9), "four threads"),
            ((SPANS, 9), "too large"),
            ((SPANS, "6"), "without quotes"),
            (6, "the spans"),
        ],
    ),
    "many.knee": (
        [(SWEEP, 8)],
        [
            ((SWEEP, 16), "4.5 times"),
            ((SWEEP, 4), "another number gives more"),
            ((SWEEP, 1), "another number gives more"),
            ((SWEEP, 3), "not measured"),
            ((SWEEP, "8"), "without quotes"),
            (8, "give (sweep"),
        ],
    ),
    "many.kv_peak": (
        [(10_240, 1000, 0.39), (10_240, 1000, 0.390625), (10_240, 1000, 0.4)],
        [
            ((10_240, 1000, 39), "not percent"),
            ((10_240, 1000, 0.098), "one request"),
            ((10_240, 1000, 4000), "tokens"),
            ((10_240, 1000, 2.56), "other way round"),
            ((10_240, 1000, 0.609), "stays free"),
            ((10_240, 1000, 0.5), "too large"),
        ],
    ),
    "offline.left": (
        [(1000, 700, 300)],
        [
            ((1000, 700, 1000), "everything again"),
            ((1000, 700, 700), "have their answer already"),
            ((1000, 700, 5), "there are 1000 rows, and 700"),
            ((1000, 700, 0), "before its end"),
            ((1000, 700, "300"), "without quotes"),
        ],
    ),
    "offline.once": (
        [(PATH, COUNTS), (PATH, pd.Series(COUNTS))],
        [
            ((PATH, {**COUNTS, "lines": 3}), "every line"),
            ((PATH, {**COUNTS, "different": 4}), "each custom_id once"),
            ((PATH, {**COUNTS, "twice": 2}), "more than one line"),
            ((PATH, {"lines": 4, "different": 3}), "needs twice"),
            ((PATH, {**COUNTS, "thrice": 0}), "leave thrice out"),
            ((PATH, 4), "needs lines, different, twice"),
        ],
    ),
    "offline.common": (
        [(FRAME, WORDS), (FRAME, FRAME.text.str.split().str[0].value_counts())],
        [
            ((FRAME, FRAME.text.str.split().str[1].value_counts()), "words differ"),
            ((FRAME, {"a": 1, "the": 1}), "add up to 2; there are 4"),
            ((FRAME, {"a": "3"}), "is a number"),
            ((FRAME, {"": 4}), "begin with a space"),
            ((FRAME, FRAME.text.str.strip().str[0].value_counts()), "first characters"),
            ((FRAME, ["a", "the"]), "Series or a dict"),
            (WORDS, "give (the frame"),
        ],
    ),
    "elsewhere.faults": (
        [FIVE, set(FIVE), tuple(FIVE), np.array(FIVE)],
        [
            (["dtype"], "1 of 5"),
            ([*FIVE, "user"], "'user' is not broken"),
            (["colour"], "no policy 'colour'"),
            ("dtype", "a list"),
            (5, "a list"),
        ],
    ),
    "elsewhere.disk": (
        [141.1, 141, 70.55 * 2],
        [
            (131.4, "GiB"),
            (70.55, "two bytes"),
            (282.2, "not four"),
            (141.1e9, "10**9"),
            (1128.8, "gigabits"),
            (140, "too small"),
        ],
    ),
    "elsewhere.machines": (
        [SMALL, set(SMALL), np.array(SMALL)],
        [
            ([*SMALL, "p5.48xlarge"], "does hold it"),
            (SMALL[:1], "2 more"),
            ([], "3 more"),
            (["laptop"], "no machine"),
            (SMALL[0], "list or set"),
        ],
    ),
    "elsewhere.codes": (
        [[3, -2, 1, -7], (3, -2, 1, -7), np.array([3, -2, 1, -7]), [3.0, -2.0, 1.0, -7.0]],
        [
            ([2, -1, 0, -7], "instead of cutting off"),
            ([3, -2, 1, -8], "-7.20"),
            ([2.6, -1.75, 0.65, -7.2], "whole number"),
            ([3, -2], "4 codes"),
            ([3, -2, 1, -9], "from -8 to 7"),
            (None, "four whole numbers"),
        ],
    ),
    "elsewhere.bits": (
        [4.15625, 4.156, 4.16],
        [
            (4, "zero point"),
            (4.125, "4 bits more"),
            (24, "serve 128"),
            (4.3125, "has 128"),
            (0.15625, "own code"),
            (4.2, "too large"),
        ],
    ),
    "elsewhere.jamba": (
        [16384],
        [
            (131072, "4 of its 32"),
            (8192, "twice that"),
            (65536, "not 32"),
            (16, "KiB"),
            (114688, "Mamba layers"),
            (16000, "too small"),
        ],
    ),
} | CAPSTONE
NUMBERS = [
    (key, right)
    for key, (rights, _) in CHECKS.items()
    for right in rights
    if isinstance(right, int | float) and not isinstance(right, bool)
]


def forms(number: float) -> list:
    """One number in the types that a notebook's cells may make of it."""
    made = [
        number, float(number), np.float64(number), np.array(number), np.array([number]), Decimal(repr(number)),
        Fraction(repr(number)), pd.Series([number]), (number,), [number],
    ]  # fmt: skip
    whole_number = [int(number), np.int64(number), np.array(int(number)), pd.Series([int(number)])]
    return made + (whole_number if float(number).is_integer() else [])


def put(answer, output):
    return (output, answer[1]) if isinstance(answer, tuple) and answer[0] is PATH else answer


def test_every_check_of_the_course_is_here_with_five_wrong_answers():
    assert list(CHECKS) == [key for key, exercise in all_exercises().items() if not exercise.options]
    assert [key for key, (right, wrong) in CHECKS.items() if not right or len(wrong) < 5] == []


@pytest.mark.parametrize("key", CHECKS)
def test_right_answers_are_right(key, output):
    for answer in CHECKS[key][0]:
        assert all_exercises()[key].test(put(answer, output)) is None, repr(answer)


@pytest.mark.parametrize(("key", "right"), NUMBERS)
def test_a_number_is_a_number_whoever_made_it(key, right):
    made = forms(right)
    assert len(made) >= 10
    for answer in made:
        assert all_exercises()[key].test(answer) is None, repr(answer)


@pytest.mark.parametrize("key", CHECKS)
def test_parts_of_an_answer_may_be_numpys(key, output):
    def numpys(part):
        if isinstance(part, dict):
            return {name: numpys(each) for name, each in part.items()}
        if isinstance(part, tuple | list) and not isinstance(part, np.ndarray):
            return type(part)(map(numpys, part))
        return np.int64(part) if isinstance(part, int) else np.float64(part) if isinstance(part, float) else part

    for answer in CHECKS[key][0]:
        assert all_exercises()[key].test(numpys(put(answer, output))) is None, repr(answer)


@pytest.mark.parametrize("key", CHECKS)
def test_wrong_answers_are_told_what_is_off(key, output):
    for answer, words in CHECKS[key][1]:
        said = all_exercises()[key].test(put(answer, output))
        assert said and words in said, (answer, said)


@pytest.mark.parametrize("key", ["start.stop", "sampling.length"])
def test_a_right_answer_stays_right_without_its_server(key, monkeypatch):
    def connect():
        raise WorkshopError("There are two servers.")

    monkeypatch.setattr(workshop, "connect", connect)
    assert all_exercises()[key].test(CHECKS[key][0][0]) is None


@pytest.mark.parametrize("key", CHECKS)
def test_every_typical_wrong_answer_of_a_check_is_tried(key, output):
    said = {all_exercises()[key].test(put(answer, output)) for answer, _ in CHECKS[key][1]}
    assert set(all_exercises()[key].wrong.values()) <= said, "words that no row of CHECKS gets"


@pytest.mark.parametrize("key", dict(NUMBERS))
@pytest.mark.parametrize("answer", [True, None, float("nan"), float("inf"), "a number", [1, 2, 3], len, {}])
def test_what_is_no_number_is_said_to_be_none(key, answer):
    said = all_exercises()[key].test(answer)
    assert said and ("is not a number" in said or "leave out" in said)


@pytest.mark.parametrize("key", CHECKS)
def test_hints_lead_and_none_is_the_answer(key):
    exercise = all_exercises()[key]
    assert len(exercise.hints) >= 2
    for hint in exercise.hints:
        for sum_or_call in re.findall(r"-?math\.\w+\([^()]*\)|[\d(][\de\s.*+/()_-]+[\d)]", hint):
            with contextlib.suppress(SyntaxError):
                assert exercise.test(eval(sum_or_call, {"math": math})) is not None, f"{sum_or_call!r} is the answer"
    for answer in CHECKS[key][0]:
        if isinstance(answer, str | int) and len(str(answer)) > 2:
            assert not any(str(answer) in hint.replace(",", "") for hint in exercise.hints)
