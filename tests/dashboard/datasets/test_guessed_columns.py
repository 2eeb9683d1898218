"""Which columns of well-known datasets are taken for the prompt and the answer."""

import json
from typing import Any

import pytest

from cohort.lines import part_text
from dashboard.datasets.mapping import Mapping, map_record
from dashboard.datasets.parsing.records import Record, Refusal
from dashboard.datasets.prompt_template import PromptTemplate
from dashboard.datasets.row import Row
from dashboard.datasets.suggestions import (
    first_template,
    suggest_mapping,
    suggest_rule,
    warn,
)
from tests.trainer.rewards.scores import score

# Columns as published, in their order.
KNOWN = {
    "GSM8K": ("question answer", "question", "answer"),
    "MATH": ("problem level type solution", "problem", "solution"),
    "MATH-500": (
        "problem solution answer subject level unique_id",
        "problem",
        "answer",
    ),
    "Countdown with prompts": ("prompt answer target nums", "prompt", "answer"),
    "DeepScaleR": ("problem answer solution", "problem", "answer"),
    "OpenR1-Math": (
        "problem solution answer problem_type question_type source uuid "
        "is_reasoning_complete generations correctness_math_verify messages",
        "problem",
        "answer",
    ),
    "Big-Math": (
        "problem answer source domain llama8b_solve_rate",
        "problem",
        "answer",
    ),
    "OpenMathReasoning": (
        "expected_answer problem_type problem_source generation_model problem",
        "problem",
        "expected_answer",
    ),
    "NuminaMath": ("source problem solution messages", "problem", "solution"),
    "MetaMathQA": ("type query original_question response", "query", "response"),
    "AIME": ("ID Problem Solution Answer", "Problem", "Answer"),
    "AQuA": ("question options rationale correct", "question", "correct"),
    "ARC": ("id question choices answerKey", "question", "answerKey"),
    "UltraFeedback, binarized": (
        "prompt prompt_id chosen rejected messages score_chosen score_rejected",
        "prompt",
        None,
    ),
    "UltraFeedback": (
        "source instruction models completions correct_answers incorrect_answers",
        "instruction",
        None,
    ),
    "Alpaca": ("instruction input output text", "", "output"),
    "BoolQ": ("question answer passage", "", "answer"),
    "TRL": ("prompt completion", "prompt", "completion"),
    "HumanEval": (
        "task_id prompt canonical_solution test entry_point",
        "prompt",
        "canonical_solution",
    ),
    "MBPP": ("task_id text code test_list", "text", None),
    "chat": ("id messages", "messages", None),
    "ShareGPT": ("id conversations", "conversations", None),
    "system, user, assistant": ("system user assistant", "user", "assistant"),
}


def test_a_known_datasets_columns_are_guessed():
    for name, (text, prompt, answer) in KNOWN.items():
        columns = text.split()

        guess = suggest_mapping(columns).mapping

        assert (guess.prompt, guess.answer) == (prompt, answer), name
        assert set(guess.columns) == {*columns} - {prompt, answer}, name
        assert bool(guess.template) == (not prompt), name


def test_a_new_versions_columns_are_those_of_the_version_before():
    before = Mapping(prompt="Frage", answer="Lösung", columns=("level",))

    def guess(*names: str) -> Mapping:
        return suggest_mapping(names, before=before).mapping

    same = guess("level", "answer", "Lösung", "Frage")
    renamed = guess("level", "question", "Lösung")
    without = guess("Frage", "level", "answer")

    assert (same.prompt, same.answer) == ("Frage", "Lösung")
    assert same.columns == ("level", "answer")
    assert (renamed.prompt, renamed.answer) == ("question", None)
    assert (without.prompt, without.answer) == ("Frage", "answer")


def _mapped(prompt: Any) -> Row | Refusal:
    record = Record(line=1, row=1, values={"conversations": prompt})
    return map_record(record, Mapping(prompt="conversations"), is_text=False)


def test_sharegpt_messages_become_chat_messages():
    row = _mapped(
        [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "1+1?"},
            {"from": "gpt", "value": "2"},
            {"from": "human", "value": "And 2+2?"},
        ]
    )

    assert isinstance(row, Row)
    assert row.prompt == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 2+2?"},
    ]


def test_invalid_sharegpt_messages_are_refused():
    question = {"from": "human", "value": "?"}
    for messages, remedy in (
        ([{"from": "bing", "value": "?"}], "human, gpt,"),
        ([{"from": ["human"], "value": "?"}], "human, gpt,"),
        ([{"from": "human", "value": 3}], "one string"),
        ([{"from": "gpt", "value": "!"}], "Add one"),
        ([{"from": "human"}], '"role"'),
        ([question, {"value": "?"}], '"role"'),
    ):
        refused = _mapped(messages)

        assert isinstance(refused, Refusal)
        assert remedy in refused.remedy


@pytest.mark.parametrize(
    "names", [["target", "nums"], ["nums", "target"], ["id", "target", "nums"]]
)
def test_countdown_tasks_without_a_prompt_get_a_template(names):
    guess = suggest_mapping(names).mapping
    record = Record(line=1, row=1, values={"target": 98, "nums": [44, 19, 35]})

    row = map_record(record, guess, is_text=False)

    assert isinstance(row, Row)
    assert "44, 19, 35" in row.prompt
    assert suggest_mapping(["nums", "target", "question"]).mapping.prompt == "question"


def test_an_answer_of_many_digits_names_no_option():
    row = Row(prompt="Which?", answer="9" * 5_000, columns={"choices": ["a", "b"]})

    assert suggest_rule([row]) is None


def test_a_first_template_reads_a_column_of_any_name():
    for name in ('a "b"', "a.b", "a\\", "x y", "class", "none"):
        template = PromptTemplate(first_template([name]))

        assert template.render({name: "text"}) == "text"


def test_a_column_that_json_cannot_hold_is_left_out():
    values = {"prompt": "2+2?", "image": {"bytes": b"a"}, "score": float("nan")}
    records = [Record(1, values), Record(2, {**values, "score": 0.5})]

    mapping = suggest_mapping(["prompt", "image", "score"], records).mapping

    assert mapping.columns == ("score",)
    rows = [map_record(record, mapping, is_text=False) for record in records]
    (warning,) = [it for it in warn(rows) if it.code == "left_empty"]
    assert (warning.count, warning.num_rows) == (1, 2)


def _mapped(prompt: Any, *, is_text: bool = False) -> Row | Refusal:
    record = Record(1, {"prompt": prompt})
    return map_record(record, Mapping(prompt="prompt"), is_text=is_text)


def test_an_image_in_a_chat_is_a_placeholder():
    parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}]

    row = _mapped([{"role": "user", "content": parts}])

    assert isinstance(row, Row)
    content = f"{part_text({'type': 'image'})}\nWhat is it?"
    assert row.prompt == [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("text", "is_text"),
    [
        ("[{'role': 'user', 'content': 'It\\'s 1'}]", True),
        ('[{"role": "user", "content": "It\'s 1"}]', False),
        ("[{'from': 'human', 'value': \"It's 1\"}]", False),
    ],
    ids=["Python in CSV", "JSON in JSON", "Python in JSON"],
)
def test_a_chat_written_as_text_is_a_chat(text, is_text):
    row = _mapped(text, is_text=is_text)

    assert isinstance(row, Row)
    assert row.prompt == [{"role": "user", "content": "It's 1"}]


@pytest.mark.parametrize(
    "text",
    [
        "[{'role': 'user', 'content': 'a'}\n {'role': 'user', 'content': 'b'}]",
        "[{'role': 'user', 'content': f()}]",
        "[{'role': 'user', 'content': '" + "a" * 100_000 + "'}]",
    ],
    ids=["array of numpy", "call", "long"],
)
def test_a_chat_that_python_wrote_unreadably_is_refused(text):
    row = _mapped(text)

    assert isinstance(row, Refusal)
    assert "json.dumps" in row.remedy


def test_a_text_that_only_begins_like_a_chat_stays_text():
    for text in ("[{1: 2}] is a list", '[{"a": 1}]', "[{'a': 1}]"):
        row = _mapped(text)
        assert isinstance(row, Row)
        assert row.prompt == text


def test_calls_of_tools_in_sharegpt_are_the_assistants():
    call = {"name": "weather", "arguments": {"city": "Rome"}}
    chat = [
        {"from": "human", "value": "Rain in Rome?"},
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "no"},
    ]
    row = _mapped(chat)

    assert isinstance(row, Row)
    roles = [message["role"] for message in row.prompt]
    assert roles == ["user", "assistant", "tool"]
    assert row.prompt[1]["tool_calls"] == [{"type": "function", "function": call}]
    assert isinstance(_mapped([*chat[:1], {**chat[1], "value": "?"}]), Refusal)


def test_a_last_reply_may_begin_the_completion():
    chat = [_turn("user", "2+2?"), _turn("assistant", " It is ")]
    mapping = Mapping(prompt="prompt", answer="answer", last_reply="prefill")

    def mapped(chat: list[dict[str, Any]]) -> Row | Refusal:
        record = Record(1, {"prompt": chat, "answer": "4"})
        return map_record(record, mapping, is_text=False)

    row = mapped(chat)

    assert isinstance(row, Row)
    assert (row.prompt, row.answer) == (chat, "4")
    assert isinstance(mapped(chat[1:]), Refusal)  # there is no question


def test_an_empty_last_reply_gives_no_answer():
    chat = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": ""}]
    row = _mapped(chat)
    reply = Record(1, {"prompt": "2+2?", "completion": [_turn("assistant", "")]})
    answered = Mapping(prompt="prompt", answer="completion")

    assert isinstance(row, Row)
    assert row.answer is None
    assert isinstance(map_record(reply, answered, is_text=False), Refusal)


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    "answers",
    [
        ["$1$", "$-2.5$"],
        ["<answer> 3 </answer>", "<answer>4</answer>"],
        [r"\boxed{5}", r"\boxed{1,200}"],
        ["12 cm", "3 kg"],
        ["2 1/2", r"$2\frac{1}{2}$"],
    ],
)
def test_wrapped_numbers_get_the_numeric_rule_which_reads_them(answers):
    rule = suggest_rule([Row(prompt="Q", answer=answer) for answer in answers])

    assert rule is not None
    assert rule.kind == "numeric_answer"
    for answer in answers:
        assert score(rule.kind, answer, answer, **rule.params) == 1.0


def test_a_suggested_rule_says_how_many_answers_it_was_read_from():
    rule = suggest_rule([Row(prompt="Q", answer=str(n)) for n in range(12)])

    assert rule is not None
    assert "first 12" in rule.reason


@pytest.mark.parametrize("answer", ["Route 66", "COVID-19", "7 or 8", "July 4"])
def test_texts_that_contain_a_number_get_the_exact_rule(answer):
    rule = suggest_rule([Row(prompt="Q", answer=answer)])

    assert rule is not None
    assert rule.kind == "exact_answer"


@pytest.mark.parametrize(
    "answer",
    [
        '{"func_name": "validate_lowercase", "N": null}',
        '{"pattern": "^\\\\d+$"}',
        '[{"type": "length", "max": 5}]',
    ],
)
def test_answers_that_are_json_objects_get_no_rule(answer):
    assert suggest_rule([Row(prompt="Q", answer=answer)]) is None
    assert suggest_rule([Row(prompt="Q", answer="[1, 2]")]) is not None


USER, REPLY = {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}
SYSTEM = {"role": "system", "content": "Be short."}
ASKED = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("values", "prompt"),
    [
        ({"system": "Be short.", "conversations": [USER, REPLY]}, [SYSTEM, ASKED]),
        ({"system": "Be short.", "user": "Hi", "assistant": "Hello"}, [SYSTEM, ASKED]),
        ({"system": None, "user": "Hi", "assistant": "Hello"}, "Hi"),
        (
            {
                "system_prompt": "Be long.",
                "messages": [SYSTEM, ASKED, {"role": "assistant", "content": "Hello"}],
            },
            [SYSTEM, ASKED],
        ),
    ],
)
def test_a_system_column_is_the_first_message(values, prompt):
    first = next(iter(values))
    shown = Record(line=1, values=values | {first: "Be short."})

    mapping = suggest_mapping(list(values), [shown]).mapping
    row = map_record(Record(line=1, values=values), mapping, is_text=False)

    assert (mapping.system, mapping.columns) == (first, ())
    assert mapping == Mapping.from_json(mapping.as_json())
    assert isinstance(row, Row)
    assert (row.prompt, row.answer) == (prompt, "Hello")


def test_a_new_version_keeps_its_system_column_or_none():
    names = ["system", "user"]
    record = Record(line=1, values={"system": "Be short.", "user": "Hi"})
    for before in (Mapping(prompt="user"), Mapping(prompt="user", system="system")):
        mapping = suggest_mapping(names, [record], before).mapping

        assert mapping.system == before.system
    bare = Record(line=1, values={"user": "Hi"})
    assert suggest_mapping(["user"], [bare], before).mapping.system == ""


def test_a_system_message_must_be_text():
    record = Record(line=1, values={"system": {"a": 1}, "user": "Hi"})

    row = map_record(record, Mapping(prompt="user", system="system"), is_text=False)

    assert isinstance(row, Refusal)
    assert row.column == "system"
