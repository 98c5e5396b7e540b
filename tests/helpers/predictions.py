"""The predictions of the notebooks, as a learner meets them, and what would give one away."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cells import Cell, cells

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")

# The right option of each prediction with the teaching model on a CPU, and other words that would tell it.
# Where it depends on the machine (speed), the option of the text's own explanation.
RIGHT: dict[str, tuple[str, ...]] = {
    "start.sentence": ("the limit cuts it", "`length`"),
    "start.no_key": ("only /health", "(401, 200)", "only `/health`"),
    "memory.where_weights": ("in the MLPs", "70 %", "70.2"),
    "memory.fits_80_gb": ("in both", "fits in both", "70 GB"),
    "memory.pool_full": ("a running request gives up its blocks", "preempt"),
    "memory.at_once": ("about 900", "881", "880 of them", "900 abstracts"),
    "memory.how_many": ("4", "four of them"),
    "memory.without_cache": ("32 times", "32.5"),
    "memory.weights_or_kv": ("about equal", "15.62"),
    "memory.rule": ("too little", "-14", "28 GB too"),
    "memory.falcon": ("too much", "126", "by half"),
    "memory.easiest": ("Llama", "need their own formulas"),
    "parallelism.enough": ("more than 8 are needed", "Twelve are enough", "eleven H100"),
    "parallelism.who_talks": ("the network between them", '== "InfiniBand'),
    "parallelism.prompt": ("about as long", "little longer", "400 GB/s"),
    "parallelism.step": ("matrix products, the rest", "helps the products"),
    "parallelism.pipeline_tokens": ("the same", "2 * one_rank", "131,072"),
    "server.held": ("within 1 % of the plan", "450,976", "0.06", "272 tokens"),
    "server.started": ("1 vLLM, 4 GPU processes", "one vLLM on each node"),
    "server.named": ("2", "two name it", "Two show it"),
    "sampling.of_200": ("fewer: the model ends it", "end-of-text token is the second"),
    "sampling.coldest": ("1", "one bar"),
    "sampling.hotter": ("shorter, still the longest", "39 %", "the order"),
    "sampling.of_30": ("about 20 times", 'else "about 20 times"', "65 %"),
    "sampling.two_cuts": ("1", "one bar", "label alone"),
    "sampling.greedy": ("1", "different[1] == 1", "one label"),
    "sampling.repeated": ("those of tokens of the answer", "not on those of the prompt"),
    "sampling.rewarded": ("one word again and again", "commonest[-2] >", "repeats"),
    "sampling.share": ("about 1 percentage point",),
    "sampling.batched": ("some", "10 of 32", "a few texts"),
    "sampling.space": ("something else", "no label comes", "nonsense"),
    "logprobs.listed": ("yes", "== 4", "always in the list"),
    "logprobs.odd_word": ("Boston has", "nearly sure of", "Boston 31.6"),
    "logprobs.more_surprising": ("the German sentence has", "about a million"),
    "logprobs.made_up": ("one or two", "as_sure == 1", "hardly a doubt"),
    "logprobs.least_sure": ("more than half", "9 of the 12", "64 %"),
    "logprobs.new_topics": ("it falls, but not far enough", "0.80", "too sure by"),
    "logprobs.zero": ("no", "row.logprob < 0", "-0.66"),
    "logprobs.all_texts": ("most of them", "as_text < as_ids", "8,063"),
    "many.static_batch": ("at most 2 times", "1.8 times", "310"),
    "many.four_threads": ("in between",),
    "many.flat_after": ("32",),
    "offline.choices": ("fewer than 30", "about 6 of 50"),
    "offline.how_long": ("half a minute", "24 s"),
    "offline.bad_lines": ("none", "before* anything is sent"),
    "offline.cost": ("about as many", "1.05"),
    "elsewhere.places": ("six", "Six of the seven"),
    "elsewhere.openshift": ("those that start pods, who is let in, and it adds one", '"Route"'),
    "elsewhere.three_bits": ("it doubles",),
    "elsewhere.four_bits": ("AWQ is best", 'int4-awq"] <'),
    "elsewhere.four_times": ("neither", "fewer.speed_times < 4"),
    "bits.got_better": ("more than 10", "9 and 13"),
    "bits.experts_alone": ("4 to 5 times as many", "4.6", "4 <"),
    "bits.eight_times": ("about 4 times", "costs less"),
    "chat.bare": ("something else", "gets another"),
    "chat.system": ("none", "leaves out"),
    "chat.breaks": ("the wrong template changes", "no answer. None"),
    "chat.fourth": ("more than 50", "the whole chat again"),
    "chat.chunks": ("about one for each token",),
    "chat.json": ("a JSON object that is cut off", "whitespace"),
    "chat.field": ("in `reasoning`", "takes all text"),
    "engine.reading": ("more than 10 times",),
    "engine.stall": ("on my server", "wait for the document's pieces"),
    "engine.found": ("whole blocks", "nothing is found"),
    "engine.again": ("a small part",),
    "guess.five": ("hardly longer", "1.02"),
    "guess.follows": ("those of the target, p", "shares - p"),
    "guess.faster": ("the last line decides",),
    "guess.planned": ("about a third", "32 %", "planned_after ="),
    "guess.warmer": ("fewer",),
    "guess.fades": ("more than 100", "cost many"),
    "scale.router": ("less than a fifth of it", "about 90 ms"),
    "scale.dp_tokens": ("no more than one server alone", "65,536 tokens"),
    "scale.received": ("64", "two whole blocks"),
    "scale.ttft_apart": ("it becomes longer", "comes later"),
    "scale.offload": ("copying, more than 5 times",),
    "scale.busiest": ("over 50 % more", "wait for others"),
    "scale.latent": ("about twice as many", "1.9"),
    "agents.again": ("more than 1.5 times as fast", "several times as fast"),
    "agents.computed": ("fewer than 150", "112"),
    "agents.line": ("none", "None."),
    "agents.sticky": ("about 1.5 times as many",),
    "agents.evicted": ("480: the system prompt", "the system prompt alone"),
    "scale.replicas": ("3", "[0, 70, 100]"),
    "capstone.fits": ("it fits",),
    "capstone.apart": ("less than 1 %",),
}


@dataclass(frozen=True)
class Prediction:
    """One prediction: its options, and what a learner sees from the section's heading to the folded result."""

    key: str
    options: tuple[str, ...]
    before: tuple[str, ...]  # texts and code up to the buttons
    between: tuple[str, ...]  # from the buttons to the result


def seen(cell: Cell) -> str:
    """Return a cell as a learner sees it before opening anything: no folded code, no folded texts, no hovers."""
    if cell.is_hidden:
        return ""
    if cell.kind == "markdown":
        return FOLDED.sub("", cell.source)
    return cell.source


def options_of(source: str, key: str) -> tuple[str, ...]:
    call = re.search(rf'predict\(\s*"{re.escape(key)}",\s*\((.*?)\)\)', source, re.DOTALL)
    assert call, key
    return tuple(re.findall(r'"([^"]*)"', call[1]))


def predictions(path: Path) -> list[Prediction]:
    every = cells(path.stem)
    in_notebook = []
    for number, cell in enumerate(every):
        for key in re.findall(r'predict\(\s*"([\w.]+)",\s*\(', cell.source):
            result = next(
                n for n, later in enumerate(every) if f'predict("{key}", result=' in later.source
            )
            start = max(
                n for n in range(number) if every[n].kind == "markdown" and "#" in every[n].source
            )
            first = re.split(r"^#+ .*$", seen(every[start]), flags=re.MULTILINE)[-1]
            before = (first, *map(seen, every[start + 1 : number]))
            between = tuple(map(seen, every[number + 1 : result]))
            in_notebook.append(Prediction(key, options_of(cell.source, key), before, between))
    return in_notebook


def told(text: str, prediction: Prediction) -> list[str]:
    """Return the parts of a text that tell the right option: the option where others are missing, its number, or clues."""
    option, *others = RIGHT[prediction.key]
    clues = [word for word in others if word.lower() in text.lower()]
    other_options = [text for text in prediction.options if text != option]
    whole = re.search(rf"(?<!\w){re.escape(option)}(?!\w)", text, re.IGNORECASE)
    names_others = any(other.lower() in text.lower() for other in other_options)
    if whole and len(option.split()) > 1 and not names_others:
        clues.append(option)
    if len(option.split()) > 1:
        of_others = {number for other in other_options for number in NUMBER.findall(other)}
        numbers = set(NUMBER.findall(text))
        if not of_others & numbers:  # a text that lists numbers of other options tells nothing
            own = set(NUMBER.findall(option)) - of_others
            clues += [number for number in own if number in numbers]
    return clues
