"""Run as a process of its own: prefix-cache hits of an agent's turns, in a live CPU engine and in the simulation.

Prints {"live": [tokens of each prompt that were cached], "simulated": [the same]}.
"""

from __future__ import annotations

import json
import os
import random

import live_steps

from workshop.simulate.arrivals import Arrival, SimulatedTexts
from workshop.simulate.engine import ENVIRONMENT, Engine, Rules

os.environ.update(ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING="0")
RULES = Rules(
    num_gpu_blocks=40,
    block_size=32,
    max_model_len=512,
    max_num_seqs=4,
    max_num_batched_tokens=512,
    async_scheduling=False,
)
SYSTEM = 70
NEW_TOKENS = (33, 20, 5, 48, 1)  # of each turn
OUTPUTS = (40, 17, 64, 9, 3)
AGENTS = 2


def arrivals() -> list[Arrival]:
    """Return the turns of two agents, in turn: each prompt is what all share, and the conversation so far."""
    load = []
    histories = [[("system", SYSTEM)] for _ in range(AGENTS)]
    for turn, (new, output) in enumerate(zip(NEW_TOKENS, OUTPUTS, strict=True)):
        for agent, history in enumerate(histories):
            history.append((f"agent {agent}, turn {turn}", new + agent))
            prompt = sum(tokens for _, tokens in history)
            answer = f"agent {agent}, answer {turn}"
            load.append(Arrival(0, prompt, output, pieces=tuple(history), answer=answer))
            history.append((answer, output))
    return load


def simulated() -> list[int]:
    engine = Engine(RULES)
    load = arrivals()
    texts = SimulatedTexts(load)
    hits = []
    for number, arrival in enumerate(load):
        token = texts.answer_token(arrival)
        engine.add(str(number), texts.prompt(arrival, number), arrival.output_tokens, token)
        while engine.unfinished:
            step = engine.schedule()
            hits += step.hits.values()
            engine.update(step)
    return hits


def live() -> list[int]:
    from vllm import LLM, SamplingParams

    llm = LLM(**live_steps.arguments(RULES))
    dice = random.Random(0)
    texts: dict[str, list[int]] = {}
    hits = []
    for arrival in arrivals():
        prompt = []
        for name, tokens in arrival.pieces:
            if name not in texts:
                texts[name] = [dice.randrange(5, 4000) for _ in range(tokens)]
            prompt += texts[name]
        sampling = SamplingParams(temperature=0, max_tokens=arrival.output_tokens, ignore_eos=True)
        (answer,) = llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        texts[arrival.answer] = list(answer.outputs[0].token_ids)
        hits.append(answer.num_cached_tokens)
    return hits


if __name__ == "__main__":
    print(json.dumps({"simulated": simulated(), "live": live()}))
