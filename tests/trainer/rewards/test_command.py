import json
import sys
from dataclasses import dataclass

import pytest

from tests.environment import run_here
from tests.trainer.tiny import run_trainer

RIGHT = {
    "prompt": [{"role": "user", "content": "?"}],
    "completion": " so</think>\n<answer>3**(2)*1</answer>",
    "numbers": [1, 2, 3],
    "target": 9,
}


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def score(tmp_path, capsys):
    def run(rows: str, *arguments: str) -> Result:
        """The command in this process, where its libraries are loaded."""
        path = tmp_path / "rows.jsonl"
        path.write_text(rows)
        done = run_trainer("score", *arguments, "--rows", path)
        return Result(done.returncode, capsys.readouterr().out, done.stderr)

    return run


def test_the_command_runs_in_a_process_of_its_own(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(RIGHT))

    done = run_here(
        *(sys.executable, "-m", "trainer", "score"),
        *("--preset", "grpo-zero", "--rows", str(path)),
    )

    assert json.loads(done.stdout)["total"] == 0.1


def test_a_preset_scores_each_row(score):
    rows = json.dumps(RIGHT) + "\n\n" + json.dumps(RIGHT | {"numbers": None}) + "\n"

    strict = score(rows, "--preset", "grpo-zero")
    published = score(rows, "--preset", "grpo-zero", "--as-published")

    assert strict.returncode == 0
    assert [json.loads(line) for line in strict.stdout.splitlines()] == [
        {"total": 0.1, "rules": {"format": 1.0, "equation": 0.0}},
        {"total": 0.1, "rules": {"format": 1.0, "equation": None}},
    ]
    assert "line 3, rule equation" in strict.stderr
    assert json.loads(published.stdout.splitlines()[0])["total"] == 1.1


def test_a_recipe_file_scores_rows_in_the_dataset_form(score, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(
        '{"rules": [{"name": "number", "kind": "numeric_answer", "weight": 2}]}'
    )
    rows = '{"prompt": "?", "completion": "it is 42", "answer": 42, "columns": {}}'

    result = score(rows, "--recipe", str(recipe))

    assert json.loads(result.stdout) == {"total": 2.0, "rules": {"number": 1.0}}


def test_any_answer_of_a_list_is_right(score, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"rules": [{"name": "number", "kind": "numeric_answer"}]}')
    chat = [{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]
    rows = [
        {"prompt": chat, "completion": "it is 42", "answer": answers}
        for answers in ([41, "42"], [41, 43], [])
    ]

    result = score("\n".join(map(json.dumps, rows)), "--recipe", str(recipe))

    totals = [json.loads(line)["total"] for line in result.stdout.splitlines()]
    assert (result.returncode, totals) == (0, [1.0, 0.0, None])


def test_a_completion_continues_what_its_chat_begins(score, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"rules": [{"name": "text", "kind": "exact_answer"}]}')
    chat = [*RIGHT["prompt"], {"role": "assistant", "content": "<answer>"}]
    row = {"prompt": chat, "completion": "4</answer>", "answer": 4}

    result = score(json.dumps(row), "--recipe", str(recipe))

    assert json.loads(result.stdout)["total"] == 1.0


@pytest.mark.parametrize(
    ("rows", "arguments", "complaint"),
    [
        ("{}", ["--preset", "grpo-zer"], "Choose one of: cispo"),
        ('{"completion": 7}', ["--preset", "grpo-zero"], "line 1 is"),
        (
            '{"completion": "", "answer": {"a": 1}}',
            ["--preset", "grpo-zero"],
            "line 1: the answer",
        ),
        ('{"completion": ""}\n{', ["--preset", "grpo-zero"], "line 2 is not JSON"),
        ("[" * 100_000, ["--preset", "grpo-zero"], "line 1 is not JSON"),
        ("{}", ["--recipe", "/no/such/file"], "No such file"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(score, rows, arguments, complaint):
    result = score(rows, *arguments)

    assert result.returncode == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_a_bad_recipe_is_answered_with_its_fault(score, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"rules": []}')

    result = score("{}", "--recipe", str(recipe))

    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_rows_of_one_prompt_are_compared(score, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"rules": [{"name": "most", "kind": "majority"}]}')
    rows = "".join(
        json.dumps({"prompt": prompt, "completion": completion}) + "\n"
        for prompt, completion in [("a", "4"), ("a", "5"), ("a", "so 4"), ("b", "5")]
    )

    result = score(rows, "--recipe", str(recipe))

    totals = [json.loads(line)["total"] for line in result.stdout.splitlines()]
    assert totals == [1.0, 0.0, 1.0, None]
    assert "line 4, rule most" in result.stderr


def test_the_weights_are_those_of_a_step(score, tmp_path):
    schedule = {"points": [{"step": 3, "weight": 2}]}
    rule = {"name": "short", "kind": "length", "schedule": schedule}
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"rules": [rule]}))

    result = score('{"completion": "a"}', "--recipe", str(recipe), "--step", "2")

    assert json.loads(result.stdout)["total"] == 1.5


FUNCTIONS = """
def _helper(text):
    return len(text)

def longest(completions, answer, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [-1.5 if text == max(texts, key=len) else None for text in texts]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": data_source == "sums", "num_chars": _helper(solution_str)}

async def exact(completion, answer, info) -> float:
    return float(completion[-1]["content"] == answer) * info["most"]

def judged(parser, completion):
    return 1.0
"""


def test_a_file_of_functions_becomes_a_recipe(score, tmp_path):
    source = tmp_path / "rewards.py"
    source.write_text(FUNCTIONS)
    row = {
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "answer": "4",
        "data_source": "sums",
        "info": {"most": 3},
    }
    rows = "\n".join(json.dumps(row | {"completion": text}) for text in ("4", "four"))

    result = score(rows, "--function", str(source))

    assert result.returncode == 0
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["rules"] == {"longest": None, "compute_score": 1.0, "exact": 3.0}
    assert second["rules"] == {"longest": -1.5, "compute_score": 1.0, "exact": 0.0}
    assert (first["total"], second["total"]) == (4.0, -0.5)
    assert second["metrics"] == {"compute_score": {"num_chars": 4.0}}
    for name in ("TRL reward function longest", "verl", "verifiers", "parser"):
        assert name in result.stderr


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def helper(text): ...", "solution_str"),
        ("def f(", "Line 1"),
        ("def f(completions, **kw): return [kw['environments']]", "environments"),
    ],
)
def test_a_file_without_functions_is_answered_with_the_reason(
    score, tmp_path, source, complaint
):
    path = tmp_path / "rewards.py"
    path.write_text(source)

    result = score("{}", "--function", str(path))

    assert result.returncode == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
