"""Rules of a completion's form: tags, XML and steps of reasoning."""

import time

import pytest

from tests.trainer.rewards.scores import AT_ONCE, score
from tests.trainer.rewards.test_published_rewards import message

RIGHT = "<think>two twos</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    "completion",
    [
        RIGHT,
        "<think></think><answer></answer>",
        f"  {RIGHT}\n",
        "<think>a < b\n\nand c</think>   <answer>\n4\n</answer>",
    ],
)
def test_think_then_answer_scores_one(completion):
    assert score("format_tags", completion) == 1.0


def test_anything_else_scores_zero():
    wrong = [
        (completion, found)
        for completion in [
            "",
            "4",
            "<answer>4</answer>",
            "<think>two twos</think>",
            "<answer>4</answer><think>two twos</think>",
            f"Sure! {RIGHT}",
            f"{RIGHT} That is all.",
            "<think>two twos</think> so <answer>4</answer>",
            "<think>two twos<answer>4</answer></think>",
            f"{RIGHT}{RIGHT}",
            "<think>a <think>b</think>\n<answer>4</answer>",
            "<think>a</think>\n<answer>4</answer></answer>",
            "<THINK>two twos</THINK><answer>4</answer>",
        ]
        if (found := score("format_tags", completion)) != 0.0
    ]

    assert wrong == []


def test_the_prefix_counts_as_part_of_the_completion():
    completion = "two twos</think><answer>4</answer>"

    assert score("format_tags", completion) == 0.0
    assert score("format_tags", completion, completion_prefix="<think>") == 1.0


def test_other_tags_can_be_requested():
    completion = "<reasoning>so</reasoning><final>4</final>"

    assert (
        score("format_tags", completion, think_tag="reasoning", answer_tag="final")
        == 1.0
    )


def test_an_empty_think_tag_asks_for_an_answer_block_alone():
    assert score("format_tags", "<answer>4</answer>", think_tag="") == 1.0
    assert score("format_tags", RIGHT, think_tag="") == 0.0


@pytest.mark.parametrize(
    ("separator", "between", "expected"),
    [
        ("newline", "\n", 1.0),
        ("newline", "", 0.0),
        ("newline", "\n\n", 0.0),
        ("nothing", "", 1.0),
        ("nothing", "\n", 0.0),
        ("space", " \n\t", 1.0),
    ],
)
def test_the_separator_is_as_asked(separator, between, expected):
    completion = f"<think>so</think>{between}<answer>4</answer>"

    assert score("format_tags", completion, separator=separator) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>so</think> it is 4", 0.1),
        ("it is <answer>4</answer>", 0.5),
        ("<think>so</think> it is <answer>4</answer>", 0.6),
        ("</think> it is <answer>4", 0.0),
    ],
)
def test_partial_credit_is_given_for_blocks_when_asked(completion, expected):
    credit = {"think_credit": 0.1, "answer_credit": 0.5}

    assert score("format_tags", completion, **credit) == pytest.approx(expected)


def test_the_answer_can_be_held_to_a_pattern():
    wanted = {"answer_pattern": r"[0-9]+", "other_answer_score": 0.5}

    assert score("format_tags", RIGHT, **wanted) == 1.0
    assert score("format_tags", RIGHT.replace("4", "four"), **wanted) == 0.5


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>so</think> It is 4.", 1.0),
        ("<think>so</think>", 1.0),
        ("<think>so It is 4.", 0.0),
        ("Well, <think>so</think> 4", 0.0),
        ("<think>so</think> 4 <think>or</think>", 0.0),
    ],
)
def test_any_text_may_follow_the_thinking(completion, expected):
    assert score("format_tags", completion, answer_tag="") == expected


def test_a_format_without_any_tag_is_refused():
    with pytest.raises(ValueError, match="_tag"):
        score("format_tags", "", answer_tag="", think_tag="")


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>so</think><answer>4</answer>", 1.0),
        ("</answer><answer></think><think>", 1.0),  # their order is not looked at
        ("<think>so</think> 4", 0.5),
        ("<answer>4", 0.25),
        ("4", 0.0),
        ("<think><think>so</think><answer>4</answer>", 0.75),  # once means once
        ("<THINK>so</THINK>", 0.0),
    ],
)
def test_each_tag_that_occurs_once_gives_its_share(completion, expected):
    assert score("tag_count", completion) == expected


def test_a_tag_may_occur_as_often_as_it_likes_when_presence_counts():
    completion = "<reasoning><reasoning></reasoning>"

    found = score("tag_count", completion, names="reasoning,answer", count="present")

    assert found == 0.5


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>\nso\n</think>\n<answer>\n4\n</answer>", 1.0),
        ("<think>\nso\n</think>\n<answer>\n4\n</answer> bye", 1.0),
        ("<think>so</think>\n<answer>4</answer>", 0.0),
        ("<think>\nso</think>\n<answer>\n4</answer>", 0.5),
    ],
)
def test_tags_can_be_held_to_their_line_breaks(completion, expected):
    assert score("tag_count", completion, line_breaks="between") == expected


@pytest.mark.parametrize("names", ["", "a,", "a b", "<a>", ",".join("abcdefghi")])
def test_names_that_are_no_tags_are_refused(names):
    with pytest.raises(ValueError, match="parameter names"):
        score("tag_count", "", names=names)


BOOK = '<book lang="en"><title>Emma &amp; co</title></book>'
LAUGHS = (
    '<!DOCTYPE a [<!ENTITY l "ha">'
    + "".join(
        f'<!ENTITY l{n} "{f"&l{n - 1 if n else str()};" * 10}">' for n in range(10)
    )
    + "]><a>&l9;</a>"
)


def test_an_xml_document_has_a_single_root():
    wrong = [
        (completion, expected, found)
        for completion, expected in [
            (BOOK, 1.0),
            (f'\n<?xml version="1.0"?>\n{BOOK}\n', 1.0),
            ("<a/>", 1.0),
            ("<a:b/>", 1.0),
            ("<a><![CDATA[<]]></a>", 1.0),
            (f"Here: {BOOK}", 0.0),
            (f"{BOOK}{BOOK}", 0.0),
            ("<a><b></a></b>", 0.0),
            ("<a>", 0.0),
            ("<a b=1/>", 0.0),
            ("<a>&nbsp;</a>", 0.0),
            ("", 0.0),
            ("text", 0.0),
        ]
        if (found := score("xml_well_formed", completion)) != expected
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (f"{BOOK} and {BOOK}", 1.0),
        (BOOK, 1.0),
        ("text", 0.0),  # without an element it is no XML
        ("<a>", 0.0),
        ("</fragment><fragment>", 0.0),
        ("</fragment>", 0.0),
        ("<fragment/>", 1.0),
    ],
)
def test_a_fragment_may_have_several(completion, expected):
    assert score("xml_well_formed", completion, shape="fragment") == expected


def test_the_score_is_the_share_of_the_elements_requested():
    assert score("xml_well_formed", BOOK, elements="book,title") == 1.0
    assert score("xml_well_formed", BOOK, elements="title,author") == 0.5
    assert score("xml_well_formed", BOOK, elements="author") == 0.0
    assert score("xml_well_formed", BOOK, elements="fragment", shape="fragment") == 0.0


@pytest.mark.parametrize(
    ("completion", "source"),
    [
        (f"So:\n```xml\n{BOOK}\n```\nbye", "fence"),
        (f"so <answer>\n{BOOK}\n</answer>", "tags"),
    ],
)
def test_the_xml_is_read_at_its_location(completion, source):
    assert score("xml_well_formed", completion, source=source) == 1.0
    assert score("xml_well_formed", BOOK, source=source) == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        LAUGHS,
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        '<!DOCTYPE a SYSTEM "http://localhost/a.dtd"><a/>',
        "<!DOCTYPE a><a/>",
    ],
)
def test_a_document_type_is_refused_with_all_its_entities(completion):
    start = time.process_time()

    assert score("xml_well_formed", completion) == 0.0
    assert score("xml_well_formed", completion, shape="fragment") == 0.0
    assert time.process_time() - start < AT_ONCE


@pytest.mark.parametrize("elements", ["a b", "<a>", "a,", "1"])
def test_names_that_are_no_elements_are_refused(elements):
    with pytest.raises(ValueError, match="parameter elements"):
        score("xml_well_formed", "", elements=elements)


def test_each_marker_gives_its_share_up_to_all():
    wrong = [
        (completion, num_found, found)
        for completion, num_found in [
            ("It is 6.", 0),
            ("Step 1: add.", 1),
            ("1. add\n2. add\n", 2),
            ("- add\n* add", 2),
            ("First, add. Next, add. Finally, 6.", 3),
            ("First of all", 0),
            ("it is 2. or 3.", 0),  # not at a line's beginning
            ("1. 2. 3.", 1),
            ("Step 1: a\nStep 2: b\nStep 3: c\nStep 4: d", 3),
        ]
        if (found := score("reasoning_steps", completion)) != num_found / 3
    ]

    assert wrong == []


def test_fewer_steps_may_be_requested():
    assert score("reasoning_steps", "Step 1: add.", num_steps=1) == 1.0


def test_markers_may_be_ones_own():
    completion = "So a. So b."

    assert score("reasoning_steps", completion, pattern="So", num_steps=2) == 1.0
    assert score("reasoning_steps", "1. add", pattern="So") == 0.0


def test_an_invalid_pattern_is_refused():
    with pytest.raises(ValueError, match="parameter pattern"):
        score("reasoning_steps", "", pattern="(?=a)")


NUMBERS = {"answer_kind": "numeric_answer"}


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>5</think>4", 1.0),
        ("<think>4</think>5", 0.0),
        ("<think>4", 0.0),
        ("4</think>5</think>4", 1.0),
        ("<think>4</think>", 0.0),
    ],
)
def test_text_after_the_reasoning_is_judged(completion, expected):
    assert score("reasoning_answer", completion, "4", **NUMBERS) == expected


def test_the_first_delimiter_that_occurs_says_where():
    both = {"delimiters": ["</a>", "</b>"], **NUMBERS}

    assert score("reasoning_answer", "5</a>4</b>5", "4", **both) == 0.0
    assert score("reasoning_answer", "5</b>4", "4", **both) == 1.0


def test_a_row_without_an_answer_is_not_judged_once_the_reasoning_ends():
    assert score("reasoning_answer", "</think>4", None, **NUMBERS) is None


@pytest.mark.parametrize(
    "completion",
    [
        r"<think> a </think> The answer is $\boxed{\frac{1}{3}}$",
        r"<think> a </think> The answer is $\boxed{\frac{1}{2}}$",
        r"<think> $\boxed{\frac{1}{3}}$ but no final answer",
        r"</think> $\boxed{\frac{1}{2}}$ </think> $\boxed{\frac{2}{6}}$",
        r"<think></think> 1/3",
        r"<think> $\boxed{\frac{1}{3}}$ </think> so be it",
    ],
)
@pytest.mark.parametrize("delimiters", [["</think>"], ["<answer>", "</think>"]])
def test_trls_reasoning_accuracy_reward(completion, delimiters):
    from trl.rewards import reasoning_accuracy_reward

    gold = r"\frac{1}{3}"
    (expected,) = reasoning_accuracy_reward(
        message(completion), [gold], reasoning_delimiters=delimiters
    )

    found = score(
        "reasoning_answer",
        completion,
        gold,
        delimiters=delimiters,
        mode="as_published",
    )

    assert found == expected
