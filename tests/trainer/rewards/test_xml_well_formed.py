from __future__ import annotations

import time

import pytest

from tests.trainer.rewards.scores import AT_ONCE, score

BOOK = '<book lang="en"><title>Emma &amp; co</title></book>'
LAUGHS = (
    '<!DOCTYPE a [<!ENTITY l "ha">'
    + "".join(
        f'<!ENTITY l{n} "{f"&l{n - 1 if n else str()};" * 10}">' for n in range(10)
    )
    + "]><a>&l9;</a>"
)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
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
    ],
)
def test_one_element_holds_all_others(completion, expected):
    assert score("xml_well_formed", completion) == expected


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


def test_the_score_is_the_share_of_the_elements_asked_for():
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
def test_the_xml_stands_where_it_was_asked_for(completion, source):
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
