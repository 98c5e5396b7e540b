"""Responses in the shapes that vLLM 0.32 sends, checked against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from workshop.client import logprobs as lp
from workshop.client.sampling_settings import Settings
from workshop.course.drawing.tables import to_frame
from workshop.errors import BadInput

# The slides' example: Llama 3.1 70B, logprobs=1 and prompt_logprobs=1.
SLIDES = {
    "choices": [
        {
            "text": "20-minute",
            "logprobs": {
                "text_offset": [0, 2],
                "tokens": ["20", "-minute"],
                "token_logprobs": [-4.005917549133301, -1.359967827796936],
                "top_logprobs": [
                    {"20": -4.005917549133301, "49": -1.7559176683425903},
                    {"-minute": -1.359967827796936},
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


def completion(tokens: list[str], values: list[float], tops: list[dict | None], **more) -> dict:
    """Return a completion's JSON."""
    return {
        "choices": [
            {
                "text": "".join(tokens),
                "logprobs": {
                    "tokens": tokens,
                    "token_logprobs": values,
                    "top_logprobs": tops,
                    "text_offset": [],
                },
                **more,
            }
        ]
    }


class TestTheSlidesExample:
    def test_rows_come_prompt_first(self):
        assert [(row.part, row.token) for row in lp.rows(SLIDES)] == [
            ("prompt", ""),
            ("prompt", "San"),
            ("completion", "20"),
            ("completion", "-minute"),
        ]

    def test_san_is_the_first_token_and_question_the_most_probable(self):
        san = lp.rows(SLIDES)[1]
        assert (san.token, san.token_id, san.rank) == ("San", 24661, 284)
        assert san.most_probable.token == "Question"
        assert san.surprise_bits == pytest.approx(12.31, abs=0.01)  # 8.5338 / ln 2

    def test_20_was_generated_and_49_most_probable(self):
        twenty = lp.rows(SLIDES)[2]
        assert (twenty.token, twenty.most_probable.token) == ("20", "49")
        assert twenty.rank is None  # it is below the top 1: how far below, nobody said
        assert twenty.probability == pytest.approx(0.0182, abs=1e-4)

    def test_minute_was_both(self):
        minute = lp.rows(SLIDES, k=1)[3]
        assert minute.token == minute.most_probable.token == "-minute"
        assert minute.rank == 1


class TestCompletions:
    def test_logprobs_zero_is_the_chosen_token_alone(self):
        row = lp.rows(completion(["x"], [-0.5], [{"x": -0.5}]))[0]
        assert [alternative.token for alternative in row.alternatives] == ["x"]
        assert row.rank is None

    def test_k_gives_k_alternatives_plus_the_chosen_one(self):
        tops = [{"x": -5.0, "a": -0.5, "b": -1.5}, {"a": -0.2, "b": -2.0}]
        below, best = lp.rows(completion(["x", "a"], [-5.0, -0.2], tops))
        assert [alternative.token for alternative in below.alternatives] == ["a", "b", "x"]
        assert [alternative.rank for alternative in below.alternatives] == [1, 2, None]
        assert best.rank == 1

    def test_the_last_of_k_has_rank_k_once_k_is_known(self):
        tops = [{"b": -2.0, "a": -0.5}]
        assert lp.rows(completion(["b"], [-2.0], tops))[0].rank is None
        assert lp.rows(completion(["b"], [-2.0], tops), k=2)[0].rank == 2

    def test_tokens_as_ids(self):
        response = completion(["token_id:7"], [-1.0], [{"token_id:7": -1.0, "token_id:9": -0.6}])
        assert lp.next_token_logprobs(response) == {9: -0.6, 7: -1.0}

    def test_ids_beside_texts(self):
        assert lp.rows(completion(["x"], [-1.0], [None], token_ids=[42]))[0].token_id == 42

    def test_a_probability_of_zero_is_minus_infinity_again(self):
        never = lp.rows(completion(["x"], [-9999.0], [{"x": -9999.0, "a": 0.0}]))[0]
        assert never.logprob == -math.inf
        assert never.probability == 0.0
        assert never.surprise_bits == math.inf

    def test_pieces_of_an_emoji_that_share_a_key_keep_the_chosen_tokens_logprob(self):
        piece = lp.rows(completion(["�"], [-3.0], [{"�": -0.1, "a": -2.0}]))[0]
        assert piece.logprob == -3.0
        assert {alternative.token: alternative.logprob for alternative in piece.alternatives} == {
            "a": -2.0,
            "�": -3.0,
        }

    def test_echo_has_no_logprob_for_the_first_token(self):
        first, second = lp.rows(
            completion(["<s>", "h"], [None, -2.0], [None, {"h": -2.0, "i": -1.0}])
        )
        assert (first.logprob, first.probability, first.surprise_bits, first.most_probable) == (
            None,
        ) * 4
        assert second.logprob == -2.0


CHAT = {
    "prompt_logprobs": [None, {"5": {"logprob": -2.0, "rank": 3, "decoded_token": "Hi"}}],
    "prompt_token_ids": [0, 5],
    "choices": [
        {
            "message": {"content": "No"},
            "logprobs": {
                "content": [
                    {
                        "token": "No",
                        "logprob": -1.2,
                        "bytes": [78, 111],
                        "top_logprobs": [
                            {"token": "Yes", "logprob": -0.4, "bytes": []},
                            {"token": "No", "logprob": -1.2, "bytes": []},
                        ],
                    },
                    {
                        "token": "!",
                        "logprob": -6.0,
                        "bytes": [33],
                        "top_logprobs": [
                            {"token": ".", "logprob": -0.1, "bytes": []},
                            {"token": "?", "logprob": -3.0, "bytes": []},
                        ],
                    },
                ]
            },
        }
    ],
}


class TestChat:
    def test_rows(self):
        first, hi, no, mark = lp.rows(CHAT)
        assert (first.token_id, first.logprob) == (0, None)
        assert (hi.token, hi.token_id, hi.rank) == ("Hi", 5, 3)
        assert (no.token, no.rank, no.most_probable.token) == ("No", 2, "Yes")
        assert (mark.rank, [alternative.token for alternative in mark.alternatives]) == (
            None,
            [".", "?", "!"],
        )

    def test_objects_of_the_openai_package(self):
        chat = pytest.importorskip("openai.types.chat").ChatCompletion
        response = chat.model_validate(
            {
                **CHAT,
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [
                    {
                        **CHAT["choices"][0],
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": "No!"},
                    }
                ],
            }
        )
        assert lp.rows(response) == lp.rows(CHAT)


class TestSums:
    def test_perplexity_of_a_fair_choice_among_eight_is_eight(self):
        response = completion(["a", "b"], [math.log(1 / 8)] * 2, [None, None])
        assert lp.perplexity(lp.rows(response)) == pytest.approx(8.0)
        assert lp.rows(response)[0].surprise_bits == pytest.approx(3.0)
        assert lp.total_logprob(lp.rows(response)) == pytest.approx(math.log(1 / 64))

    def test_the_first_prompt_token_does_not_count(self):
        tokens = [row for row in lp.rows(SLIDES) if row.part == "prompt"]
        assert lp.perplexity(tokens) == pytest.approx(math.exp(8.533774375915527))

    def test_an_impossible_token_makes_it_infinite(self):
        assert lp.perplexity(lp.rows(completion(["x"], [-9999.0], [None]))) == math.inf

    def test_a_table_has_a_line_for_each_token(self):
        pytest.importorskip("pandas")
        frame = to_frame(lp.rows(SLIDES))
        assert list(frame["token"]) == ["", "San", "20", "-minute"]
        assert list(frame["rank"])[1] == 284


PROMPTS_OWN = ("a", 0.5, 1), ("b", 0.2, 2), ("d", 0.11, 4)


class TestProcessed:
    ROW = lp.rows(
        completion(
            ["a"], [math.log(0.5)], [{"a": math.log(0.5), "b": math.log(0.25), "c": math.log(0.25)}]
        )
    )[0]

    def test_everything_off_is_raw(self):
        assert lp.processed(self.ROW, Settings()) == pytest.approx(
            {"a": math.log(0.5), "b": math.log(0.25), "c": math.log(0.25)}
        )

    def test_top_k_leaves_minus_infinity(self):
        assert lp.processed(self.ROW, Settings(top_k=1)) == {
            "a": 0.0,
            "b": -math.inf,
            "c": -math.inf,
        }

    def test_what_a_truncated_list_does_not_show_keeps_its_share(self):
        row = lp.rows(
            completion(["a"], [math.log(0.5)], [{"a": math.log(0.5), "b": math.log(0.25)}]), k=2
        )[0]
        assert lp.processed(row, Settings()) == pytest.approx(
            {"a": math.log(0.5), "b": math.log(0.25)}
        )
        assert lp.processed(row, Settings(top_k=2))["a"] == pytest.approx(math.log(2 / 3))

    def test_of_one_improbable_token_it_is_what_it_was(self):
        """logprobs=0 lists the chosen token alone, and the others may all be one."""
        for logprob in (-5.0, -36.0, -50.0):
            row = lp.Row("completion", 0, "a", logprob, None, None, (lp.Alternative("a", logprob),))
            assert lp.processed(row, Settings())["a"] == pytest.approx(logprob)
            assert lp.processed(row, Settings(top_p=0.9))["a"] == pytest.approx(logprob)
            tempered = lp.processed(row, Settings(temperature=0.5))
            assert tempered["a"] == pytest.approx(2 * logprob, abs=0.02)

    def test_between_the_listed_and_a_prompts_own_token_others_stand(self):
        """Of 0.5, 0.2, 0.19, 0.11 a server lists the first two, and the prompt's own, the fourth."""
        listed = [lp.Alternative(name, math.log(p), None, rank) for name, p, rank in PROMPTS_OWN]
        row = lp.Row("prompt", 1, "d", math.log(0.11), None, 4, tuple(listed))
        whole = sum(p**2 for p in (0.5, 0.2, 0.19, 0.11))
        logprobs = lp.processed(row, Settings(temperature=0.5))
        assert logprobs["d"] == pytest.approx(math.log(0.11**2 / whole), abs=0.01)


def test_without_logprobs_it_says_how_to_ask():
    for choice in ({"text": "x", "logprobs": None}, {"message": {}, "logprobs": {"content": []}}):
        with pytest.raises(BadInput, match=r"no logprobs.*logprobs=5"):
            lp.rows({"choices": [choice]})


def test_wrong_numbers_and_things():
    with pytest.raises(BadInput, match="1 choices, and none with the number 1"):
        lp.rows(SLIDES, choice=1)
    with pytest.raises(BadInput, match="2 generated tokens"):
        lp.next_token_logprobs(SLIDES, position=2)
    with pytest.raises(BadInput, match="no response"):
        lp.rows("text")
    with pytest.raises(BadInput, match="no perplexity"):
        lp.perplexity([])
