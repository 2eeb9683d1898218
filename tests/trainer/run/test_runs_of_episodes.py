"""Runs whose completions are episodes: learned from, resumed, shared and evaluated."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import child_environment
from tests.trainer.run.test_resume import story
from tests.trainer.several import run_two
from tests.trainer.tiny import only, read_events, run_trainer, write_config
from trainer.config import load_config
from trainer.parallel.launch import EXIT_PAUSED

GUESS = Path(__file__).parents[3] / "trainer" / "starter" / "guess"
# The same game, as a user writes it.
OWN_GAME = """
def reply(row, seed, said):
    low, high = map(int, row["prompt"].split()[:2])
    target, left = int(row["answer"]), high - low + 1
    for turn in said:
        text, before = turn["content"].strip(), left
        if not text.isdecimal() or len(text) > 9:
            return {"text": "!", "done": True, "reward": 0.0, "episode_reward": 0.0}
        guess = int(text)
        if guess == target:
            return {"text": ".", "done": True, "reward": 1.0, "episode_reward": 1.0}
        low = max(low, guess + 1) if guess < target else low
        high = min(high, guess - 1) if guess > target else high
        left = high - low + 1
    answer = "+" if guess < target else "-"
    return {"text": answer, "reward": 1 - left / before, "episode_reward": 0.0}
"""


def tree_of(**parts):
    """A short run of the starter's game."""
    tree = load_config(GUESS / "run.toml").model_dump(mode="json", exclude={"phases"})
    tree["model"]["device"] = "cpu"
    changes = {
        "model": {"path": str(GUESS / "model")},
        "data": {"rows": str(GUESS / "rows.jsonl"), "num_eval_rows": 4},
        "rollout": {"prompts_per_step": 4, "group_size": 4},
        "optim": {"num_steps": 4},
        "evaluation": {"every_steps": 2, "samples_per_prompt": 2},
        "checkpoint": {"every_steps": 1, "keep_last": 10},
        "logging": {"token_groups": 1, "tokens_every_steps": 1},
    }
    for name, values in (*changes.items(), *parts.items()):
        tree[name] |= values
    return tree


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The folder of a run of four steps."""
    folder = tmp_path_factory.mktemp("guess")
    config = write_config(folder, tree_of())
    done = run_trainer("run", config, "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder


def without_seconds(events):
    """A reply's time is no other than a clock's."""
    text = json.dumps(events)
    tree = json.loads(text)
    for event in tree:
        for completion in event.get("completions", ()):
            for turn in completion.get("turns", ()):
                turn["seconds"] = None
    return tree


def test_a_group_has_its_turns(played):
    groups = only(read_events(played / "out" / "events.jsonl"), "group_scored")

    completions = [c for group in groups for c in group["completions"]]
    assert max(len(c["turns"]) for c in completions) > 4
    for group in groups:
        for completion in group["completions"]:
            turns, text = completion["turns"], completion["text"]
            words = [text[turn["start"] : turn["end"]] for turn in turns]
            target = int(group["answer"])
            for guess, answer in zip(words[::2], words[1::2], strict=False):
                expected = "." if int(guess) == target else "+-"[int(guess) > target]
                assert answer == expected
            is_hit = words[-1] == "."
            assert completion["end_reason"] == ("done" if is_hit else "turns")
            assert completion["reward"] == float(is_hit)
            assert completion["num_tokens"] >= 2 * len(words[::2])


def test_metrics_of_a_step_are_those_of_its_episodes(played):
    events = read_events(played / "out" / "events.jsonl")

    for step in only(events, "step_finished"):
        completions = [
            completion
            for group in only(events, "group_scored")
            if group["step"] == step["step"]
            for completion in group["completions"]
        ]
        num_turns = [len(c["turns"][::2]) for c in completions]
        metrics = step["metrics"]
        assert metrics["episode/num_turns"] == sum(num_turns) / len(num_turns)
        firsts = [c["turns"][0]["reward"] for c in completions]
        assert metrics["reward/turn1"] == pytest.approx(sum(firsts) / len(firsts))
        assert metrics["mismatch/mean"] < 1e-5
    evaluated = only(events, "evaluated")
    assert all(1 <= e["metrics"]["eval/heldout/mean_turns"] <= 5 for e in evaluated)


def test_the_sampler_is_compared_on_the_policys_tokens_alone(played):
    events = read_events(played / "out" / "events.jsonl")
    groups, measured = only(events, "group_scored"), only(events, "mismatch_measured")

    assert len(measured) == 4
    for event in measured:
        counts = [
            completion["num_tokens"]
            for group in groups
            if group["step"] == event["step"]
            for completion in group["completions"]
        ]
        assert event["sums"]["num_tokens"] == counts
        assert sum(event["gaps"]) == sum(counts)


def test_token_values_have_no_advantage_where_the_environment_wrote(played):
    events = read_events(played / "out" / "events.jsonl")
    groups = {(g["step"], g["prompt_index"]): g for g in only(events, "group_scored")}

    measured = only(events, "tokens_measured")
    assert measured
    for event in measured:
        group = groups[event["step"], event["prompt_index"]]
        for completion, tokens in zip(
            group["completions"], event["completions"], strict=True
        ):
            begin = 0
            for turn in completion["turns"]:
                values = tokens["advantage"][begin : turn["token_end"]]
                is_policys = turn["author"] == "policy"
                assert all((value is not None) == is_policys for value in values)
                begin = turn["token_end"]


def test_a_resumed_run_plays_the_same_episodes(played, tmp_path):
    checkpoint = played / "out" / "checkpoints" / "step-000002-attempt-1"
    options = ("--attempt", 2, "--resume-from", checkpoint)

    done = run_trainer("run", played / "run.json", "--out", tmp_path, *options)

    assert done.returncode == 0, done.stderr
    whole = story(played / "out" / "events.jsonl", after=2)
    assert without_seconds(story(tmp_path / "events.jsonl")) == without_seconds(whole)


def test_a_run_that_is_killed_in_an_episode_goes_on_as_it_would_have(played, tmp_path):
    config = write_config(tmp_path, tree_of())
    command = [
        sys.executable,
        "-m",
        "trainer",
        "run",
        config,
        "--out",
        tmp_path / "out",
    ]
    process = subprocess.Popen(
        list(map(str, command)),
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 2/"):
            break
    os.kill(process.pid, signal.SIGKILL)  # while the third step samples
    process.wait()
    process.stdout.close()

    done = run_trainer(
        "run", config, "--out", tmp_path / "next", "--attempt", 2,
        "--checkpoints", tmp_path / "out" / "checkpoints", "--resume",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    resumed = without_seconds(story(tmp_path / "next" / "events.jsonl"))
    first = min(event["step"] for event in resumed)
    whole = story(played / "out" / "events.jsonl", after=first - 1)
    assert resumed == without_seconds(whole)


def test_two_processes_play_the_episodes_of_one(played):
    codes, output = run_two(played / "run.json")

    assert codes == [0, 0], output

    def texts(folder):
        groups = only(read_events(folder / "events.jsonl"), "group_scored")
        return [
            [(c["text"], c["end_reason"]) for c in group["completions"]]
            for group in groups
            if group["step"] == 1  # later weights differ by rounding
        ]

    assert texts(played / "two") == texts(played / "out")


def test_a_users_own_game_gives_the_same_episodes(played, tmp_path):
    environment = {"kind": "python", "source": OWN_GAME}
    config = write_config(tmp_path, tree_of(environment=environment))

    done = run_trainer("run", config, "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    own, ours = (
        without_seconds(
            only(read_events(folder / "out" / "events.jsonl"), "group_scored")
        )
        for folder in (tmp_path, played)
    )
    for one, other in zip(own, ours, strict=True):
        assert [(c["text"], c["turns"], c["reward"]) for c in one["completions"]] == [
            (c["text"], c["turns"], c["reward"]) for c in other["completions"]
        ]


def failure_of(tree, tmp_path):
    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")
    events = read_events(tmp_path / "out" / "events.jsonl")
    return done.returncode, only(events, "run_failed")[0]["error"]


def test_an_environment_whose_answers_differ_is_refused(tmp_path):
    source = "import os\ndef reply(row, seed, said):\n    return os.urandom(4).hex()\n"
    tree = tree_of(environment={"kind": "python", "source": source})

    code, error = failure_of(tree, tmp_path)

    assert code != 0
    assert "differ for the same row and seed" in error


def test_rows_that_are_no_game_are_refused_by_their_line(tmp_path):
    rows = tmp_path / "rows.jsonl"
    lines = ['{"prompt": "5 24 ?", "answer": "7", "columns": {}}'] * 9
    rows.write_text("\n".join([*lines, '{"prompt": "no game", "columns": {}}']))

    code, error = failure_of(tree_of(data={"rows": str(rows)}), tmp_path)

    assert code != 0
    assert "row 9 (line 10)" in error


def test_an_environment_that_always_fails_pauses_the_run_with_its_text(tmp_path):
    # the check of a run's start has seed 0
    source = (
        "def reply(row, seed, said):\n"
        "    if seed:\n"
        "        raise RuntimeError('no board')\n"
        "    return '+'\n"
    )
    tree = tree_of(environment={"kind": "python", "source": source})

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == EXIT_PAUSED
    [paused] = only(read_events(tmp_path / "out" / "events.jsonl"), "run_paused")
    assert paused["share"] == 1.0
    [fault] = paused["faults"]
    assert (fault["rule"], fault["count"]) == ("hit", 16)
    assert "no board" in fault["error"]


def test_episodes_are_sampled_ahead_and_come_back_out_of_a_checkpoint(tmp_path):
    tree = tree_of(
        rollout={"one_step_off": True},
        loss={"importance_correction": "token_truncate"},
    )
    config = write_config(tmp_path, tree)
    done = run_trainer("run", config, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr

    checkpoint = tmp_path / "whole" / "checkpoints" / "step-000002-attempt-1"
    options = ("--attempt", 2, "--resume-from", checkpoint)
    done = run_trainer("run", config, "--out", tmp_path / "next", *options)

    assert done.returncode == 0, done.stderr
    whole = story(tmp_path / "whole" / "events.jsonl", after=2)
    resumed = story(tmp_path / "next" / "events.jsonl")
    assert without_seconds(resumed) == without_seconds(whole)
