"""Dumps of verl become a run while they are written."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from cohort.follow import Follower, follow
from cohort.http import Server
from cohort.reporter import Reporter
from tests.client.server import FakeServer
from tests.environment import child_environment
from trainer.events import GroupScored, StepFinished


def dump(folder: Path, step: int, *, score: float = 1.0) -> None:
    """As `_dump_generations` does; after batch balancing, groups are interleaved."""
    folder.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = [
        {
            "input": f"prompt {row % 2}",
            "output": f"out {step}.{row}",
            "gts": ["7", "8"][row % 2],
            "score": score if row < 2 else 0.0,
            "step": step,
            "acc": row < 2,
            "pred": "text",
        }
        for row in range(4)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"{step}.jsonl").write_text(text)


def steps_of(fake: FakeServer) -> dict[int, dict[str, float | None]]:
    return {e.step: e.metrics for e in fake.events if isinstance(e, StepFinished)}


def test_a_step_is_reported_when_its_file_is_complete(fake, server, tmp_path):
    folder, metrics = tmp_path / "rollouts", tmp_path / "metrics.jsonl"
    dump(folder, 1)
    data = {"actor/grad_norm": 0.5, "critic/score/mean": 0.5, "training/epoch": 0}
    metrics.write_text(json.dumps({"step": 1, "data": data}) + "\n" + '{"step": 2')

    with Reporter("theirs", server=server, folder=tmp_path / "run") as reporter:
        follower = Follower(folder, reporter, metrics=metrics)
        first = follower.poll()  # it may still grow
        second = follower.poll()
        dump(folder, 2)
        dump(folder, 3)
        third = follower.poll()
        last = follower.poll(is_over=True)

    assert (first, second, third, last) == (0, 1, 1, 1)
    steps = steps_of(fake)
    assert sorted(steps) == [1, 2, 3]
    assert steps[1]["grad_norm"] == 0.5
    groups = [e for e in fake.events if isinstance(e, GroupScored) and e.step == 1]
    assert [(g.prompt, g.answer) for g in groups] == [
        ("prompt 0", "7"),
        ("prompt 1", "8"),
    ]
    first_group = groups[0].completions
    assert [c.text for c in first_group] == ["out 1.0", "out 1.2"]
    assert [c.reward for c in first_group] == [1.0, 0.0]
    assert [c.rules for c in first_group] == [
        {"score": 1.0, "acc": 1.0},
        {"score": 0.0, "acc": 0.0},
    ]


# As verl 0.6 decodes what Qwen's template writes.
EPISODE = (
    "Let me add.\n<tool_call>\n{}\n</tool_call>\nuser\n<tool_response>\n12\n"
    "</tool_response>\n<tool_response>\n13\n</tool_response>\nassistant\nIt is 12."
)


def test_results_of_tools_become_turns_that_are_guessed(fake, server, tmp_path):
    outputs = [EPISODE, "user\n<tool_response>\nnever closed"]
    lines = [{"input": "5 + 7", "output": text, "score": 1.0} for text in outputs]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(li) + "\n" for li in lines))
    with Reporter("theirs", server=server, folder=tmp_path / "run") as reporter:
        Follower(tmp_path, reporter, metrics=None).poll(is_over=True)

    (group,) = (e for e in fake.events if isinstance(e, GroupScored))
    episode, single = group.completions
    assert episode.text == EPISODE
    assert [(t.author, t.name, EPISODE[t.start : t.end]) for t in episode.turns] == [
        ("policy", "", "Let me add.\n<tool_call>\n{}\n</tool_call>"),
        ("tool", "tool (guessed)", "12"),
        ("tool", "tool (guessed)", "13"),
        ("policy", "", "It is 12."),
    ]
    assert single.turns == []


@pytest.mark.slow
def test_the_command_continues_its_run_after_a_restart(fake, server, tmp_path):
    folder = tmp_path / "rollouts"
    dump(folder, 1)
    run_until(server, folder, lambda: 1 in steps_of(fake))
    dump(folder, 2)

    run_until(server, folder, lambda: 2 in steps_of(fake))

    assert len(fake.openings) == 1
    assert fake.openings[0]["tool"] == "verl"
    assert fake.from_steps == [0, 1]
    assert [e.step for e in fake.attempts[1] if isinstance(e, StepFinished)] == [2]
    assert fake.events[-1].type == "run_finished"  # type: ignore[attr-defined]


def test_a_folder_followed_before_keeps_the_name_of_its_run(
    fake, server, tmp_path, monkeypatch
):
    monkeypatch.setenv("COHORT_URL", server.url)
    monkeypatch.setenv("COHORT_TOKEN", server.token)
    folder = tmp_path / "rollouts"
    dump(folder, 1)
    over = threading.Event()
    over.set()
    follow(folder, name="first", end=over)
    dump(folder, 2)

    with pytest.raises(ValueError, match="'first'"):
        follow(folder, name="second", end=over)
    follow(folder, name="first", end=over)

    assert [one["name"] for one in fake.openings] == ["first"]
    assert sorted(steps_of(fake)) == [1, 2]


def run_until(server: Server, folder: Path, is_done: Callable[[], bool]) -> None:
    environment = child_environment()
    environment |= {"COHORT_URL": server.url, "COHORT_TOKEN": server.token}
    command = [sys.executable, "-m", "cohort", "verl", str(folder)]
    with subprocess.Popen(command, env=environment) as child:
        end = monotonic() + 30
        while not is_done() and monotonic() < end:
            sleep(0.02)
        child.send_signal(signal.SIGTERM)
    assert child.returncode == 0
    assert is_done()
