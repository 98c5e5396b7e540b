"""The logprobs viewer without a browser: a response in, colours, numbers and panels out."""

from __future__ import annotations

import html
import json
import math
import re
from types import SimpleNamespace

import pytest
from needs import SEED

pytest.importorskip("ipywidgets")

from workshop.client import logprobs
from workshop.client.sampling_settings import Settings
from workshop.course.widgets.logprobs.view import (
    LogprobsViewer,
    shade,
    surprise_colour,
)
from workshop.errors import BadInput

RESPONSE = {
    "choices": [
        {
            "text": " port�",
            "token_ids": [11, 12],
            "prompt_token_ids": [0, 24661],
            "logprobs": {
                "text_offset": [0, 5],
                "tokens": [" port", "�"],
                "token_logprobs": [math.log(0.25), math.log(0.001)],
                "top_logprobs": [
                    {" port": math.log(0.25), " city": math.log(0.5), " <b>": math.log(0.25)},
                    {"�": math.log(0.001), ".": math.log(0.9), ",": math.log(0.05)},
                ],
            },
            "prompt_logprobs": [
                None,
                {
                    "24661": {"logprob": -8.533774375915527, "rank": 284, "decoded_token": "San"},
                    "14924": {
                        "logprob": -1.1587743759155273,
                        "rank": 1,
                        "decoded_token": "Question",
                    },
                },
            ],
        }
    ]
}


@pytest.fixture
def viewer():
    return LogprobsViewer(RESPONSE)


def panel(text: str, number: int) -> str:
    """Return the panel of one token."""
    return re.search(
        rf'<div class="lp\d+-p{number} .*?(?=<div class="lp\d+-p|<div class="sums")',
        text,
        re.DOTALL,
    )[0]


def test_every_token_can_be_chosen_and_has_a_panel(viewer):
    assert viewer.picture.value.count('type="radio"') == 4
    assert len(re.findall(r'<div class="lp\d+-p\d', viewer.picture.value)) == 4
    assert ":checked~div" in viewer.picture.value


def test_the_first_prompt_token_has_no_logprob_and_says_why(viewer):
    assert "nothing stands before it" in panel(viewer.picture.value, 0)
    assert "⟨start⟩" in viewer.picture.value


def test_the_first_word_of_a_model_without_a_first_special_token_is_shown():
    choice = RESPONSE["choices"][0] | {"prompt_token_ids": [21541, 24661]}
    answer = {"choices": [choice]}
    client = SimpleNamespace(openai=None, complete=lambda prompt, **settings: answer)
    without = LogprobsViewer(client, "Dear San").picture.value
    assert "⟨start⟩" not in without and "Dear " in without
    with_one = LogprobsViewer(client, "San").picture.value
    assert "⟨start⟩" in with_one


def test_san_is_rank_284_and_question_was_the_most_probable(viewer):
    san = panel(viewer.picture.value, 1)
    assert "rank 284" in san
    assert "12.3 bits" in san
    assert san.index("Question") < san.index("stands in the text")


def test_alternatives_are_listed_best_first_and_escaped(viewer):
    port = panel(viewer.picture.value, 2)
    assert port.index("·city") < port.index("·port", port.index("·city"))
    assert "<b>" not in port.split("token 0")[1]


def test_ranks_and_ids_of_a_server_that_are_markup_stay_words():
    """What stands in a page runs there, with the notebook's rights."""
    evil, text = "<img src=x onerror=alert(1)>", json.dumps(RESPONSE)
    for number in ('"rank": 284', '"rank": 1', "[11, 12", "[0"):
        text = text.replace(number, re.sub(r"\d+", f'"{evil}"', number), 1)
    shown = LogprobsViewer(json.loads(text)).picture.value
    assert evil not in shown and shown.count(html.escape(evil)) >= 5


def test_a_piece_of_a_character_is_said_to_be_one(viewer):
    assert "part of a character" in panel(viewer.picture.value, 3)


def test_perplexities_of_prompt_and_completion(viewer):
    assert "prompt: perplexity <b>5,083.6</b>" in viewer.picture.value  # e^8.5338
    assert "completion: perplexity <b>63.2</b>" in viewer.picture.value  # √(4 · 1000)


def test_the_more_surprising_token_has_the_stronger_colour():
    drawn = logprobs.rows(RESPONSE, k=3)
    assert shade(drawn[0]) == "transparent"
    strengths = [int(shade(row)[-2:], 16) for row in (drawn[2], drawn[3], drawn[1])]
    assert strengths == sorted(strengths)  # 2 bits, 10 bits, 12.3 bits


def chosen(text: str) -> str:
    """Return what a screen reader says of the token that is chosen."""
    return re.search(r'checked [^>]*aria-label="([^"]*)"', text)[1]


def test_the_most_surprising_token_of_the_prompt_is_chosen_at_first(viewer):
    assert chosen(viewer.picture.value).startswith("prompt token San: ")
    completion = {"choices": [{"logprobs": RESPONSE["choices"][0]["logprobs"]}]}
    assert chosen(LogprobsViewer(completion).picture.value).startswith("completion token ")


def test_without_the_completion_the_prompt_alone_is_shown():
    simple = LogprobsViewer(RESPONSE, completion=False)
    assert simple.picture.value.count('type="radio"') == 2
    assert "perplexity" not in simple.picture.value


def rows_of(text: str) -> list[logprobs.Row]:
    """Return the rows of a prompt whose words are the less probable the longer they are."""
    rows = []
    for place, word in enumerate(text.split(" ")):
        rows.append(logprobs.Row("prompt", place, f" {word}", -float(len(word)), rank=1))
    return rows


def test_bars_stand_on_the_tokens_of_a_short_text_in_their_colour():
    text = LogprobsViewer(rows_of("a longest bee")).picture.value
    bars = re.findall(
        r'<span class="token-bar".*?height:([\d.]+)%.*?<span class="[^"]*".*?>(.*?)<', text
    )
    assert [word for _, word in bars] == [" a", " longest", " bee"]
    assert [float(height) for height, _ in bars] == [14.3, 100.0, 42.9]
    assert text.count(surprise_colour(7 / math.log(2))) >= 2  # the token's and its bar's
    assert '<div class="surprise">' not in text


def test_the_three_highest_bars_of_a_long_text_have_their_words():
    tokens = ["be"] * 80
    tokens[10], tokens[40], tokens[70] = "Lincoln", "zoological", "president"
    text = LogprobsViewer(rows_of(" ".join(tokens))).picture.value
    plot = text[text.index('<div class="surprise">') :]
    below = re.findall(r'<span style="(left|right):0;margin-top:(\d+)px">(.*?)</span>', plot)
    assert below == [
        ("left", "1", "Lincoln"),
        ("left", "15", "zoological"),
        ("right", "29", "president"),
    ]
    assert "token-bar" not in text


def test_a_token_that_is_never_sampled_has_no_bar_that_can_be_measured():
    """Servers send -9999 for a probability of zero, as with processed logprobs under top_k=1."""
    text = json.dumps(RESPONSE).replace(json.dumps(math.log(0.25)), "-9999", 1)
    viewer = LogprobsViewer(json.loads(text))
    assert "it is never sampled" in panel(viewer.picture.value, 2)
    assert "completion: perplexity <b>∞</b>" in viewer.picture.value
    assert viewer.picture.value.count("too-much") == 1


def test_without_alternatives_there_is_still_a_picture():
    viewer = LogprobsViewer(
        {
            "choices": [
                {
                    "logprobs": {
                        "tokens": ["x"],
                        "token_logprobs": [-0.5],
                        "top_logprobs": [{"x": -0.5}],
                    }
                }
            ]
        }
    )
    assert "no alternatives were asked for" in viewer.picture.value


def test_a_response_without_logprobs_is_refused():
    with pytest.raises(BadInput, match="no logprobs"):
        LogprobsViewer({"choices": [{"text": "x"}]})


def test_two_viewers_in_a_notebook_do_not_share_their_buttons(viewer):
    other = LogprobsViewer(RESPONSE)
    assert (
        re.search(r'name="(lp\d+)"', viewer.picture.value)[1]
        != re.search(r'name="(lp\d+)"', other.picture.value)[1]
    )


@pytest.mark.live
class TestLive:
    def test_prompt_and_completion_of_the_live_server(self, client):
        viewer = LogprobsViewer(client, "San Francisco is a")
        assert viewer.banner.value == ""
        assert {row.part for row in viewer.rows} == {"prompt", "completion"}
        assert viewer.rows[0].logprob is None
        assert viewer.rows[1].rank >= 1
        assert len([row for row in viewer.rows if row.part == "completion"]) <= 16

    def test_a_viewer_of_the_prompt_alone_asks_for_nothing_more(self, client):
        viewer = LogprobsViewer(client, "San Francisco is a", completion=False)
        assert {row.part for row in viewer.rows} == {"prompt"}
        assert viewer.max_tokens.value == 1

    def test_an_empty_prompt_is_answered_in_words(self, client):
        viewer = LogprobsViewer(client)
        picture = viewer.picture.value
        viewer.prompt.value = ""
        viewer.ask()
        assert "prompt is empty" in viewer.banner.value
        assert viewer.picture.value == picture

    def test_emoji(self, client):
        viewer = LogprobsViewer(client, "I like 👍 and 🚀")
        assert viewer.banner.value == ""
        assert "▯" in viewer.picture.value
        assert "�" not in viewer.picture.value

    def test_the_servers_processed_logprobs_are_what_is_computed(self, client):
        """The server sends raw ones; the distribution that it samples is checked by the truth test."""
        answer = client.complete(
            "San Francisco is a", max_tokens=3, logprobs=20, temperature=0.5, top_k=3, seed=SEED
        )
        for row in logprobs.rows(answer, k=20):
            assert math.isfinite(
                logprobs.processed(row, Settings(temperature=0.5, top_k=3))[row.token]
            )
