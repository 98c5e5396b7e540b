"""Run as a process of its own: the steps of a live CPU engine and of the simulation's, for the same requests.

Prints {"live": [...], "simulated": [...]}; a step is {"work": {request: [new tokens, computed before]}, "preempted"}.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

from workshop.simulate.engine import CONFIG, ENVIRONMENT, Engine, Rules

os.environ.update(ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING="0")
RULES = Rules(
    num_gpu_blocks=40,
    block_size=32,
    max_model_len=512,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    async_scheduling=False,
)


def requests() -> list[tuple[int, str, list[int], int]]:
    """Return (step before which it comes, name, prompt, tokens of the answer): mixed lengths, a shared beginning."""
    dice, shared = random.Random(0), [random.Random(1).randrange(5, 4000) for _ in range(64)]
    arrivals = []
    for number in range(24):
        own = [dice.randrange(5, 4000) for _ in range(dice.randrange(8, 300))]
        prompt = shared + own if number % 3 == 0 else own
        arrivals.append((dice.randrange(40), f"r{number}", prompt, dice.randrange(2, 90)))
    return sorted(arrivals, key=lambda arrival: arrival[0])


def simulated() -> list[dict]:
    engine, todo, steps = Engine(RULES), requests(), []
    while todo or engine.unfinished:
        while todo and todo[0][0] <= len(steps):
            _, name, prompt, tokens = todo.pop(0)
            engine.add(name, prompt, tokens)
        step = engine.schedule()
        engine.update(step)
        work = {name: [new, before] for name, new, before, _ in step.work}
        steps.append({"work": work, "preempted": sorted(step.preempted)})
    return steps


def arguments(rules: Rules) -> dict[str, Any]:
    """Return the arguments of an LLM with the same rules."""
    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
    return {
        "model": str(CONFIG),
        "enforce_eager": True,
        "num_gpu_blocks_override": rules.num_gpu_blocks,
        "enable_prefix_caching": True,
        **{name: getattr(rules, name) for name in names},
    }


def live() -> list[dict]:
    from vllm import LLM, SamplingParams

    llm = LLM(**arguments(RULES))
    engine, todo, steps = llm.llm_engine, requests(), []
    scheduler = engine.engine_core.engine_core.scheduler
    schedule = scheduler.schedule

    def noted(*args):
        output = schedule(*args)
        work = {
            name.rsplit("-", 1)[0]: [new, scheduler.requests[name].num_computed_tokens - new]
            for name, new in output.num_scheduled_tokens.items()
        }
        preempted = sorted(name.rsplit("-", 1)[0] for name in output.preempted_req_ids or ())
        steps.append({"work": work, "preempted": preempted})
        return output

    scheduler.schedule = noted
    while todo or engine.has_unfinished_requests():
        while todo and todo[0][0] <= len(steps):
            _, name, prompt, tokens = todo.pop(0)
            sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        engine.step()
    return steps


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump({"simulated": simulated(), "live": live()}, answers)
    answers.flush()
    os._exit(0)  # vLLM's own threads are of no more use
