"""A short run of a model that plays a game in chats."""

import json

import pytest

from tests.trainer.rollout.test_chat import chat_tokenizer
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
    write_model,
)


@pytest.fixture
def config(tmp_path):
    """A run of a chat template that leaves out the thinking of earlier turns."""
    tokenizer = chat_tokenizer("qwen3")
    tokenizer.eos_token = "<|im_end|>"
    model = write_model(
        tmp_path / "model",
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
    )
    tokenizer.save_pretrained(model)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "5 24 ?", "answer": "17"}) + "\n")
    rules = [{"name": "environment", "kind": "environment"}]
    tree = config_tree(
        model,
        rows,
        data={"num_eval_rows": 0, "max_prompt_tokens": 64},
        environment={"kind": "guess", "max_tokens": 200},
        reward={"recipe": {"rules": rules}, "num_workers": 1},
        rollout={"prompts_per_step": 1, "group_size": 4, "stop": [*"aeiost 1"]},
        optim={"num_steps": 1},
        evaluation={"every_steps": 0},
        checkpoint={"every_steps": 1},
    )
    return write_config(tmp_path, tree)


def test_a_template_that_drops_thinking_is_warned_of_at_the_start(config, tmp_path):
    out = tmp_path / "run"

    done = run_trainer("run", config, "--out", out)
    first = read_events(out / "events.jsonl")
    again = run_trainer("run", config, "--out", out, "--resume")

    assert (done.returncode, again.returncode) == (0, 0), again.stderr
    second = read_events(out / "events.jsonl")
    assert [e["type"] for e in (first[0], second[0])] == ["run_started", "run_resumed"]
    codes = [
        [event["code"] for event in only(log, "warned")] for log in (first, second)
    ]
    assert [log.count("drops_thinking") for log in codes] == [1, 0]
    (step,) = only(first, "step_finished")
    assert 0 <= step["metrics"]["time/environment_share"] <= 1
