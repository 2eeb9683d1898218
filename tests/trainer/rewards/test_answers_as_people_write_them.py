"""Answers in the forms that public reports about graders complain of."""

from typing import Any

import pytest

from tests.trainer.rewards.scores import score_completion
from trainer.rewards.rule import Sample
from trainer.rewards.scoring import (
    SpecialTokens,
    without_special_tokens,
)
from trainer.rewards.spec import Recipe

OPEN = "<|im_start|>assistant\n<think>\n"  # how a rendered prompt may end


def score(
    kind: str, completion: str, answer: str, prompt: str = "Q", **params: Any
) -> float | None:
    rule = {"name": "rule", "kind": kind, "params": params}
    recipe = Recipe.model_validate({"rules": [rule]})
    found = score_completion(recipe, Sample(prompt, completion, answer))
    assert not found.errors, found.errors
    return found.rules["rule"]


NUMBERS = [
    # Signs and digits beyond ASCII.
    ("The answer is −5.", "-5"),
    ("The answer is -5.", "−5"),
    ("x = －5", "-5"),
    ("x = ﹣5", "-5"),
    ("合計は１２です", "12"),
    ("١٢٣", "123"),
    ("उत्तर ४२", "42"),
    ("about １２．５ of them", "12.5"),
    ("so ٣٫٥", "3.5"),
    ("so ١٬٢٠٠", "1200"),
    ("so −１２％", "-12"),
    ("12", "１２"),
    # Groups of thousands.
    ("12\u202f500 people", "12500"),
    ("12\u2009500 people", "12500"),
    ("12\u00a0500 people", "12500"),
    ("1\u202f234\u202f567.5", "1234567.5"),
    ("$1{,}200$", "1200"),
    ("$1{,}234{,}567$", "1234567"),
    (r"\(1\,200\)", "1200"),
    (r"$12\;500$", "12500"),
    ("CHF 1'200", "1200"),
    ("CHF 1\u2019200.50", "1200.5"),
    ("1,200", "1\u202f200"),
    # Exponents of units are no numbers of their own.
    ("The area is 24 cm^2", "24"),
    ("The area is 24 cm²", "24"),
    ("The area is 24cm2.", "24"),
    ("a = 5 m/s2", "5"),
    ("a = 9.8 m/s^2", "9.8"),
    ("a = 9.8 m/s²", "9.8"),
    ("27 m^{3}", "27"),
    (r"$27\,\text{m}^3$", "27"),
    (r"$27 \mathrm{~cm}^{3}$", "27"),
    ("6 square ft, so 6 ft^2", "6"),
    ("1.2 kg/m^3", "1.2"),
    ("12 square units^2", "12"),
    ("5 kg·m²/s²", "5"),
    # Powers of ten.
    ("3 × 10^8 m/s", "300000000"),
    (r"$1.5 \times 10^{-3}$", "0.0015"),
    ("2 × 10⁶", "2000000"),
    ("10^6", "1000000"),
    ("10^{6} people", "1000000"),
    ("about 10⁶", "1000000"),
    ("10^{-2}", "0.01"),
    ("3*10^4", "30000"),
    ("-10^3", "-1000"),
    # Mixed numbers and fractions.
    ("2 1/2", "2.5"),
    (r"$2\frac{1}{2}$", "2.5"),
    (r"$2 \dfrac12$", "2.5"),
    ("x = 4 \\frac{1}{2}", "4.5"),
    ("x = 4\u00a0½", "4.5"),
    ("1250½", "1250.5"),
    (r"\frac12", "0.5"),
    ("-2 1/2", "-2.5"),
    ("so 2½ cups", "2.5"),
    ("¾", "0.75"),
    ("1 1/2%", "1.5"),
    ("2.5", "2 1/2"),
    # References that a row has wrapped.
    ("It is 1.", "$1$"),
    ("It is 1.", r"\boxed{1}"),
    ("It is 12.", "12 cm"),
    ("It is 72.", "72 apples"),
    ("It is 3.", "<answer> 3 </answer>"),
    ("It is 1,200.", r"\$1,200"),
]


@pytest.mark.parametrize(("completion", "answer"), NUMBERS)
def test_a_number_is_read_as_it_is_written(completion, answer):
    assert score("numeric_answer", completion, answer) == 1


@pytest.mark.parametrize(
    ("completion", "wrong"),
    [
        ("24 cm²", "2"),
        ("5 m/s2", "2"),
        ("9-7", "-7"),
        ("x -7", "-7"),
        ("total - 7", "-7"),
        ("12 and 500", "12500"),
        ("rooms 12, 500", "12500"),
        ("2^10", "1024"),
        ("2^10", "10"),
        ("2^{10}", "2"),
        ("5²", "5"),
        ("110^6", "6"),
        ("10^6", "6"),
        ("10^999", "999"),
        ("2 1/2", "1/2"),
        ("Step 3\n1/2", "7/2"),
        ("We get 2\n\n3/4", "11/4"),
        ("x = 3\n\\frac{1}{2}", "7/2"),
        ("In 2024 3/4 of them", "8099/4"),
        ("Of 2024 \\frac{3}{4} came", "8099/4"),
        ("The rooms: 5\n* 10^6 people", "5000000"),
        ("It is -\n5", "-5"),
        (r"2\frac{1}{2}", "1/2"),
        (r"2\frac{3}{2}", "3/2"),
        ("12 3/2", "13.5"),
        ("2½", "2"),
        (r"\frac12", "12"),
    ],
)
def test_a_number_is_not_made_of_several(completion, wrong):
    assert score("numeric_answer", completion, wrong) == 0


@pytest.mark.parametrize(
    "token",
    [
        *("<|im_end|>", "<|eot_id|>", "</s>", "<|endoftext|>", "<end_of_turn>"),
        *("<eos>", "<|end|>", "<|im_end|>\n<|endoftext|>", "<｜end▁of▁sentence｜>"),
    ],
)
def test_special_tokens_at_the_end_are_not_part_of_a_completion(token):
    assert score("exact_answer", f"Paris{token}", "Paris", source="whole") == 1
    assert score("exact_answer", f"So:\nParis {token}\n", "Paris", source="last_line")
    assert score("regex", f"Paris{token}", "", pattern="Paris", match="whole") == 1


# As tokenizers have them: the first two are of models that no list foresees.
OF_A_TOKENIZER = SpecialTokens.of(
    ["[/INST]", "<|END_3|>", "<think>", "</think>", "</answer>", "<end_of_text>", "!"]
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Paris[/INST]", "Paris"),
        ("Paris <|END_3|>[/INST]\n<end_of_text>", "Paris"),
        ("Paris<|im_end|><|END_3|>", "Paris"),
        ("Paris[/INST] it is", "Paris[/INST] it is"),
        # Tags that enclose a part of the completion, and what may be its punctuation.
        ("<answer>Paris</answer>", "<answer>Paris</answer>"),
        ("Paris<think>", "Paris<think>"),
        ("Paris!", "Paris!"),
        ("[/INST]", ""),
    ],
)
def test_special_tokens_of_the_tokenizer_are_not_part_of_a_completion(text, kept):
    assert without_special_tokens(text, OF_A_TOKENIZER) == kept


def test_special_tokens_elsewhere_stay():
    assert score("contains", "<|im_end|> is a token", "", phrases=["<|im_end|>"]) == 1


ANSWERED = {
    "numeric_answer": ("{}", {}),
    "exact_answer": ("<answer>{}</answer>", {}),
    "math_verify": (r"\boxed{{{}}}", {"source": "boxed"}),
    "marker_answer": ("#### {}", {}),
    "multiple_choice": ("Answer: {}", {"source": "marker"}),
}


@pytest.mark.parametrize("kind", ANSWERED)
def test_answers_in_the_thinking_do_not_count(kind):
    form, params = ANSWERED[kind]
    right, wrong = ("B", "C") if kind == "multiple_choice" else ("7", "9")
    said, other = form.format(right), form.format(wrong)

    def ask(completion: str, prompt: str = "Q", **more: Any) -> float | None:
        return score(kind, completion, right, prompt, **params, **more)

    assert ask(said) == 1
    assert ask(f"<think>maybe {said} but wait") == 0
    assert ask(f"<think>{other}</think>\n{said}") == 1
    assert ask(f"<think>{said}</think>\n{other}") == 0
    assert ask(f"<think>{said}</think>") == 0
    assert ask(f"<think>{said}</think>", read_thinking=True) == 1
    assert ask(f"{other}</think>\n{said}") == 1
    assert ask(f"maybe {said} but wait", OPEN) == 0
    assert ask(f"{other}</think>\n{said}", OPEN) == 1
    assert ask(f"<think>{other}</think>{said} <think>or {other}") == 1


def test_a_tag_that_the_prompt_opens_counts_for_the_format():
    completion = "two twos</think>\n<answer>4</answer>"

    assert score("format_tags", completion, "4", OPEN) == 1
    assert score("format_tags", completion, "4") == 0
    assert score("tag_count", completion, "4", OPEN) == 1
    assert score("tag_count", completion, "4") == 0.75
    pattern = "(?s)<think>.*</think>.*"
    assert score("regex", completion, "4", OPEN, pattern=pattern, match="whole") == 1
    assert score("contains", completion, "4", OPEN, phrases=["<think>"]) == 1
    assert score("contains", completion, "4", phrases=["<think>"]) == 0


def test_a_prompt_that_opens_a_tag_is_not_counted_twice():
    written_again = "<think>two twos</think>\n<answer>4</answer>"

    assert score("format_tags", written_again, "4", OPEN) == 0
    assert score("format_tags", written_again, "4", OPEN, completion_prefix="") == 0
    continued = "two twos</think>\n<answer>4</answer>"
    given = {"completion_prefix": "<think>"}
    assert score("format_tags", continued, "4", OPEN, **given) == 1


CHOICES = [
    ("Answer: D, not B", "D"),
    ("Answer: B is wrong, so D", "D"),
    ("Answer: not B but D", "D"),
    ("Answer: (D), rather than (B)", "D"),
    ("Answer: D instead of B", "D"),
    ("Answer: D (not A)", "D"),
    ("Answer: **D**, and not **B**", "D"),
    ("Answer: It can't be B because of heat, so D", "D"),
    ("Answer: I would rule out B because it is too small. D.", "D"),
    ("Answer: B is ruled out, so D", "D"),
]
SENTENCES = [
    ("It is not B, the answer is D", "D"),
    ("The answer is D, not B.", "D"),
    ("Neither A nor B. It's D.", "D"),
    ("I'd say D. It isn't B.", "D"),
    ("D, because B is incorrect", "D"),
    ("D is right; A and B are wrong", "D"),
    ("D. Option B is not correct.", "D"),
]


@pytest.mark.parametrize(("completion", "answer"), CHOICES)
def test_an_option_that_is_ruled_out_is_not_chosen(completion, answer):
    assert score("multiple_choice", completion, answer, source="marker") == 1
    assert score("multiple_choice", completion, "B", source="marker") == 0


@pytest.mark.parametrize(("completion", "answer"), SENTENCES)
def test_the_last_option_that_is_not_ruled_out_is_chosen(completion, answer):
    assert score("multiple_choice", completion, answer, source="last_letter") == 1
    assert score("multiple_choice", completion, "B", source="last_letter") == 0


def test_an_answer_that_only_rules_out_names_none():
    assert score("multiple_choice", "Answer: not B", "B", source="marker") == 0
    assert score("multiple_choice", "Answer: not only B", "B", source="marker") == 1


@pytest.mark.parametrize(
    "completion",
    [
        "answer: D",
        "ANSWER: (D)",
        "Answer: D because A is too large",
        "Answer: (D), since B and C are even",
        "Answer: D as A is too large.",
        "Answer: So the correct answer is **D**, because A is too large",
        "Answer: D is correct because A is too large.",
        "Answer: d) because A is too large",
    ],
)
def test_a_choice_is_read_in_any_case_and_before_its_reason(completion):
    assert score("multiple_choice", completion, "D", source="marker") == 1
    assert score("multiple_choice", completion, "A", source="marker") == 0


@pytest.mark.parametrize(
    "completion",
    [
        "Answer: A or D because both are odd",
        "Answer: A because it is odd, or D because it is prime",
        "Answer: A as well as D",
        "Answer: A is tempting because it is big, so the answer is D",
        "Answer: A seems right since it is odd; D",
        "Answer: A because it is odd. No, D",
        "Answer: A because it is odd, thus D",
        "answer: D\nanswer: A and D",
    ],
)
def test_two_choices_with_reasons_are_none(completion):
    assert score("multiple_choice", completion, "A", source="marker") == 0
    assert score("multiple_choice", completion, "D", source="marker") == 0


def test_a_marker_has_its_case_when_case_counts():
    strict = {"source": "marker", "ignore_case": False}

    assert score("multiple_choice", "Answer: D", "D", **strict) == 1
    assert score("multiple_choice", "answer: D", "D", **strict) == 0


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("cafe\u0301", "café"),
        ("It\u2019s", "It's"),
        ("\u201cyes\u201d", '"yes"'),
        ("Pa\u200bris", "Paris"),
        ("\ufeffParis", "Paris"),
        ("Ｐａｒｉｓ", "Paris"),
        ("New\u00a0York", "New York"),
        ("\u22125", "-5"),
        ("**Paris**", "Paris"),
        ("**Paris**.", "Paris"),
        (r"\text{Paris}", "Paris"),
        ("$x+1$", "x+1"),
    ],
)
def test_texts_that_look_alike_are_equal(written, answer):
    assert score("exact_answer", f"<answer>{written}</answer>", answer) == 1
    assert score("exact_answer", f"<answer>{answer}</answer>", written) == 1


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("x²", "x2"),
        ("H₂O", "H2O2"),
        ("½", "12"),
        ("cafe", "café"),
        ("2**3**4", "234"),
        ("**Paris** or **Lyon**", "Paris"),
        ("dog", "<answer>cat</answer>"),
        ("", "<answer></answer>"),
    ],
)
def test_texts_that_mean_different_things_are_not_equal(written, answer):
    assert score("exact_answer", f"<answer>{written}</answer>", answer) == 0


def test_a_wrapped_reference_equals_its_text():
    wrapped = "<answer>cat</answer>"

    assert score("exact_answer", wrapped, wrapped) == 1
    assert score("exact_answer", wrapped, r"\boxed{\text{cat}}") == 1
    assert score("exact_answer", wrapped, wrapped, source="whole") == 1
    assert score("exact_answer", "cat", wrapped, source="whole") == 1


@pytest.mark.parametrize(
    "box", [r"\boxed{7}", r"\boxed {7}", "\\boxed\n{7}", r"\fbox{7}"]
)
def test_a_box_is_read_however_it_is_written(box):
    for kind in ("numeric_answer", "exact_answer", "math_verify"):
        assert score(kind, f"so {box}.", "7", source="boxed") == 1
        assert score(kind, rf"\boxed{{8}}, no, {box}", "7", source="boxed") == 1
        assert score(kind, rf"{box}, no, \boxed{{8}}", "7", source="boxed") == 0
