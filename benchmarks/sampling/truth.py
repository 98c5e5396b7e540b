"""Is what we compute what vLLM samples? 2,000 samples a setting and prompt against our distribution.

    python benchmarks/sampling/truth.py            # needs a running server; writes docs/sampling.md

Each pair of setting and prompt gives evidence against our distribution, and bounds on how often chance gives as much
and how often a wrong computation gives too little (evidence.py). tests/client/test_sampling_live.py runs the same.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from cases import CASES, PROMPTS, STOP, WRONG, Case, Compute, ours  # noqa: E402
from evidence import chance, evidence, freedom, group, limit, missed  # noqa: E402

from benchmarks.page_tables import with_tables  # noqa: E402
from workshop.client.logprobs import next_token_logprobs  # noqa: E402
from workshop.client.sampling_settings import Settings  # noqa: E402

SAMPLES = 2000
# All that a run of the tests compares may raise a false alarm once in a million runs: Bonferroni over at most 200
# comparisons, each with a bound that holds for any number of samples (evidence.chance). A wrong computation has to be
# found out where it is missed less often than MISSED (evidence.missed): 60 such comparisons, 6 in 100,000 in all.
COMPARISONS = 200
ALARM = 1e-6 / COMPARISONS
MISSED = 1e-6
# How far a logit that is sampled from may be from the one that another request was told: one step of bfloat16 from 8
# to 16, where the highest logits are. On a CPU, with AVX-512 and with AVX2, none of 32,000 samples showed a difference.
DRIFT = 1 / 16
SMALLEST_GROUP = 40  # first tokens that came less often tell little, and cost a request each
# Where penalties are tested: the logits of the first token once more, of the prompt's last, and of six others.
LOGITS = (3.2, 2.0, 5.0, 4.5, 4.0, 3.5, 2.5, 1.5)


@dataclass(frozen=True)
class Outcome:
    """One comparison.

    Attributes:
        chance: at most this often do samples of the distribution that was tried give as much evidence against it.
        missed: at most this often would samples of our distribution give too little to find the tried one wrong.
        evidence: what there is, in parts of what raises the alarm.
        cells: how many counts were compared.
    """

    case: str
    prompt: str
    chance: float
    missed: float
    evidence: float
    cells: int
    samples: int

    @property
    def alarm(self) -> bool:
        """Whether the samples say that they come from another distribution."""
        return self.chance < ALARM


def logit_offset(logprobs: dict[int, float]) -> float:
    """Return the constant that logprobs lack to be logits again: log Σ exp(logit).

    The server's logits are bfloat16 numbers, 8 significant bits each. Only with the right constant do thousands of
    logprobs become such numbers at once: that finds it exactly, without running the model here.

    Raises:
        ValueError: no constant does; the server computes its logits in another type.
    """
    values = list(logprobs.values())
    best = max(values)
    # the highest logit: bfloat16, -10 to 60
    offsets = [step / 32 - best for step in range(-320, 1920)]
    for few in (60, 1500):  # a quick look first
        some = values[:: len(values) // few]
        misses = {offset: sum(not _is_bfloat16(x + offset) for x in some) for offset in offsets}
        offsets = sorted(offsets, key=misses.__getitem__)[:50]
    if misses[offsets[0]] > 0.001 * few or misses[offsets[1]] == misses[offsets[0]]:
        raise ValueError(
            f"no one constant makes bfloat16 numbers of these logprobs: {misses[offsets[0]]} of {few} are "
            f"none at best, {misses[offsets[1]]} at second best"
        )
    return offsets[0]


def _is_bfloat16(x: float) -> bool:
    """Whether x is within float32 rounding of a number with 8 significant bits."""
    if abs(x) < 0.25:
        return True  # the grid there is finer than what rounding leaves
    grid = 2.0 ** (math.frexp(x)[1] - 8)
    return abs(x / grid - round(x / grid)) * grid < 2e-5


def ranked(logprobs: Mapping[int, float]) -> list[int]:
    """Return the tokens, the most probable first."""
    return sorted(logprobs, key=logprobs.__getitem__, reverse=True)


class Server:
    """What the truth test asks of a client; answers are kept, because many cases ask for the same position."""

    def __init__(self, client, seed: int = 0):
        self.client, self.seed = client, seed
        self.position = functools.cache(self._position)
        self.offset = functools.cache(lambda context: logit_offset(self.position(context)[0]))
        self.samples = functools.cache(self._samples)

    def prompt_tokens(self, prompt: str) -> tuple[int, ...]:
        """Return the prompt's token ids, the beginning-of-text token included."""
        return self.position(prompt)[1]

    def _position(self, context: str | tuple[int, ...]) -> tuple[dict[int, float], tuple[int, ...]]:
        prompt = context if isinstance(context, str) else list(context)
        answer = self.client.complete(
            prompt,
            max_tokens=1,
            temperature=0,
            logprobs=-1,
            return_token_ids=True,
            return_tokens_as_token_ids=True,
        )
        return next_token_logprobs(answer), tuple(answer.choices[0].prompt_token_ids)

    def bias(self, prompt: str, settings: Settings) -> dict[int, float]:
        """Return the `logit_bias` with which 8 tokens have LOGITS after the most probable first token.

        That one then comes first, because of all 8 it is what loses most by having been said.
        """
        tokens = self.prompt_tokens(prompt)
        first, *_ = ranked(self.position(tokens)[0])
        after = (*tokens, first)
        logprobs, _ = self.position(after)
        chosen = list(
            dict.fromkeys(
                token for token in (first, tokens[-1], *ranked(logprobs)) if token not in STOP
            )
        )
        offset = self.offset(after) if settings.repetition_penalty != 1 else 0.0
        return {
            token: x - logprobs[token] - offset for token, x in zip(chosen, LOGITS, strict=False)
        }

    def _samples(self, prompt: str, case: Case) -> list[tuple[int, ...]]:
        # n samples of seed s are those of s, s + 1, …: SAMPLES apart, so that no noise is drawn twice.
        number = (self.seed * len(CASES) + CASES.index(case)) * len(PROMPTS) + PROMPTS.index(prompt)
        n = 1 if case.settings.greedy else SAMPLES
        bias = self.bias(prompt, case.settings) if case.few else {}
        extra = {
            "allowed_token_ids": list(bias),
            "logit_bias": {str(token): x for token, x in bias.items()},
        }
        answer = self.client.complete(
            prompt,
            max_tokens=max(case.token, case.settings.min_tokens),
            n=n,
            seed=number * SAMPLES,
            return_token_ids=True,
            **case.settings.request(),
            **(extra if case.few else {}),
        )
        return [tuple(choice.token_ids[: case.token]) for choice in answer.choices]


def compare(server: Server, case: Case, prompt: str, compute: Compute = ours) -> Outcome:
    """Sample, and weigh what the samples say against `compute`; the second token is compared given the first."""
    sampled: dict[tuple[int, ...], Counter] = defaultdict(Counter)
    samples = server.samples(prompt, case)
    for tokens in samples:
        if len(tokens) == case.token:  # an answer may end after one token
            sampled[tokens[:-1]][tokens[-1]] += 1
    groups = []
    for first, counts in sampled.items():
        if not first or counts.total() >= SMALLEST_GROUP:
            position = at(server, case, prompt, first)
            say = {way: way(*position).probabilities for way in {compute, ours}}
            leave_out = set().union(*(unsure(way, *position) for way in say))
            groups.append(group(counts, say[compute], say[ours], leave_out))
    x, free = evidence(groups), freedom(groups)
    return Outcome(
        case.name,
        prompt,
        chance(x, free),
        missed(groups, ALARM),
        x / limit(ALARM, free),
        sum(len(comparison.expected) for comparison in groups),
        len(samples),
    )


def at(server: Server, case: Case, prompt: str, first: tuple[int, ...]) -> tuple:
    """Return what a computation is told of the position after the first tokens: the arguments of a Compute."""
    prompt_tokens = server.prompt_tokens(prompt)
    context = (*prompt_tokens, *first)
    logprobs, _ = server.position(context)
    if case.few:  # the others cannot come: what is left is the whole vocabulary
        logprobs = {
            token: logprobs[token] + more
            for token, more in server.bias(prompt, case.settings).items()
        }
    offset = server.offset(context) if case.settings.repetition_penalty != 1 else 0.0
    return logprobs, case.settings, first, prompt_tokens, offset


def unsure(compute: Compute, logprobs: dict, settings: Settings, *more) -> set[int]:
    """Return the tokens that stay or go by less than what logits may drift: those at the border of what is cut off."""
    if settings.greedy:
        best = max(logprobs.values())
        near = {token for token, x in logprobs.items() if x >= best - 2 * DRIFT}
        return near if len(near) > 1 else set()
    uncut = settings.without("top_k", "top_p", "min_p")
    if settings == uncut:
        return set()
    factor = math.exp(2 * DRIFT / settings.temperature)
    before = compute(logprobs, uncut, *more).probabilities
    many, few = (
        compute(logprobs, _moved(settings, f), *more).probabilities for f in (factor, 1 / factor)
    )
    last, first_out = (
        min(map(before.get, many)),
        max((p for token, p in before.items() if token not in few), default=0),
    )
    return {
        token
        for token, p in before.items()
        if (token in many or p >= last / factor) and not (token in few and p > first_out * factor)
    }


def _moved(settings: Settings, factor: float) -> Settings:
    """Return settings that keep what may stay if the kept are more probable by a factor, or less (below 1)."""
    odds = settings.top_p / (1 - settings.top_p) * factor if settings.top_p < 1 else 0.0
    return replace(
        settings, top_p=odds / (1 + odds) if odds else 1.0, min_p=min(1.0, settings.min_p / factor)
    )


def run_all(server: Server) -> list[Outcome]:
    """Return every case on every prompt."""
    return [compare(server, case, prompt) for case in CASES for prompt in PROMPTS]


def run_wrong(server: Server) -> dict[str, list[Outcome]]:
    """Return what the wrong orders give, on the samples that the right one is tested with."""
    by_name = {case.name: case for case in CASES}
    return {
        name: [compare(server, by_name[case], prompt, compute) for prompt in PROMPTS]
        for name, (case, compute) in WRONG.items()
    }


def table(outcomes: list[Outcome], wrong: dict[str, list[Outcome]]) -> str:
    """Return the two tables of docs/sampling.md."""
    lines = [
        "| setting | token | cells compared | evidence, most of 5 prompts |",
        "|---|---|---:|---:|",
    ]
    for case in CASES:
        case_outcomes = [outcome for outcome in outcomes if outcome.case == case.name]
        which = "first" if case.token == 1 else "second, given the first"
        lines.append(
            f"| {case.name} | {which} | {sum(outcome.cells for outcome in case_outcomes)} | {max(outcome.evidence for outcome in case_outcomes):.2f} |"
        )
    lines += [
        "",
        "| computed wrongly | found out | evidence, least of 5 | missed at most |",
        "|---|---:|---:|---:|",
    ]
    for name, case_outcomes in wrong.items():
        least, most = (
            min(outcome.evidence for outcome in case_outcomes),
            max(outcome.missed for outcome in case_outcomes),
        )
        lines.append(
            f"| {name} | {sum(outcome.alarm for outcome in case_outcomes)} of {len(case_outcomes)} | "
            f"{f'{least:.1f}' if least < math.inf else 'sampled what it calls impossible'} | "
            f"{f'{most:.0e}' if most else 0} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run everything against the server that connect() finds."""
    from workshop import connect

    server = Server(connect())
    outcomes, wrong = run_all(server), run_wrong(server)
    text = table(outcomes, wrong)
    print(text)
    page = ROOT / "docs" / "sampling.md"
    page.write_text(with_tables(page.read_text(encoding="utf-8"), truth=text), encoding="utf-8")
    return int(any(outcome.alarm for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
