"""Judges of the capstone: they work on the learner's own model, plan, log and file.

Their words: ecapstone.toml.
"""

import re
from pathlib import Path

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_model
from inference_planner.catalog.config import ModelConfig
from inference_planner.model.weights import weight_bytes

from workshop.batch.progress import Summary
from workshop.course.exercises.judging import Exercise, called, close_to, is_number, not_a_number
from workshop.engine.reconcile.compare import Reconciliation
from workshop.errors import WorkshopError

ASKED = {
    "need": "what you need it for",
    "surprise": "what surprised you",
    "next": "what you do next",
}
LEAST_WORDS = 12
# between a flag and its value: in a command, a variable's default, a list of YAML
TO = r"[=:\s\"',-]+"
VALUE = rf"{TO}(\d\w*|\$)"  # only a number is judged: no variable, no 8K
FLAGS = {  # how scripts, manifests and commands give vLLM what a plan decides
    "--tensor-parallel-size": rf"(?:--tensor-parallel-size|-tp|tensor_parallel_size){VALUE}",
    "--pipeline-parallel-size": rf"(?:--pipeline-parallel-size|-pp|pipeline_parallel_size){VALUE}",
    "--max-model-len": rf"(?:--max-model-len|max_model_len){VALUE}",
}
COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*")
SECRET = re.compile(r"--api-key(?!-)[=\s\"',-]+\w|(?:API_KEY|TOKEN)=['\"]?[\w-]{12,}")


def weights(model: str | Path | ModelConfig, told: object) -> str | None:
    try:
        size = weight_bytes(load_model(model))
    except WorkshopError as error:
        return f"{error.message} {error.remedy}"
    wrong: dict[object, str] = {
        size / 1e9: "those are GB of 10**9 bytes; GPUs count in GiB of 2**30",
        size: "those are bytes; divide by 2**30",
        size / 2**31: "that is half: look how many bytes one parameter has",
        size / 2**29: "that is twice as much: look how many bytes one parameter has",
    }
    return Exercise("", close_to(size / 2**30, "GiB", rel=0.02), wrong=wrong).test(told)


def at_once(plan: Plan, tokens: object, told: object) -> str | None:
    if not plan.fits:
        return f"this plan does not fit. {' '.join(plan.advice)}"
    if not is_number(tokens) or not 0 < tokens <= plan.deployment.settings.max_model_len:
        longest = f"the longest request of this plan has {plan.deployment.settings.max_model_len:,} tokens"
        return f"request_tokens is {tokens!r}; {longest}"
    cache_tokens = plan.kv_cache_tokens
    right = cache_tokens / tokens
    whole_server = "kv_cache_tokens counts the whole server already"
    whole_context = f"that is for requests of {plan.deployment.settings.max_model_len:,} tokens"
    wrong: dict[object, str] = {
        cache_tokens: "those are tokens; how many of your requests do they hold?",
        tokens
        / cache_tokens: "the other way round: divide what there is by what one request needs",
        plan.max_concurrency: f"{whole_context}; yours are shorter",
        right * plan.gpus: f"{whole_server}: do not multiply by the GPUs",
    }
    return Exercise("", close_to(right, rel=0.01 + 1 / right), wrong=wrong).test(told)


def script(plan: Plan, text: object) -> str | None:
    if not isinstance(text, str) or len(text.splitlines()) < 2:
        return "give the text itself, with all its lines: Path(…).read_text() reads a file"
    if SECRET.search(text):
        return (
            "there is a key in it: whoever may read the script could use your server. "
            "Put keys into a secret"
        )
    text = COMMENT.sub("", text)
    if re.search(rf"--api-key{TO}\$", text):
        return (
            "a key on a command line can be seen by everybody on that machine: "
            "vLLM reads VLLM_API_KEY by itself"
        )
    names = []
    for name in (*plan.deployment.model.hub_ids, plan.model):
        names.append(name.rsplit("/", 1)[-1])
    if not any(name.casefold() in text.casefold() for name in names):
        return f"it does not name the plan's model, {names[0]}"
    planned_and_default = {
        "--tensor-parallel-size": (plan.tensor_parallel_size, 1),
        "--pipeline-parallel-size": (plan.pipeline_parallel_size, 1),
        "--max-model-len": (
            plan.deployment.settings.max_model_len,
            plan.deployment.model.max_position_embeddings,
        ),
    }
    for flag, (planned, default) in planned_and_default.items():
        values = re.findall(FLAGS[flag], text)
        if not values and planned != default:
            return f"it says nothing for {flag}; the plan has {planned}"
        numbers = [value for value in values if value.isdecimal()]
        if numbers and str(planned) not in numbers:
            return f"it says {numbers[0]} for {flag}; the plan has {planned}"
    return None


def gap(compared: Reconciliation, told: object) -> str | None:
    errors = {}
    for row in compared.rows:
        if row.error_percent is not None:
            errors[row.quantity] = abs(row.error_percent)
    if not errors:
        return "this log has nothing to compare: did the start fail? Its reason is compared.failure"
    told = called(told, errors)
    if not isinstance(told, str) or told not in errors:
        return f"{told!r} is no quantity with an error here; there are: {', '.join(errors)}"
    if errors[told] == max(errors.values()):
        return None
    return f"{told} is off by {errors[told]:.2f} %, and another one by more"


def hours(summary: Summary, rows: object, told: object) -> str | None:
    if not summary.new:
        return (
            "this run answered nothing new, so it says nothing about time: "
            "run it with a new output file"
        )
    if not is_number(rows):
        return not_a_number(rows, "rows")
    right = rows * summary.seconds / summary.new / 3600
    wrong: dict[object, str] = {
        right * 3600: "those are seconds; an hour has 3,600",
        right * 60: "those are minutes; an hour has 60",
        summary.seconds / 3600: "that is for the rows of this run; your whole file has more",
        rows * summary.seconds / 3600: "that is as if every row took as long as this whole run",
    }
    return Exercise("", close_to(right, "hours", rel=0.02), wrong=wrong).test(told)


def words(answer: dict) -> str | None:
    for key, what in ASKED.items():
        if not isinstance(answer[key], str) or len(answer[key].split()) < LEAST_WORDS:
            short = f"{key!r} has fewer than {LEAST_WORDS} words"
            return f"{short}: say {what}, so that a stranger understands it"
    if len(set(answer.values())) < len(answer):
        return "two of the three say the same"
    if not re.search(r"\d", answer["surprise"]):
        return "put a figure into 'surprise': predicted, measured, or both"
    return None
