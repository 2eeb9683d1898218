"""How the form of a reward function is recognised by its signature."""

import pytest

from trainer.rewards.function_forms import (
    EXAMPLES,
    FORMS,
    RewardFunction,
    is_ambiguous,
    recognise,
    rule_names,
    select,
)

FORM_OF = {
    # Cohort's
    "def reward(completion, answer): ...": "cohort",
    "def reward(prompt, completion, answer, columns): ...": "cohort",
    "def reward(): ...": "cohort",
    "def reward(columns, **rest): ...": "cohort",
    "reward = lambda completion, k=0.25: k": "cohort",
    "def f(completion, columns): ...": "cohort",
    "from functools import partial\n"
    "def g(completion, k): ...\nreward = partial(g, k=2)": "cohort",
    "if True:\n def reward(completion): ...": "cohort",
    # TRL's
    "def f(completions, **kwargs): ...": "trl",
    "def f(prompts, completions, completion_ids, **kwargs): ...": "trl",
    "def f(completions, ground_truth): ...": "trl",
    "def f(prompts, completions, completion_ids=None, trainer_state=None, "
    "log_extra=None, log_metric=None, environments=None, **kwargs): ...": "trl",
    "def f(*, completions: list[str], **kwargs) -> list[float | None]: ...": "trl",
    "import functools\n@functools.cache\ndef f(completions, **kwargs): ...": "trl",
    "async def f(completions, **kwargs): ...": "trl",
    "f = lambda completions, **kwargs: [0.0] * len(completions)": "trl",
    "def make(limit):\n def g(completions): ...\n return g\nf = make(0)": "trl",
    "def make(limit):\n return lambda completions: limit\nf = make(0)": "trl",
    "class Judge:\n def __call__(self, completions, **kwargs): ...\nf = Judge()": "trl",
    "from functools import partial\n"
    "def _g(weight, completions, **kwargs): ...\nf = partial(_g, 2.0)": "trl",
    "def f(**kwargs): return [len(c) for c in kwargs['completions']]": "trl",
    "def reward(completions, **kwargs): ...": "trl",
    "def f(completions: list, solution: list, **kwargs) -> float: ...": "trl",
    "\ufeffdef f(completions, **kwargs): ...": "trl",
    # verl's
    "def compute_score(\n"
    " data_source, solution_str, ground_truth, extra_info=None): ...": "verl",
    "def compute_score(data_source, solution_str, ground_truth, extra_info, "
    "**kwargs) -> dict: ...": "verl",
    "def f(solution_str, ground_truth, method='strict', score=1.0): ...": "verl",
    "async def compute_score(data_source, solution_str, ground_truth): ...": "verl",
    # verifiers'
    "def f(completion, answer): ...": "verifiers",
    "def f(completion, answer, **kwargs) -> float: ...": "verifiers",
    "async def f(completion, answer, prompt, state, info): ...": "verifiers",
    "def f(prompt, completion, answer, state=None, task='x', info=None): ...": (
        "verifiers"
    ),
    "def reward(completion, answer, state): ...": "verifiers",
    "try:\n import x\nexcept ImportError:\n def f(completion, state): ...": "verifiers",
}
REFUSED = {
    "def f(parser, completion, answer): ...": "parser",
    "def f(completions, completion): ...": "both",
    "def f(completions, /, **kwargs): ...": "by name",
    "def f(solution_strs, ground_truths): ...": "batch",
    "def f(solution_str, ground_truth, tokenizer): ...": "tokenizer",
    "def f(completions, trainer_state, **kw): return [trainer_state.step]": (
        "trainer_state"
    ),
    "def f(completions, **kw): return kw['environments']": "environments",
    "def f(completions, **kwargs) -> str: ...": "str",
    "def f(queries, prompts, labels, **kwargs): ...": "OpenRLHF",
    "def f(completion: str) -> str: ...": "str",
    "def f(completions, **kwargs):\n yield 1.0": "yields",
}
HELPERS = (
    "def f(text): ...",
    "def _f(completions, **kwargs): ...",
    "def f(prompt): ...",
    "class F:\n def __call__(self, completions): ...",
    "def f(completions, **kwargs): ...\nf = 3",
    "import math",
    "f = partial",
    "def make():\n def g(completions): ...\n return 3\nf = make()",
)


@pytest.mark.parametrize(("source", "form"), FORM_OF.items())
def test_the_signature_shows_the_form(source, form):
    found = recognise(source)

    named = {each.name: each.form for each in found.functions}
    assert named.get("f" if "f" in named else next(iter(named))) == form
    assert found.fault == ""


@pytest.mark.parametrize(("source", "word"), REFUSED.items())
def test_a_nearly_recognised_function_has_a_reason(source, word):
    found = recognise(source)

    assert found.functions == ()
    assert word in found.refused["f"]
    with pytest.raises(ValueError, match=word):
        select(source, "f")


@pytest.mark.parametrize("source", HELPERS)
def test_helpers_are_no_reward_functions(source):
    found = recognise(source)

    assert (found.functions, found.refused) == ((), {})


HELPED = {
    "def extract(solution_str): ...\n"
    "def f(solution_str, ground_truth): return extract(solution_str)": "extract",
    "def f(completions, answer, **kwargs):\n"
    " return [float(extract(c) == a) for c, a in zip(completions, answer)]\n"
    "def extract(completion): ...": "extract",
    "def read(completion): ...\n"
    "def _grade(completion): return read(completion)\n"
    "def f(completion, answer): return _grade(completion)": "read",
    # Nothing calls these: they take no reference and tell of no number.
    "def extract(solution_str):\n return solution_str.split('#')[1]\n"
    "def f(solution_str, ground_truth): return 1.0": "extract",
    "def extract(completion) -> str | None: ...\n"
    "def f(completions, answer, **kwargs): ...": "extract",
}


@pytest.mark.parametrize(("source", "helper"), HELPED.items())
def test_a_function_that_others_call_is_a_rule_only_by_its_name(source, helper):
    assert [each.name for each in recognise(source).functions] == ["f"]
    assert select(source, "").name == "f"
    assert select(source, helper).name == helper


@pytest.mark.parametrize(
    "other",
    [
        "def g(completion) -> float: ...",
        "def g(completion, **kwargs): ...",
        "def g(completion):\n score = 0.5\n return score",
        "def g(completion): return 1 if completion else 0",
        "def g(completion): return len(completion) / 9",
        "def g(completions): ...",
    ],
)
def test_a_function_of_the_text_that_tells_of_a_number_is_a_rule(other):
    source = f"{other}\ndef f(completion, answer): ..."

    assert [each.name for each in recognise(source).functions] == ["g", "f"]


def test_a_wrong_annotation_of_a_trl_function_is_known():
    wrong, right = recognise(
        "def f(completions, **kwargs) -> float: ...\n"
        "def g(completions, **kwargs) -> list[float]: ..."
    ).functions

    assert (wrong.wrong_type, right.wrong_type) == ("float", "")


def test_functions_that_all_call_each_other_are_all_rules():
    source = (
        "def f(completion): return g(completion)\n"
        "def g(completion): return f(completion)"
    )

    assert [each.name for each in recognise(source).functions] == ["f", "g"]


@pytest.mark.parametrize("line", ["%pip install math-verify", "!pip install x"])
def test_a_notebook_command_is_a_fault_that_names_it(line):
    found = recognise(f"import math\n{line}\ndef f(completions): ...")

    assert "Line 2" in found.fault
    assert "notebook" in found.fault


def test_a_source_that_python_cannot_parse_has_a_fault():
    assert "Line 2" in recognise("x = 1\ndef f(:").fault
    assert recognise("f" + "+f" * 50_000).functions == ()


def test_recognising_runs_nothing(tmp_path):
    path = tmp_path / "ran"
    source = f"open({str(path)!r}, 'w')\ndef f(completions): ..."

    assert recognise(source).functions[0].form == "trl"
    assert not path.exists()


def test_functions_stand_in_the_order_of_the_source():
    source = (
        "import re, numpy.linalg\nfrom sympy.core import S\n"
        "def b(completions, **kwargs): ...\n"
        "def helper(text): ...\n"
        "def a(solution_str, ground_truth): ...\n"
    )

    found = recognise(source)

    assert [each.name for each in found.functions] == ["b", "a"]
    assert found.imports == {"re", "numpy", "sympy"}
    assert is_ambiguous(source)
    assert select(source, "a").form == "verl"
    with pytest.raises(ValueError, match="2 reward functions"):
        select(source, "")
    with pytest.raises(ValueError, match='"c"'):
        select(source, "c")


def test_a_function_named_reward_is_called_without_being_named():
    source = "def other(completion): ...\ndef reward(completion): ..."

    assert select(source, "").name == "reward"
    assert not is_ambiguous(source)


@pytest.mark.parametrize(
    "source",
    ["from elsewhere import x as reward", "reward = make()", "def reward(:"],
)
def test_a_reward_that_cannot_be_seen_is_called_as_before(source):
    assert select(source, "") == RewardFunction(name="reward", form="cohort")


def test_without_a_function_all_four_signatures_are_named():
    with pytest.raises(ValueError, match="solution_str") as error:
        select("def f(text): ...", "")

    for word in ("reward(", "completions", "solution_str", "state"):
        assert word in str(error.value)


@pytest.mark.parametrize("form", FORMS)
def test_the_example_of_a_form_is_of_that_form(form):
    (function,) = recognise(EXAMPLES[form]).functions

    assert function.form == form


def test_rules_are_named_after_their_functions():
    names = ["Exact", "exact", "9", "ü" * 50, "a" * 50]
    functions = [RewardFunction(name=name, form="trl") for name in names]

    assert rule_names(functions, taken=["exact"]) == [
        "exact_2",
        "exact_3",
        "f9",
        "f" + "_" * 35,
        "a" * 36,
    ]
