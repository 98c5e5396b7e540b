"""The deck holds what it should: minutes, exercises that exist, numbers that are computed, answers that were given."""

from __future__ import annotations

import json
import re

import cells
import deck
import pytest
import snippets

WORKSHOP = deck.slides("workshop")
SLIDES = (*WORKSHOP, *deck.slides("day_two"))
# Numbers that are typed in the deck, as nothing computes them: the phrase, and where it is from.
GIVEN = {
    r"Llama 3\.[123]": "a model's name",
    r"vLLM 0\.32": "the version whose source was read",
    r"arXiv [\d.]+(?:, [\d.]+)*|(?:PagedAttention|FlashAttention|Megatron-LM) \d{4}\.\d{5}": "a paper",
    r"(?:July|December|since|February) 20\d\d": "Meta's announcements; the published slides",
    r"17 December 2024": "the published slides",
    r"2026-11-2[013]": "planner/inference_planner/data/runs, workshop/data/tuning",
    r"[Nn]otebooks? \d+(?: and \d+)?|[Ss]tep \d+|[Pp]art \d": "a place in the course",
    r"in 16 bits": "the dtype of embeddings",
    r"0\.5, 0\.2, 0\.15, 0\.1, 0\.05|top_p=0\.8": "the exercise of notebook 4",
    r"−0\.02, −0\.03 and −1\.20": "the exercise of notebook 5",
    r"says 80 %, and about 70 % are right": "notebook 5, which measures both",
    r"one in 50, in 500 or in 5,000": "a question's choices",
    r"1 is a coin toss, 10 is one in 1,000": "what a bit is",
    r"18 links of 25": "NVIDIA's H100 datasheet",
    r"prompt of 8,192 tokens": "the example of notebook 2",
    r"2 × 8 H100|4 × H[12]00|16 × H100": "the cluster of an example or of a run",
    r"a factor of 2 either": "planner/inference_planner/split/communication.py",
    r"a prompt of 32|prompts of 256 tokens, 128 new|for 256 together": "how the runs were made: planner/inference_planner/data/runs",
    r"30 shards in 5 to 10 minutes|191 shards in up to an hour": "slurm/70b.sbatch, slurm/405b.sbatch",
    r"mode 0600": "a file's mode",
    r"n=2|temperature[= ][\d.]+|max_tokens=\d+|seed=\d+|(?:prompt_)?logprobs=\d|40 tokens": "a recorded request",
    r"And 0|from -2 to 2|At 0|[Bb]elow 1|above 1|0 to 0\.3|0\.7": "a parameter's values",
    r"At 2|at 0\.5|≥ 0|-1 asks|up to 1|Temperature 0": "a parameter's values",
    r"None, 0, 3|0: the generated|3: the three best|3,\s+0\.5: who": "a parameter's values",
    r"2,000 samples in 22 settings": "docs/sampling.md",
    r'"20"|"49"': "tokens of the published example",
    r"2 CPU cores": "where it was recorded",
    r"3, 4 and 5 equal": "the exercise's counts",
    r"signal 9": "a signal",
    r'"compile_sizes": \[1\]': "the flag in slurm/70b.sbatch",
    r"the probability 0|temperature 0:": "a parameter's values",
    r"H100, 16 bits": "the dtype of a plan",
    r"with 200,000 draws": "notebook 12",
    r"a step of 40 people": "an example for the audience",
    r"A reads 90 tokens": "workshop/data/traces/teaching_model.jsonl, step 0",
    r"1 \+ a \+ a²": "a formula",
    r"min\(1,|max\(0,|scaled? to 1|appendix A\.1": "a formula, and where its proof is",
    r"With 256 requests|1,000 tokens of context": "the last point of the chart; the plan's default",
    r"Llama 3\.2 1B": "a model's name",
}
NUMBER = re.compile(r"(?<![\w.,/-])[-−]?\d[\d.,-]*(?![\w/])")


def words_of(source: str) -> str:
    """What is typed in a slide as words: without code, placeholders, attributes and addresses."""
    for pattern in (
        r"```.*?```",
        r"\{\{.*?\}\}",
        r"`[^`]*`",
        r"<code>.*?</code>",
        r"<!-- [\d.]+ min\.",
        r"<!--\s*_?\w+:.*?-->",
        r"<[^>]+>",
        r"[\w.]+/[\w./-]+",
    ):
        source = re.sub(pattern, " ", source, flags=re.DOTALL)
    return re.sub(r"^\s*\d\. ", " ", source, flags=re.MULTILINE)


def test_the_minutes_of_the_notes_add_up_to_three_hours_and_to_two_beyond_the_core():
    for part in dict.fromkeys((s.deck, s.part) for s in SLIDES):
        print(
            f"{'/'.join(part):24} {sum(s.minutes for s in SLIDES if (s.deck, s.part) == part):6g} min"
        )
    assert sum(s.minutes for s in WORKSHOP) == 180
    assert 60 <= sum(s.minutes for s in deck.slides("day_two")) <= 133, (
        "the notebooks are the rest of the day"
    )


def test_the_agenda_rounds_no_minutes():
    parts = {(slide.deck, slide.part): 0.0 for slide in SLIDES}
    for slide in SLIDES:
        parts[slide.deck, slide.part] += slide.minutes
    assert [part for part, minutes in parts.items() if minutes % 1] == []


def test_parts_are_numbered_as_their_notebooks():
    for name, items in deck.DECKS.items():
        for number, _, _, files in items:
            for slide in deck.slides(name):
                if slide.part[0] in files and slide.wheres and number.isdigit():
                    notebook = slide.wheres[0][0]
                    assert number == str(int(notebook[:2])) or "14_agents" in notebook, slide.title
                header = re.search(r'<!-- header: "(.+?) ·', slide.source)
                if header and slide.part[0] in files:
                    assert header[1].replace(" and", ",") == number, slide.title


def test_every_slide_has_one_title_and_a_note_that_says_something():
    for slide in SLIDES:
        assert len(re.findall(r"^# ", slide.source, re.MULTILINE)) == 1, slide.source
        most = 19 if slide.title == "Break" else 12
        assert 0.5 <= slide.minutes <= most and len(slide.note.split()) >= 5, slide.title


def test_more_than_a_third_of_the_time_is_for_exercises():
    assert sum(s.minutes for s in WORKSHOP if s.wheres) >= 180 / 3


@pytest.mark.parametrize("slide", SLIDES, ids=lambda slide: f"{slide.number}-{slide.title}")
def test_no_number_is_typed_that_is_not_given(slide):
    typed = NUMBER.findall(re.sub("|".join(GIVEN), " ", words_of(slide.source)))
    assert not typed, f"compute it in values.py, or say in GIVEN where it is from: {typed}"


@pytest.mark.parametrize("phrase", GIVEN)
def test_what_is_given_is_in_the_deck(phrase):
    assert any(re.search(phrase, words_of(slide.source)) for slide in SLIDES)


def test_no_placeholder_is_left_and_none_is_unknown():
    for name in deck.DECKS:
        assert "{{" not in deck.document(name)
    with pytest.raises(KeyError):
        deck.fill("{{70b.nonsense}}")


def test_a_word_of_the_glossary_is_in_the_notes_of_the_slide_that_uses_it_first():
    first = deck.first_words()
    told = [term for slide in SLIDES for term in first[slide]]
    assert len(told) == len(set(told)) >= 35, "each once, over both decks"
    slide = next(slide for slide in SLIDES if "KV cache" in first[slide])
    assert f"KV cache: {deck.glossary.TERMS['KV cache']['says']}" in deck.document("workshop")
    assert (
        "KV cache"
        not in " ".join(
            deck.fill(earlier.source, earlier) for earlier in SLIDES[: slide.number - 1]
        ).split("<!--")[0]
    )
    assert "KV cache:" in deck.run_sheet("workshop") and "KV cache:" not in deck.run_sheet(
        "day_two"
    )


def test_the_script_on_the_slides_is_that_of_notebook_3():
    [cell] = [c for c in cells.cells("03_server") if "nb03.plain(" in c.source]
    settings = ", ".join(f"{name}={value!r}" for name, value in snippets.STORY_PLAN.items())
    assert f'nb03.plain("llama-3.1-8b", {settings})'.replace("'", '"') in cell.source
    shown = snippets.script_rows().splitlines()
    assert len(shown) == 7 and any("`#SBATCH --gpus-per-node=1`" in row for row in shown)


def test_the_lock_names_no_registry():
    lock = json.loads((deck.HERE / "package-lock.json").read_text())
    assert not any("resolved" in package for package in lock["packages"].values())
    wanted = json.loads((deck.HERE / "package.json").read_text())["dependencies"]
    assert all(
        lock["packages"][f"node_modules/{name}"]["version"] == version
        for name, version in wanted.items()
    )
