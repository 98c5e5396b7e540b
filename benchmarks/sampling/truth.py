"""Is what we compute what vLLM samples? 2,000 samples a setting and prompt against our distribution.

    python benchmarks/sampling/truth.py            # needs a running server; writes truth.json and docs/sampling.md

Each pair of setting and prompt gives one p-value: chi-square with small cells pooled, zero if vLLM ever sampled what
we call impossible. The p-values are multiplied by their number (Bonferroni). tests/use/test_sampling_live.py runs
the same with the same seeds.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scipy.stats import chi2

from workshop.use.logprobs import next_token_logprobs
from workshop.use.sampling import Pipeline, pipeline
from workshop.use.sampling_settings import Settings

SAMPLES = 2000
LEAST = 0.001      # an adjusted p below this means: not the same distribution
SMALLEST_CELL = 5  # expected count below which cells are pooled, as chi-square needs
SMALLEST_GROUP = 40   # first tokens that came less often tell little, and cost a request each
PROMPTS = ("San Francisco is a", "The king said to the", "To be, or not to", "My fellow citizens, we",
           "A large animal with a")
ALLOWED = 8        # where penalties are tested: a small vocabulary, so that the first token may well come again


@dataclass(frozen=True)
class Case:
    """A setting, and which token of the answer is compared: the first, or the second given the first.

    `few`: the request allows the 8 tokens only that are the most probable first ones (`allowed_token_ids`). The
    teaching model hardly ever writes a word twice in a row; among 8 tokens it has to, and penalties show.
    """

    name: str
    settings: Settings
    token: int = 1
    few: bool = False


CASES = (
    Case("greedy", Settings(temperature=0)),
    Case("temperature 0.5", Settings(temperature=0.5)),
    Case("everything off", Settings()),
    Case("temperature 1.6", Settings(temperature=1.6)),
    Case("top_k 5", Settings(top_k=5)),
    Case("top_k 20, temperature 1.5", Settings(top_k=20, temperature=1.5)),
    Case("top_p 0.7", Settings(top_p=0.7)),
    Case("top_p 0.8, temperature 1.5", Settings(top_p=0.8, temperature=1.5)),
    Case("top_p 0.9, temperature 0.6", Settings(top_p=0.9, temperature=0.6)),
    Case("min_p 0.1", Settings(min_p=0.1)),
    Case("min_p 0.05, temperature 1.6", Settings(min_p=0.05, temperature=1.6)),
    Case("top_k 30, top_p 0.8, temperature 1.5", Settings(top_k=30, top_p=0.8, temperature=1.5)),
    Case("min_p 0.02, top_k 12, top_p 0.9, temperature 1.4",
         Settings(min_p=0.02, top_k=12, top_p=0.9, temperature=1.4)),
    Case("min_tokens 2", Settings(min_tokens=2)),
    Case("top_k 6, top_p 0.7, temperature 1.7", Settings(top_k=6, top_p=0.7, temperature=1.7)),
    Case("frequency_penalty 1, everything else off", Settings(frequency_penalty=1.0), token=2),
    Case("frequency_penalty 1.5, temperature 1.5", Settings(frequency_penalty=1.5, temperature=1.5), 2, few=True),
    Case("frequency_penalty -2, temperature 0.7, top_k 4",
         Settings(frequency_penalty=-2.0, temperature=0.7, top_k=4), 2, few=True),
    Case("presence_penalty -1.5, top_p 0.9, temperature 1.3",
         Settings(presence_penalty=-1.5, top_p=0.9, temperature=1.3), 2, few=True),
    Case("repetition_penalty 0.7, temperature 1.3", Settings(repetition_penalty=0.7, temperature=1.3), 2, few=True),
    Case("repetition_penalty 1.3, temperature 1.5", Settings(repetition_penalty=1.3, temperature=1.5), 2, few=True),
    Case("repetition 1.2, frequency -1, presence 0.5, temperature 1.6, min_p 0.05, top_k 6, top_p 0.9",
         Settings(repetition_penalty=1.2, frequency_penalty=-1.0, presence_penalty=0.5, temperature=1.6, min_p=0.05,
                  top_k=6, top_p=0.9), 2, few=True),
)

# A way to compute: (logprobs, settings, output tokens, prompt tokens, logit of logprob 0) → pipeline.
Compute = Callable[[dict, Settings, Sequence[int], Sequence[int], float], Pipeline]


def ours(logprobs: dict, settings: Settings, output: Sequence[int], prompt: Sequence[int], offset: float,
         exact_top_k: bool = False) -> Pipeline:
    """What the workshop computes. Logits are logprobs plus a constant; only repetition_penalty sees which."""
    logits = {token: x + offset for token, x in logprobs.items()}
    return pipeline(None, settings, output_tokens=output, prompt_tokens=prompt, logits=logits, stop_tokens=STOP,
                    exact_top_k=exact_top_k)


def on_gpu(logprobs: dict, settings: Settings, output: Sequence[int], prompt: Sequence[int], offset: float) -> Pipeline:
    """The same where a GPU samples many at once: exactly k tokens, whatever ties."""
    return ours(logprobs, settings, output, prompt, offset, exact_top_k=True)


def in_order(*stages: tuple[str, ...]) -> Compute:
    """Return a computation with the parameters in another order: each stage alone, on what the one before left."""
    def compute(logprobs, settings, output, prompt, offset) -> Pipeline:
        for stage in stages:
            others = [name for name in asdict(settings) if name not in stage]
            result = ours(logprobs, settings.without(*others), output, prompt, offset)
            logprobs = {token: math.log(p) for token, p in result.probabilities.items()}
        return result
    return compute


def forgetting(*names: str) -> Compute:
    """Return a computation that knows nothing of some parameters."""
    def compute(logprobs, settings, output, prompt, offset) -> Pipeline:
        return ours(logprobs, settings.without(*names), output, prompt, offset)
    return compute


def counting_twice(logprobs, settings, output, prompt, offset) -> Pipeline:
    """Frequency as if every token of the answer had been generated twice."""
    return ours(logprobs, settings, [*output, *output], prompt, offset)


HOT = "top_k 30, top_p 0.8, temperature 1.5"
COLD = "frequency_penalty -2, temperature 0.7, top_k 4"
WRONG: dict[str, tuple[str, Compute]] = {   # the case that tells, and the wrong computation
    "top_k and top_p before temperature": (HOT, in_order(("top_k", "top_p"), ("temperature",))),
    "top_k between temperature and top_p left out": ("top_k 6, top_p 0.7, temperature 1.7", forgetting("top_k")),
    "top_p before top_k": ("top_k 6, top_p 0.7, temperature 1.7", in_order(("temperature", "top_p"), ("top_k",))),
    "min_p before temperature": ("min_p 0.05, temperature 1.6", in_order(("min_p",), ("temperature",))),
    "temperature twice": ("temperature 1.6", in_order(("temperature",), ("temperature",))),
    "penalties after temperature": (COLD, in_order(("temperature",), ("frequency_penalty", "top_k"))),
    "no frequency_penalty": (COLD, forgetting("frequency_penalty")),
    "no presence_penalty": ("presence_penalty -1.5, top_p 0.9, temperature 1.3", forgetting("presence_penalty")),
    "no repetition_penalty": ("repetition_penalty 0.7, temperature 1.3", forgetting("repetition_penalty")),
    "the answer's tokens counted twice": (COLD, counting_twice),
}
STOP: tuple[int, ...] = (1,)   # the teaching model's end of text; set by `use_model`


@dataclass(frozen=True)
class Outcome:
    """One test: p is not yet corrected; `cells` is how many counts were compared."""

    case: str
    prompt: str
    p: float
    cells: int
    samples: int


def logit_offset(logprobs: dict[int, float]) -> float:
    """Return the constant that logprobs lack to be logits again: log Σ exp(logit).

    The server's logits are bfloat16 numbers, 8 significant bits each. Only with the right constant do thousands of
    logprobs become such numbers at once: that finds it exactly, without running the model here.

    Raises:
        ValueError: no constant does; the server computes its logits in another type.
    """
    values = list(logprobs.values())
    best = max(values)
    offsets = [step / 32 - best for step in range(-320, 1920)]   # the highest logit: bfloat16, -10 to 60
    for few in (60, 1500):   # a quick look first
        some = values[::len(values) // few]
        misses = {offset: sum(not _is_bfloat16(x + offset) for x in some) for offset in offsets}
        offsets = sorted(offsets, key=misses.__getitem__)[:50]
    if misses[offsets[0]] > 0.001 * few or misses[offsets[1]] == misses[offsets[0]]:
        raise ValueError(f"no one constant makes bfloat16 numbers of these logprobs: {misses[offsets[0]]} of {few} are "
                         f"none at best, {misses[offsets[1]]} at second best")
    return offsets[0]


def _is_bfloat16(x: float) -> bool:
    """Whether x is within float32 rounding of a number with 8 significant bits."""
    if abs(x) < 0.25:
        return True   # the grid there is finer than what rounding leaves
    grid = 2.0 ** (math.frexp(x)[1] - 8)
    return abs(x / grid - round(x / grid)) * grid < 2e-5


class Server:
    """What the truth test asks of a client; answers are kept, because many cases ask for the same position."""

    def __init__(self, client):
        self.client = client
        self.position = functools.cache(self._position)
        self.offset = functools.cache(lambda context: logit_offset(self.position(context)[0]))
        self.samples = functools.cache(self._samples)

    def prompt_tokens(self, prompt: str) -> tuple[int, ...]:
        """Return the prompt's token ids, the beginning-of-text token included."""
        return self.position(prompt)[1]

    def _position(self, context: str | tuple[int, ...]) -> tuple[dict[int, float], tuple[int, ...]]:
        prompt = context if isinstance(context, str) else list(context)
        answer = self.client.complete(prompt, max_tokens=1, temperature=0, logprobs=-1, return_token_ids=True,
                                      return_tokens_as_token_ids=True)
        return next_token_logprobs(answer), tuple(answer.choices[0].prompt_token_ids)

    def allowed(self, prompt: str) -> tuple[int, ...]:
        """Return the most probable first tokens, in the order of their ids."""
        logprobs, _ = self.position(self.prompt_tokens(prompt))
        return tuple(sorted(sorted(logprobs, key=logprobs.__getitem__, reverse=True)[:ALLOWED]))

    def _samples(self, prompt: str, case: Case, seed: int) -> list[tuple[int, ...]]:
        n = 1 if case.settings.greedy else SAMPLES
        extra = {"allowed_token_ids": list(self.allowed(prompt))} if case.few else {}
        answer = self.client.complete(prompt, max_tokens=max(case.token, case.settings.min_tokens), n=n, seed=seed,
                                      return_token_ids=True, **case.settings.request(), **extra)
        return [tuple(choice.token_ids[:case.token]) for choice in answer.choices]


def compare(server: Server, case: Case, prompt: str, compute: Compute = ours) -> Outcome:
    """Sample, compare, return the p-value; for the second token pooled over the first ones."""
    seed = 1000 * CASES.index(case) + PROMPTS.index(prompt)
    groups: dict[tuple[int, ...], Counter] = defaultdict(Counter)
    found = server.samples(prompt, case, seed)
    for tokens in found:
        if len(tokens) == case.token:   # an answer may end after one token
            groups[tokens[:-1]][tokens[-1]] += 1
    statistic, freedom, cells = 0.0, 0, 0
    prompt_tokens = server.prompt_tokens(prompt)
    for first, counts in groups.items():
        if first and counts.total() < SMALLEST_GROUP:
            continue
        context = (*prompt_tokens, *first)
        logprobs, _ = server.position(context)
        if case.few:   # the others cannot come: what is left is the whole vocabulary
            logprobs = {token: logprobs[token] for token in server.allowed(prompt)}
        offset = server.offset(context) if case.settings.repetition_penalty != 1 else 0.0
        result = compute(logprobs, case.settings, first, prompt_tokens, offset)
        more, free, compared = chi_square(counts, result)
        statistic, freedom, cells = statistic + more, freedom + free, cells + compared
    return Outcome(case.name, prompt, p_value(statistic, freedom), cells, len(found))


def p_value(statistic: float, freedom: int) -> float:
    """Return how probable a deviation as large is by chance; 0 if something impossible was sampled."""
    return 0.0 if math.isinf(statistic) else (float(chi2.sf(statistic, freedom)) if freedom else 1.0)


def chi_square(counts: Counter, result: Pipeline) -> tuple[float, int, int]:
    """Return (statistic, degrees of freedom, cells); infinite if something impossible was sampled.

    Cells with fewer than 5 expected are pooled. So are tokens of exactly equal score at top_p's border: which of
    them vLLM keeps is up to its sort, and their sum is what can be known.
    """
    total = sum(counts.values())
    expected = dict(result.probabilities)
    counts = Counter(counts)
    border = [token for token in result.border if token in expected or token in counts]
    if border:
        expected["border"] = math.fsum(expected.pop(token, 0.0) for token in border)
        counts["border"] = sum(counts.pop(token, 0) for token in border)
    if any(token not in expected for token in counts):
        return math.inf, 0, len(counts)
    pooled_expected, pooled_count, statistic, cells = 0.0, 0, 0.0, 0
    for token, p in expected.items():
        if p * total < SMALLEST_CELL:
            pooled_expected, pooled_count = pooled_expected + p * total, pooled_count + counts[token]
        else:
            statistic, cells = statistic + (counts[token] - p * total) ** 2 / (p * total), cells + 1
    if pooled_expected >= 1:
        statistic, cells = statistic + (pooled_count - pooled_expected) ** 2 / pooled_expected, cells + 1
    return statistic, max(cells - 1, 0), cells


def adjusted(outcomes: Iterable[Outcome]) -> list[float]:
    """Return Bonferroni's p-values."""
    outcomes = list(outcomes)
    return [min(1.0, outcome.p * len(outcomes)) for outcome in outcomes]


def run_all(server: Server) -> list[Outcome]:
    """Return every case on every prompt."""
    return [compare(server, case, prompt) for case in CASES for prompt in PROMPTS]


def run_wrong(server: Server) -> dict[str, list[Outcome]]:
    """Return what the wrong orders give, on the samples that the right one is tested with."""
    by_name = {case.name: case for case in CASES}
    return {name: [compare(server, by_name[case], prompt, compute) for prompt in PROMPTS]
            for name, (case, compute) in WRONG.items()}


def table(outcomes: list[Outcome], wrong: dict[str, list[Outcome]]) -> str:
    """Return the two tables of docs/sampling.md."""
    number = len(outcomes)
    lines = ["| setting | token | cells compared | p, smallest of 5 prompts | corrected |", "|---|---|---:|---:|---:|"]
    for case in CASES:
        mine = [outcome for outcome in outcomes if outcome.case == case.name]
        worst = min(outcome.p for outcome in mine)
        which = "first" if case.token == 1 else "second, given the first"
        lines.append(f"| {case.name} | {which} | {sum(one.cells for one in mine)} | {worst:.3g} | "
                     f"{min(1.0, worst * number):.3g} |")
    lines += ["", "| computed wrongly | prompts on which it fails | largest p | corrected |", "|---|---:|---:|---:|"]
    for name, mine in wrong.items():
        failed = sum(one.p * number < LEAST for one in mine)
        largest = max(one.p for one in mine)
        lines.append(f"| {name} | {failed} of {len(mine)} | {largest:.2g} | {min(1.0, largest * number):.2g} |")
    return "\n".join(lines)


def write_doc(path: Path, text: str, mark: str = "truth") -> None:
    """Replace what stands between the two marks of a document."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main() -> int:
    """Run everything against the server that connect() finds."""
    from workshop import connect

    here = Path(__file__).parent
    server = Server(connect())
    outcomes, wrong = run_all(server), run_wrong(server)
    text = table(outcomes, wrong)
    print(text)
    (here / "truth.json").write_text(json.dumps(
        {"samples": SAMPLES, "outcomes": [asdict(one) for one in outcomes],
         "wrong": {name: [asdict(one) for one in mine] for name, mine in wrong.items()}}, indent=1) + "\n")
    write_doc(here.parents[1] / "docs" / "sampling.md", text)
    return 0 if min(adjusted(outcomes)) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
