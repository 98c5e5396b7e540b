"""Every concept question of the course: options that differ, each with its why, and nothing that gives the right away."""

from __future__ import annotations

from collections import Counter

from workshop.course.exercises.checking import all_exercises

QUESTIONS = {key: exercise for key, exercise in all_exercises().items() if exercise.options}
RIGHT = {
    key: next(letter for letter in question.options if question.judge(letter) is None)
    for key, question in QUESTIONS.items()
}


def test_each_wrong_option_is_answered_with_its_own_why(subtests):
    for key in QUESTIONS:
        with subtests.test(key):
            options = QUESTIONS[key].options
            texts, reasons = zip(*options.values(), strict=True)
            assert QUESTIONS[key].title.endswith("?") and 3 <= len(options) <= 4
            assert len(set(texts)) == len(set(reasons)) == len(options)
            assert all(len(why.split()) >= 6 for why in reasons), "a why is a sentence"
            assert [QUESTIONS[key].test(letter) for letter in options] == [
                None if letter == RIGHT[key] else why for letter, (_, why) in options.items()
            ]


def test_neither_the_place_nor_the_length_gives_the_right_option_away():
    longest = [
        key
        for key, question in QUESTIONS.items()
        if RIGHT[key] == max(question.options, key=lambda x: len(question.options[x][0]))
    ]
    assert max(Counter(RIGHT.values()).values(), default=0) <= max(1, len(QUESTIONS) / 2)
    assert len(longest) <= len(QUESTIONS) / 2
