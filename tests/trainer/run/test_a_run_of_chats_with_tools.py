"""A run on chats with tools whose rows have several answers."""

import json
import shutil

from tests.trainer.rewards.scores import score_completion
from tests.trainer.test_prompts import ADD, TOOL_CHAT, TOOL_TEMPLATE
from tests.trainer.tiny import config_tree, read_events, run_trainer, write_config
from trainer.rewards.rule import Sample
from trainer.rewards.spec import Recipe

RECIPE = {
    "rules": [
        {
            "name": "number",
            "kind": "numeric_answer",
            "params": {"percent": "divide"},
        },
        {
            "name": "claims",
            "kind": "equations",
            "weight": 0.5,
            "params": {"target_column": "extra_info.target"},
        },
    ]
}


def test_any_answer_counts_and_the_model_sees_its_tools(model_folder, tmp_path):
    model = shutil.copytree(model_folder, tmp_path / "model")
    (model / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    rows = tmp_path / "rows.jsonl"
    columns = {"tools": [ADD], "extra_info": {"target": 3}}
    answers = [[1, "2", "3", "4", "5"], ["7"], 8]
    rows.write_text(
        "".join(
            json.dumps({"prompt": TOOL_CHAT, "answer": answer, "columns": columns})
            + "\n"
            for answer in answers * 4
        )
    )
    tree = config_tree(
        model,
        rows,
        reward={"recipe": RECIPE, "num_workers": 1},
        optim={"num_steps": 2},
        rollout={"prompts_per_step": 6, "group_size": 6},
        evaluation={"every_steps": 1},
    )
    out = tmp_path / "run"

    done = run_trainer("run", write_config(tmp_path, tree), "--out", out)

    assert done.returncode == 0, done.stderr
    groups = [
        event
        for event in read_events(out / "events.jsonl")
        if event["type"] == "group_scored"
    ]
    assert len(groups) == 12
    kept = [["1", "2", "3", "4", "5"], "7", "8"]
    assert all(group["answer"] == kept[group["prompt_index"] % 3] for group in groups)
    assert {group["prompt"] for group in groups} == {
        '<t>add<user>1+2<assistant><c>add{"a": 1}<tool>3'
    }
    recipe = Recipe.model_validate(RECIPE)
    scored = [
        (
            completion["rules"],
            score_completion(
                recipe, Sample("", completion["text"], group["answer"], columns)
            ).rules,
        )
        for group in groups
        for completion in group["completions"]
    ]
    assert [found for found, _ in scored] == [expected for _, expected in scored]
    numbers = {rules["number"] for rules, _ in scored}
    assert numbers == {0.0, 1.0}


def test_completions_continue_what_the_rows_begin(model_folder, tmp_path):
    model = shutil.copytree(model_folder, tmp_path / "model")
    (model / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    rows = tmp_path / "rows.jsonl"
    begun = {"role": "assistant", "content": " 3 "}
    line = json.dumps({"prompt": [{"role": "user", "content": "1+2"}, begun]})
    rows.write_text(f"{line}\n" * 8)
    rule = {"name": "begun", "kind": "regex", "params": {"pattern": "^ 3 +="}}
    tree = config_tree(
        model,
        rows,
        data={"rows": str(rows), "completion_prefix": "=", "num_eval_rows": 2},
        reward={"recipe": {"rules": [rule]}, "num_workers": 1},
        optim={"num_steps": 1},
        rollout={"prompts_per_step": 4, "group_size": 2},
        evaluation={"every_steps": 1},
    )
    out = tmp_path / "run"

    done = run_trainer("run", write_config(tmp_path, tree), "--out", out)

    assert done.returncode == 0, done.stderr
    events = read_events(out / "events.jsonl")
    groups = [event for event in events if event["type"] == "group_scored"]
    assert {group["prompt"] for group in groups} == {"<user>1+2<assistant> 3 ="}
    assert {group["begun"] for group in groups} == {" 3 ="}
    completions = [c for group in groups for c in group["completions"]]
    assert {c["rules"]["begun"] for c in completions} == {1.0}
    assert not any(c["text"].startswith(" 3 =") for c in completions)
    evaluated = next(event for event in events if event["type"] == "evaluated")
    assert evaluated["metrics"]["eval/heldout/mean"] == 1.0
