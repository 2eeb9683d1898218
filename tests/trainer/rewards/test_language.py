from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.trainer.rewards.scores import recipe_of, score
from trainer.rewards.rules.language import LANGUAGES

ENGLISH = "First we add the numbers, and then we double the result to be quite sure. "
FRENCH = "D'abord nous ajoutons les nombres, et puis nous multiplions le résultat. "
CHINESE = "我们先把所有的数字加在一起，然后再把结果乘以二，这样就得到了答案。"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ENGLISH, 1.0),
        (FRENCH, 0.0),
        (ENGLISH + r"So $x = \frac{12}{7}$. <answer>12</answer>", 1.0),
        ("", 0.0),
        ("1 + 1 = 2", 0.0),
        (r"$\frac{1}{2}$", 0.0),
    ],
)
def test_a_text_is_in_the_language_or_not(text, expected):
    assert score("language", text) == expected


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


def test_a_language_that_cannot_be_told_is_refused():
    with pytest.raises(ValidationError, match='"qq"'):
        recipe_of("language", language="qq")


def test_the_languages_are_those_of_the_model():
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    labels = LanguageIdentifier.from_model_file(MODEL_FILE).labels

    # zxx is what is written in no language.
    assert {str(label) for label in labels} - {"zxx"} == LANGUAGES
