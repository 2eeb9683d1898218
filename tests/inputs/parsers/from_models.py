"""What models write: completions, their judges' verdicts, replies of their code."""

import contextlib
import json
from typing import Any

from hypothesis import strategies as st

from tests.inputs.parsers.row import (
    ANY_TEXT,
    BODIES,
    JSON,
    NUMBERS,
    TREES,
    Parser,
    dumped,
    of,
    shaped,
)
from trainer.rewards.code_running import read_tests
from trainer.rewards.model_judge.question import Unreadable, read_score
from trainer.rewards.rule import NotApplicable, Sample
from trainer.rewards.rules.documents import XmlWellFormedParams, score_xml
from trainer.rewards.sandbox.slot import parsed
from trainer.rewards.strict_json import NotJson, read_json


def check_verdict(reply: str) -> None:
    for form in ("json_field", "last_number", "yes_no"):
        with contextlib.suppress(Unreadable):
            assert 0 <= read_score(reply, form, field="score", low=-2, high=10) <= 1


def check_document(text: str) -> None:
    with contextlib.suppress(NotJson):
        json.dumps(read_json(text), allow_nan=False)


XML = of(
    "<>/&;!?-[]='\" \n", "answer", "<a>", "</a>", "<!DOCTYPE", "<![CDATA[", "&amp;"
)

SHAPES = ("document", "fragment")


def check_xml(text: str) -> None:
    for shape in SHAPES:
        params = XmlWellFormedParams(shape=shape, elements="a,answer")
        assert 0 <= score_xml(Sample("p", text), params) <= 1


CASES = st.lists(
    shaped(input=JSON, output=ANY_TEXT, stdin=ANY_TEXT, fn_name=ANY_TEXT), max_size=3
)

COLUMNS = CASES | CASES.map(dumped) | shaped(inputs=CASES, outputs=CASES) | JSON | TREES


def check_tests(column: Any) -> None:
    with contextlib.suppress(NotApplicable):
        read_tests(Sample("p", "c", columns={"tests": column}), "tests", most=2)


def check_reply(body: bytes) -> None:
    parsed(body)


PARSERS = [
    Parser("a judge's verdicts", shaped(score=NUMBERS).map(dumped) | NUMBERS.map("Score: {}/10".format)
           | TREES | ANY_TEXT, check_verdict, ("trainer.rewards.model_judge.question",)),
    Parser("JSON of a completion", TREES, check_document, ("trainer.rewards.strict_json",)),
    Parser("XML of a completion", XML, check_xml, ("trainer.rewards.rules.documents",)),
    Parser("tests of a row", COLUMNS, check_tests, ("trainer.rewards.code_running",)),
    Parser("what judged code replies", BODIES, check_reply, ("trainer.rewards.sandbox.slot",)),
]  # fmt: skip
