"""Rules of a text's words: repetition, language and script."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.trainer.rewards.scores import recipe_of, score, scored
from trainer.rewards.rules.language import LANGUAGES


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("", 0.0),
        ("one two", 0.0),  # shorter than a run
        ("one two three four", 0.0),
        ("a b c a b c", -0.25),  # abc bca cab abc: 1 of 4 again
        ("a a a a a a", -0.75),
        ("A a A a A a", -0.75),
    ],
)
def test_the_share_of_runs_had_before_is_taken_away(completion, expected):
    assert score("repetition", completion) == pytest.approx(expected)


def test_the_penalty_scales_and_the_size_counts():
    completion = "a b a b a"  # ab ba ab ba

    assert score("repetition", completion, ngram_size=2) == -0.5
    assert score("repetition", completion, ngram_size=2, max_penalty=-4) == -2.0
    assert score("repetition", completion, max_penalty=0) == 0.0


def test_characters_are_counted_where_words_have_no_spaces():
    assert score("repetition", "好好好好", unit="words") == 0.0
    assert score("repetition", "好好\n好好", unit="characters", ngram_size=2) == (
        pytest.approx(-2 / 3)
    )


def test_case_counts_when_it_is_asked_to():
    found = score("repetition", "A a A", ngram_size=1, ignore_case=False)

    assert found == pytest.approx(-1 / 3)


@given(words=st.lists(st.sampled_from("abc"), max_size=30))
def test_it_agrees_with_counting_pairs_one_by_one(words):
    pairs = list(pairwise(words))
    num_again = sum(pair in pairs[:index] for index, pair in enumerate(pairs))

    found = score("repetition", " ".join(words), ngram_size=2)

    assert found == pytest.approx(-num_again / len(pairs) if pairs else 0.0)


def test_a_penalty_that_rewards_is_refused():
    with pytest.raises(ValueError, match="parameter max_penalty"):
        score("repetition", "", max_penalty=1)


ENGLISH = "First we add the numbers, and then we double the result to be quite sure. "
FRENCH = "D'abord nous ajoutons les nombres, et puis nous multiplions le résultat. "
CHINESE = "我们先把所有的数字加在一起，然后再把结果乘以二，这样就得到了答案。"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ENGLISH, 1.0),
        (FRENCH, 0.0),
        (ENGLISH + r"So $x = \frac{12}{7}$. <answer>12</answer>", 1.0),
    ],
)
def test_a_text_is_in_the_language_or_not(text, expected):
    assert score("language", text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "1 + 1 = 2", r"$\frac{1}{2}$", r"\boxed{42}", "<answer>x = 3</answer>", "№ 5"],
)
def test_a_text_without_words_has_no_language_and_no_score(text):
    result = scored("language", text)

    assert (result.total, result.not_applicable) == (None, ["it"])


@pytest.mark.parametrize(
    ("text", "language"), [("no", "zh"), ("我", "en"), (r"\boxed{42} нет", "en")]
)
def test_a_single_word_of_another_language_scores_zero(text, language):
    assert score("language", text, language=language) == 0.0


def test_the_share_counts_letters():
    mixed = ENGLISH * 3 + CHINESE * 3
    num_english, num_chinese = (
        sum(map(str.isalpha, text)) for text in (ENGLISH, CHINESE)
    )

    found = score("language", mixed)

    assert found == pytest.approx(num_english / (num_english + num_chinese), abs=0.1)
    assert score("language", mixed, language="zh") == pytest.approx(1 - found)
    assert score("language", mixed, minimum_share=0.5) == 1.0


def test_only_the_tags_inside_may_be_looked_at():
    text = f"{FRENCH}<think>{ENGLISH}</think>{FRENCH}"

    assert score("language", text, tag="think") == 1.0
    assert score("language", text) < 0.5
    assert score("language", FRENCH, tag="think") == 0.0
    assert score("language", f"<think>1 + 1</think>{FRENCH}", tag="think") is None


def test_a_language_that_cannot_be_detected_is_refused():
    with pytest.raises(ValidationError, match='"qq"'):
        recipe_of("language", language="qq")


def test_the_languages_are_those_of_the_model():
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    labels = LanguageIdentifier.from_model_file(MODEL_FILE).labels

    # zxx is what is written in no language.
    assert {str(label) for label in labels} - {"zxx"} == LANGUAGES


def test_letters_count_and_nothing_else():
    wrong = [
        (completion, scripts, expected, found)
        for completion, scripts, expected in [
            ("Because 2 > 1!", "Latin", 1.0),
            ("naïve café", "Latin", 1.0),
            ("cafe\u0301", "Latin", 1.0),  # an accent of its own belongs to its letter
            ("так", "Latin", 0.0),
            ("так", "Cyrillic", 1.0),
            ("ab二三", "Latin", 0.5),
            ("ab二三", "Latin,Han", 1.0),
            ("カーと車", "Han,Hiragana,Katakana", 1.0),
            ("नमस्ते", "Devanagari", 1.0),
            ("因此 \\frac{1}{2}", "Han", 1.0),
            ("12 + 3 = 15", "Latin", 0.0),
            ("", "Latin", 0.0),
        ]
        if (found := score("script", completion, scripts=scripts)) != expected
    ]

    assert wrong == []


def test_a_smaller_share_may_be_enough():
    assert score("script", "abc二", minimum_share=0.75) == 1.0
    assert score("script", "ab二三", minimum_share=0.75) == pytest.approx(2 / 3)


def test_a_rule_can_judge_a_single_block():
    completion = "<think>так</think> because"

    assert score("script", completion, tag="think", scripts="Cyrillic") == 1.0
    assert score("script", "because", tag="think") == 0.0


def test_names_of_latex_commands_count_when_asked_to():
    assert score("script", "因 \\ab", scripts="Han", ignore_latex=False) == (
        pytest.approx(1 / 3)
    )


@pytest.mark.parametrize(
    "scripts", ["", "English", "Any", "Lu", "latin", "Latin,", "L"]
)
def test_scripts_that_unicode_does_not_know_are_refused(scripts):
    with pytest.raises(ValueError, match="parameter scripts"):
        score("script", "", scripts=scripts)
