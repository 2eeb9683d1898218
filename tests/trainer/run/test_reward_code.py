"""A run whose reward is a function of the user's own."""

import json

from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.events import GroupScored, RunStarted, StepFinished, parse_event
from trainer.metric_names import title_of

VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.0, "num_chars": len(solution_str), "acc": True, "pred": "x"}
"""
TRL = """
def lengths(completions, log_metric, **kwargs):
    log_metric("longest", max(map(len, completions)))
    longest = max(map(len, completions)) or 1
    return [len(completion) / longest for completion in completions]
"""
SOURCE = """
def reward(completion, prompt):
    print(f"{prompt!r} became {completion!r}")
    return completion.count("4") / max(1, len(completion))
"""


def test_its_rewards_and_what_it_printed_are_in_the_log(
    model_folder, rows_path, tmp_path
):
    rule = {"name": "mine", "kind": "python_function", "params": {"source": SOURCE}}
    tree = config_tree(
        model_folder,
        rows_path,
        reward={"recipe": {"rules": [rule]}},
        optim={"num_steps": 1},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out" / "events.jsonl").read_bytes().splitlines()
    events = [parse_event(line) for line in lines]
    assert isinstance(events[0], RunStarted)
    assert events[0].versions["sandbox"] in ("level A", "level B")
    groups = [event for event in events if isinstance(event, GroupScored)]
    assert groups
    for group in groups:
        for completion in group.completions:
            share = completion.text.count("4") / max(1, len(completion.text))
            assert completion.reward == share
            assert completion.logs == {
                "mine": f"{group.prompt!r} became {completion.text!r}\n"
            }
            assert completion.errors == {}
        assert group.num_notes == len(group.completions)


def test_metrics_of_functions_are_metrics_of_the_run(model_folder, rows_path, tmp_path):
    rules = [
        {"name": name, "kind": "python_function", "params": {"source": source}}
        for name, source in (("verl", VERL), ("trl", TRL))
    ]
    tree = config_tree(
        model_folder,
        rows_path,
        reward={"recipe": {"rules": rules}, "num_workers": 1},
        optim={"num_steps": 2},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out" / "events.jsonl").read_bytes().splitlines()
    events = [parse_event(line) for line in lines]
    for step in [event for event in events if isinstance(event, StepFinished)]:
        groups = [
            [len(each.text) for each in event.completions]
            for event in events
            if isinstance(event, GroupScored) and event.step == step.step
        ]
        lengths = [length for group in groups for length in group]
        assert step.metrics["reward/verl/num_chars/mean"] == sum(lengths) / len(lengths)
        assert step.metrics["reward/verl/acc/mean"] == 1.0
        longest = sum(map(max, groups)) / len(groups)
        assert step.metrics["reward/trl/longest/mean"] == longest
        assert "reward/verl/pred/mean" not in step.metrics
    assert len([event for event in events if isinstance(event, StepFinished)]) == 2
    assert title_of("reward/verl/num_chars/mean") == "num_chars of verl"


def test_a_rule_of_several_that_never_gives_a_score_is_named_with_its_reason(
    model_folder, tmp_path
):
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"prompt": f"{n}+1=", "answer": "abc"}) for n in range(24)]
    rows.write_text("\n".join(lines))
    rules = [
        {"name": "short", "kind": "length", "params": {"maximum": 5}},
        {"name": "number", "kind": "numeric_answer"},
    ]
    tree = config_tree(
        model_folder,
        rows,
        reward={"recipe": {"rules": rules}},
        optim={"num_steps": 6},
        evaluation={"every_steps": 0},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    events = read_events(tmp_path / "out" / "events.jsonl")
    (warned,) = (e for e in only(events, "warned") if e["code"] == "rule_unscored")
    assert warned["step"] == 5
    assert '"number"' in warned["message"]
    assert "abc" in warned["message"]
    assert '"short"' not in warned["message"]
