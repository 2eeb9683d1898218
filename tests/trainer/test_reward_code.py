"""A run whose reward is a function of the user's own."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.tiny import config_tree, run_trainer, write_config
from trainer.events import GroupScored, RunStarted, parse_event

SOURCE = """
def reward(completion, prompt):
    print(f"{prompt!r} became {completion!r}")
    return completion.count("4") / max(1, len(completion))
"""


def test_its_rewards_and_what_it_printed_are_in_the_log(
    model_folder: Path, rows_path: Path, tmp_path: Path
) -> None:
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
