"""Files in the shapes of public datasets, imported with the suggested mapping.

The rows are our own, in the columns and types of the published datasets.
"""

import csv
import io
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.suggestions import suggest_rule, warn
from tests.dashboard.datasets.test_upload import upload
from tests.trainer.rewards.scores import score_completion
from trainer.rewards.rule import Sample
from trainer.rewards.spec import Recipe, RuleSpec


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A published shape: its records, and what the first row becomes."""

    records: list[dict[str, Any]]
    prompt: Any
    answer: Any = None
    columns: tuple[str, ...] = ()
    rule: tuple[str, dict[str, Any]] | None = None
    right: str | None = None  # a completion that the suggested rule finds right
    wrong: str | None = None
    format: str = "jsonl"
    warnings: tuple[str, ...] = ()


TEST = "assert total([1, 2]) == 3"
CHECK = "def check(candidate):\n    assert candidate([1, 2]) == 3\n"
SUM = "```python\ndef total(numbers):\n    return sum(numbers)\n```"
NOT_SUM = "```python\ndef total(numbers):\n    return 9\n```"
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CHOICES = "Which is a planet?\n\nA) Sirius\nB) Mars\nC) Vega\nD) Luna"
OPTIONS = ["Sirius", "Mars", "Vega", "Luna"]
FROM_0 = {"num_options": 4, "answer_as": "number_from_0"}

SHAPES = {
    "Alpaca": Shape(
        records=[
            {"instruction": "Name the larger.", "input": text, "output": answer}
            for text, answer in (("3 or 5", "5"), ("9 or 7", "9"), ("", "none"))
        ],
        prompt="Name the larger.\n\n3 or 5",
        answer="5",
        columns=("instruction", "input"),
        rule=("exact_answer", {}),
    ),
    "GSM8K": Shape(
        records=[{"question": "Tom has 3 pens, then 4 more?", "answer": "3+4\n#### 7"}],
        prompt="Tom has 3 pens, then 4 more?",
        answer="3+4\n#### 7",
        rule=("numeric_answer", {}),
        right="He has 7 pens.",
        wrong="He has 8 pens.",
    ),
    "NuminaMath": Shape(
        records=[
            {
                "source": "made",
                "problem": "Half of 3?",
                "solution": "It is $\\boxed{\\frac{3}{2}}$.",
                "messages": [
                    *_user("Half of 3?"),
                    {"role": "assistant", "content": "1.5"},
                ],
            }
        ],
        prompt="Half of 3?",
        answer="It is $\\boxed{\\frac{3}{2}}$.",
        columns=("source", "messages"),
        rule=("math_verify", {}),
        format="parquet",
    ),
    "OpenR1-Math": Shape(
        records=[
            {
                "problem": "Square root of 2?",
                "solution": "…",
                "answer": "\\sqrt{2}",
                "generations": ["a", "b"],
                "messages": _user("Square root of 2?"),
            }
        ],
        prompt="Square root of 2?",
        answer="\\sqrt{2}",
        columns=("solution", "generations", "messages"),
        rule=("math_verify", {}),
        right="<answer>$\\sqrt{2}$</answer>",
        wrong="<answer>$\\sqrt{3}$</answer>",
        format="parquet",
    ),
    "verl": Shape(
        records=[
            {
                "data_source": "made/sums",
                "prompt": _user("2+3?"),
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": "5"},
                "extra_info": {"split": "train", "index": 0},
            }
        ],
        prompt=_user("2+3?"),
        answer="5",
        columns=("data_source", "ability", "reward_model", "extra_info"),
        rule=("numeric_answer", {}),
        right="5",
        wrong="6",
        format="parquet",
    ),
    "TRL, prompt and completion": Shape(
        records=[
            {
                "prompt": _user("Capital of Peru?"),
                "completion": [{"role": "assistant", "content": "Lima"}],
            }
        ],
        prompt=_user("Capital of Peru?"),
        answer="Lima",
        rule=("exact_answer", {}),
    ),
    "TRL, prompt only": Shape(
        records=[{"prompt": "The sky is", "ground_truth": "blue"}],
        prompt="The sky is",
        answer="blue",
        rule=("exact_answer", {}),
    ),
    "chat that ends with the assistant": Shape(
        records=[
            {
                "id": 1,
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    *_user("Capital of Peru?"),
                    {"role": "assistant", "content": "Lima"},
                ],
            }
        ],
        prompt=[{"role": "system", "content": "Be brief."}, *_user("Capital of Peru?")],
        answer="Lima",
        columns=("id",),
        format="parquet",
        rule=("exact_answer", {}),
    ),
    "ShareGPT": Shape(
        records=[
            {
                "conversations": [
                    {"from": "human", "value": "Capital of Peru?"},
                    {"from": "gpt", "value": "Lima", "weight": 1},
                ]
            }
        ],
        prompt=_user("Capital of Peru?"),
        answer="Lima",
        format="json",
        rule=("exact_answer", {}),
    ),
    "content as parts": Shape(
        records=[
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Capital"},
                            {"type": "text", "text": "of Peru?"},
                        ],
                    }
                ],
                "answer": "Lima",
            }
        ],
        prompt=_user("Capital\nof Peru?"),
        answer="Lima",
        rule=("exact_answer", {}),
    ),
    "tool calls": Shape(
        records=[
            {
                "messages": [
                    *_user("1+2?"),
                    {"role": "assistant", "content": None, "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "1", "content": "3"},
                ],
                "tools": TOOLS,
                "answer": 3,
            }
        ],
        prompt=[
            *_user("1+2?"),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "3", "tool_call_id": "1"},
        ],
        answer="3",
        columns=("tools",),
        rule=("numeric_answer", {}),
        right="3",
        wrong="4",
    ),
    "MMLU": Shape(
        records=[
            {
                "question": "Which is a planet?",
                "subject": "astronomy",
                "choices": OPTIONS,
                "answer": answer,
            }
            for answer in (1, 0)
        ],
        prompt=CHOICES,
        answer="1",
        columns=("question", "subject", "choices"),
        rule=("multiple_choice", {"options_column": "choices", **FROM_0}),
        right="<answer>B</answer>",
        wrong="<answer>A</answer>",
        format="parquet",
        warnings=("equal_prompts",),
    ),
    "ARC": Shape(
        records=[
            {
                "id": "1",
                "question": "Which is a planet?",
                "choices": {"text": OPTIONS, "label": ["A", "B", "C", "D"]},
                "answerKey": "B",
            }
        ],
        prompt=CHOICES,
        answer="B",
        columns=("id", "question", "choices"),
        rule=("multiple_choice", {"options_column": "choices", "num_options": 4}),
        right="<answer>Mars</answer>",
        wrong="<answer>Vega</answer>",
        format="parquet",
    ),
    "ARC, labels from 1": Shape(
        records=[
            {
                "question": "Which is a planet?",
                "choices": {"text": OPTIONS, "label": ["1", "2", "3", "4"]},
                "answerKey": "2",
            }
        ],
        prompt=CHOICES,
        answer="2",
        columns=("question", "choices"),
        rule=("multiple_choice", {"options_column": "choices", **FROM_0}),
        right="<answer>B</answer>",
        wrong="<answer>C</answer>",
    ),
    "AQuA": Shape(
        records=[
            {
                "question": "Half of 30?",
                "options": ["A)10", "B)15", "C)20"],
                "rationale": "…",
                "correct": "B",
            }
        ],
        prompt="Half of 30?\n\nA)10\nB)15\nC)20",
        answer="B",
        columns=("question", "options", "rationale"),
        rule=("multiple_choice", {"options_column": "options", "num_options": 3}),
        right="<answer>15</answer>",
        wrong="<answer>C</answer>",
    ),
    "MMLU with numbers as options": Shape(
        records=[
            {
                "question": f"Which is {right}?",
                "choices": ["3", "1", "2", "0"],
                "answer": answer,
            }
            for right, answer in (("1", 1), ("2", 2), ("0", 3))
        ]
        + [{"question": "Which is 8?", "choices": ["6", "7", "8"], "answer": 2}],
        prompt="Which is 1?\n\nA) 3\nB) 1\nC) 2\nD) 0",
        answer="1",
        columns=("question", "choices"),
        rule=("multiple_choice", {"options_column": "choices", **FROM_0}),
        right="<answer>B</answer>",
        wrong="<answer>D</answer>",
        format="parquet",
    ),
    "MMLU as CSV": Shape(
        records=[
            {
                "question": "Which is a planet?",
                **dict(zip("ABCD", OPTIONS, strict=True)),
                "answer": "B",
            }
        ],
        prompt=CHOICES,
        answer="B",
        columns=("question", "A", "B", "C", "D"),
        rule=("multiple_choice", {"options_column": "A, B, C, D", "num_options": 4}),
        right="<answer>(B)</answer>",
        wrong="<answer>D</answer>",
        format="csv",
    ),
    "MedMCQA": Shape(
        records=[
            {
                "question": "Which is a planet?",
                **dict(zip(("opa", "opb", "opc", "opd"), OPTIONS, strict=True)),
                "cop": cop,
            }
            for cop in (1, 3, 0)
        ],
        prompt=CHOICES,
        answer="1",
        columns=("question", "opa", "opb", "opc", "opd"),
        rule=("multiple_choice", {"options_column": "opa, opb, opc, opd", **FROM_0}),
        right="<answer>B</answer>",
        wrong="<answer>A</answer>",
        warnings=("equal_prompts",),
    ),
    "MedQA": Shape(
        records=[
            {
                "question": "Which is a planet?",
                "answer": "Mars",
                "options": dict(zip("ABCD", OPTIONS, strict=True)),
                "answer_idx": "B",
            }
        ],
        prompt=CHOICES,
        answer="B",
        columns=("question", "answer", "options"),
        rule=("multiple_choice", {"options_column": "options", "num_options": 4}),
        right="<answer>Mars</answer>",
        wrong="<answer>A</answer>",
    ),
    "Countdown": Shape(
        records=[{"target": 4, "nums": [1, 1, 2]}],
        prompt="Using the numbers 1, 1, 2, write an equation that equals 4. Use each "
        "number once, with + - * / and parentheses.",
        columns=("target", "nums"),
        rule=("countdown", {"numbers_column": "nums"}),
        right="<answer>(1 + 1) * 2</answer>",
        wrong="<answer>1 + 2</answer>",
    ),
    "APPS": Shape(
        records=[
            {
                "question": "Add one to the number.",
                "input_output": '{"inputs": ["1\\n"], "outputs": ["2\\n"]}',
            }
        ],
        prompt="Add one to the number.",
        columns=("input_output",),
        rule=("code_tests", {"tests_column": "input_output"}),
        right="```python\nprint(int(input()) + 1)\n```",
        wrong="```python\nprint(1)\n```",
    ),
    "CodeContests": Shape(
        records=[
            {
                "name": "p1",
                "description": "Add one to the number.",
                "public_tests": {"input": ["1\n"], "output": ["2\n"]},
            }
        ],
        prompt="Add one to the number.",
        columns=("name", "public_tests"),
        rule=("code_tests", {"tests_column": "public_tests"}),
        right="```python\nprint(int(input()) + 1)\n```",
        wrong="```python\nprint(1)\n```",
    ),
    "options with letters in brackets": Shape(
        records=[
            {"question": "Half of 30?", "options": ["10", "15"], "answer": "(B)"},
            {"question": "Half of 20?", "options": ["10", "15"], "answer": "(A)"},
        ],
        prompt="Half of 30?\n\nA) 10\nB) 15",
        answer="(B)",
        columns=("question", "options"),
        rule=("multiple_choice", {"options_column": "options", "num_options": 2}),
        right="<answer>15</answer>",
        wrong="<answer>A</answer>",
    ),
    "GPQA": Shape(
        records=[
            {
                "Question": "Which is a planet?",
                "Correct Answer": "Mars",
                "Incorrect Answer 1": "Vega",
                "Incorrect Answer 2": "Luna",
            }
        ],
        prompt="Which is a planet?",
        answer="Mars",
        columns=("Incorrect Answer 1", "Incorrect Answer 2"),
        rule=("exact_answer", {}),
    ),
    "SVAMP": Shape(
        records=[{"Body": "Tom has 3 pens.", "Question": "How many?", "Answer": 3.0}],
        prompt="Tom has 3 pens.\n\nHow many?",
        answer="3.0",
        columns=("Body", "Question"),
        rule=("numeric_answer", {}),
        right="<answer>3</answer>",
        wrong="<answer>4</answer>",
    ),
    "MBPP": Shape(
        records=[
            {
                "task_id": 1,
                "text": "Write total(numbers).",
                "code": "…",
                "test_list": [TEST, "assert total([]) == 0"],
            }
        ],
        prompt=f"Write total(numbers).\n\nYour code should pass this test:\n\n{TEST}",
        columns=("task_id", "text", "code", "test_list"),
        rule=("code_tests", {"tests_column": "test_list"}),
        right=SUM,
        wrong=NOT_SUM,
    ),
    "HumanEval": Shape(
        records=[
            {
                "task_id": "made/1",
                "prompt": "def total(numbers):\n",
                "canonical_solution": "    return sum(numbers)\n",
                "test": CHECK,
                "entry_point": "total",
            }
        ],
        prompt="def total(numbers):\n",
        answer="    return sum(numbers)\n",
        columns=("task_id", "test", "entry_point"),
        rule=("code_tests", {"tests_column": "test"}),
        right=SUM,
        wrong=NOT_SUM,
    ),
    "SQuAD": Shape(
        records=[
            {
                "context": "Lima is the capital of Peru.",
                "question": "What is Peru's capital?",
                "answers": {
                    "text": ["Lima", "Lima, Peru"],
                    "answer_start": [0, 0],
                },
            }
        ],
        prompt="Lima is the capital of Peru.\n\nWhat is Peru's capital?",
        answer=["Lima", "Lima, Peru"],
        columns=("context", "question", "answers"),
        format="parquet",
        rule=("exact_answer", {}),
    ),
    "BoolQ": Shape(
        records=[
            {"question": "is lima a city", "answer": True, "passage": "Lima is a city."}
        ],
        prompt="Lima is a city.\n\nis lima a city",
        answer="true",
        columns=("question", "passage"),
        rule=("exact_answer", {}),
    ),
    "several answers": Shape(
        records=[{"question": "A prime below 4?", "answer": [2, 3]}],
        prompt="A prime below 4?",
        answer=["2", "3"],
        rule=("numeric_answer", {}),
        right="It is 3.",
        wrong="It is 4.",
    ),
}


def _file(shape: Shape) -> tuple[bytes, str]:
    if shape.format == "parquet":
        file = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(shape.records), file)
        return file.getvalue(), "rows.parquet"
    if shape.format == "json":
        return json.dumps(shape.records).encode(), "rows.json"
    if shape.format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(shape.records[0]))
        writer.writeheader()
        writer.writerows(shape.records)
        return text.getvalue().encode(), "rows.csv"
    lines = "".join(json.dumps(record) + "\n" for record in shape.records)
    return lines.encode(), "rows.jsonl"


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.usefixtures("parquet_in_process")
def test_a_published_shape_comes_in_as_suggested(alice_client, team, name):
    shape = SHAPES[name]
    content, filename = _file(shape)
    url = upload(alice_client, content, filename)
    page = alice_client.get(url)
    form = page.context["form"]
    suggested = {it.name: it.value() for it in form if it.value()}

    answer = alice_client.post(url, suggested)

    assert answer.status_code == 302, answer.context["refusals"]
    version = DatasetVersion.objects.get()
    assert version.num_rows == len(shape.records)
    rows = [row.as_row() for row in version.rows.order_by("position")]
    assert rows[0].prompt == shape.prompt
    assert rows[0].answer == shape.answer
    assert tuple(version.mapping["columns"]) == shape.columns
    assert tuple(warning.code for warning in page.context["warnings"]) == shape.warnings
    rule = suggest_rule(rows)
    assert (rule and (rule.kind, rule.params)) == shape.rule
    if rule and shape.right and shape.wrong:
        for completion, reward in ((shape.right, 1.0), (shape.wrong, 0.0)):
            recipe = Recipe(
                rules=(RuleSpec(name="r", kind=rule.kind, params=rule.params),)
            )
            prompt = rows[0].prompt if isinstance(rows[0].prompt, str) else ""
            sample = Sample(prompt, completion, rows[0].answer, rows[0].columns)
            assert score_completion(recipe, sample).total == reward


@pytest.mark.parametrize(
    ("columns", "count"), [({}, 2), ({"test_list": ["assert f(1) == 2"]}, 0)]
)
def test_rows_without_an_answer_are_counted_unless_they_have_tests(columns, count):
    rows = [Row(prompt=prompt, answer=None, columns=columns) for prompt in "ab"]

    found = {warning.code: warning.count for warning in warn(rows)}

    assert found.get("no_answer", 0) == count
