"""A run with a judge: what it writes, what it asks again, and what it warns of."""

import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.rewards.judge_server import Judging, status
from tests.trainer.rewards.scores import recipe_of
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from tests.trainer.waiting import wait_until
from trainer.rewards.rule import Sample
from trainer.rewards.session import open_session
from trainer.scoring import Scorer

KEY = "sk-4711-hush"


def by_length(asked: dict[str, Any]) -> str:
    user = asked["messages"][1]["content"]
    return str(1 + len(user) % 10)


@pytest.fixture
def keyed(judging, monkeypatch) -> Judging:
    monkeypatch.setenv("COHORT_JUDGE_KEY_LAB", KEY)
    monkeypatch.setenv("COHORT_JUDGE_URL_LAB", judging.url)
    judging.reply = by_length
    return judging


@pytest.fixture
def write(keyed, model_folder, rows_path, tmp_path) -> Callable[..., Path]:
    """A configuration of two quick steps whose rule is the judge."""

    def written(changes: dict[str, Any] | None = None, **parts: Any) -> Path:
        params = {"base_url": keyed.url, "model": "m", "key_name": "LAB"}
        rule = {"name": "judge", "kind": "llm_judge", "params": params}
        rule["params"] = params | (changes or {})
        tree = config_tree(
            model_folder,
            rows_path,
            reward={"recipe": {"rules": [rule]}},
            rollout={"prompts_per_step": 2, "group_size": 3},
            optim={"num_steps": 2},
            evaluation={"every_steps": 0},
            checkpoint={"every_steps": 1},
        )
        for name, part in parts.items():
            tree[name] = tree.get(name, {}) | part
        return write_config(tmp_path / "config", tree)

    return written


def rewards(out: Path) -> list[float | None]:
    groups = only(read_events(out / "events.jsonl"), "group_scored")
    return [each["reward"] for group in groups for each in group["completions"]]


def calls_of(out: Path, rule: str) -> float:
    events = read_events(out / "events.jsonl")
    return sum(
        value
        for event in only(events, "step_finished") + only(events, "evaluated")
        for name, value in event["metrics"].items()
        if name.endswith(f"judge/{rule}/calls")
    )


def test_a_run_resumed_asks_nothing_twice_and_writes_no_key(write, keyed, tmp_path):
    config, out = write(), tmp_path / "run"
    assert run_trainer("run", config, "--out", out).returncode == 0
    first, num_asked = rewards(out), len(keyed.asked)
    (newest,) = (out / "checkpoints").glob("step-000002*")
    shutil.rmtree(newest)

    assert run_trainer("run", config, "--out", out, "--resume").returncode == 0

    assert rewards(out) == first[6:]
    assert len(keyed.asked) == num_asked > 1
    assert {each["Authorization"] for each in keyed.headers} == {f"Bearer {KEY}"}
    texts = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert len(texts) > 3
    assert not any(KEY.encode() in text for text in texts)


def test_an_unreachable_judge_gives_one_warning_and_no_score(write, keyed, tmp_path):
    config = write({"max_tries": 1}, reward={"max_error_share": 1})
    out = tmp_path / "run"
    keyed.faults = [status(503)] * 1_000

    assert run_trainer("run", config, "--out", out).returncode == 0

    assert set(rewards(out)) == {None}
    for group in only(read_events(out / "events.jsonl"), "group_scored"):
        assert group["num_notes"] == len(group["completions"]) == 3
        for each in group["completions"]:
            assert each["errors"]["judge"].endswith("127.0.0.1 returned status 503.")
    warned = only(read_events(out / "events.jsonl"), "warned")
    values = [each["message"] for each in warned if each["code"] == "judge"]
    assert len(values) == 1
    assert "503" in values[0]


def test_an_unreachable_judge_pauses_the_run_with_its_reason(write, keyed, tmp_path):
    config, out = write({"max_tries": 1}), tmp_path / "run"
    keyed.faults = [status(503)] * 1_000

    done = run_trainer("run", config, "--out", out)

    assert done.returncode == 4
    assert "status 503" in done.stderr


def test_a_run_without_its_key_does_not_begin(write, keyed, tmp_path):
    config, out = write({"key_name": "OTHER"}), tmp_path / "run"

    done = run_trainer("run", config, "--out", out)

    assert done.returncode == 1
    assert 'Rule "judge": ' in done.stderr
    assert "_KEY_OTHER" in done.stderr
    assert keyed.asked == []


def test_steps_are_judged_with_what_stands_before_them(write, keyed, tmp_path):
    params = {
        "base_url": keyed.url,
        "model": "steps",
        "template": "{prompt} {before} {completion}",
    }
    step_recipe = {"rules": [{"name": "s", "kind": "llm_judge", "params": params}]}
    config = write(
        reward={
            "recipe": {"rules": [{"name": "short", "kind": "length"}]},
            "step_recipe": step_recipe,
            "step_pattern": "[0-9]",
        },
        advantage={"credit": "process"},
        optim={"num_steps": 1},
    )

    assert run_trainer("run", config, "--out", tmp_path / "run").returncode == 0

    users = [asked["messages"][1]["content"] for asked in keyed.asked]
    before = [user.split(" before]\n")[1].split("\n[end ")[0] for user in users]
    assert "" in before
    assert len(set(before)) > 3
    assert calls_of(tmp_path / "run", "s") == len(keyed.asked)


def test_calls_of_steps_and_of_evaluations_are_counted(write, keyed, tmp_path):
    keyed.usage = {"prompt_tokens": 20, "completion_tokens": 10}
    config, out = write(evaluation={"every_steps": 1}), tmp_path / "run"

    assert run_trainer("run", config, "--out", out).returncode == 0

    assert calls_of(out, "judge") == len(keyed.asked)
    (last,) = only(read_events(out / "events.jsonl"), "evaluated")[-1:]
    held_out = {
        name.removeprefix("eval/heldout/judge/judge/"): value
        for name, value in last["metrics"].items()
        if "/judge/" in name
    }
    calls = held_out["calls"]
    assert held_out["input_tokens"] == 20 * calls
    assert held_out["output_tokens"] == 10 * calls
    assert held_out["cached_tokens"] is None or not calls


def test_completions_are_judged_while_others_are_sampled(keyed, tmp_path):
    sampled = threading.Event()
    keyed.reply = lambda _: "7" if sampled.wait(30) else "0"
    recipe = recipe_of("llm_judge", base_url=keyed.url, model="m")

    with open_session(tmp_path), closing(Scorer(0)) as scorer:
        results = [
            scorer.submit(recipe, [Sample("p", f"{n} {k}") for k in range(2)], name="r")
            for n in range(3)
        ]
        wait_until(lambda: keyed.most_at_once > 2)
        sampled.set()
        totals = [score.total for result in results for score in result().scores]

    assert totals == [pytest.approx(6 / 9)] * 6
