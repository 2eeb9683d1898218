"""A disk that is full at a checkpoint and under the log: the run waits for room."""

import re
from pathlib import Path

import pytest

from dashboard.runs.control import request_pause, resume_run
from dashboard.runs.models import RunState
from dashboard.runs.queries import run_directory
from dashboard.supervision.checkpoints import newest_verified
from dashboard.supervision.tasks import resume_on_free_disk
from tests.faults.attempts import Once, run_attempt
from tests.faults.forks import write_run
from tests.faults.histories import assert_whole
from tests.faults.small_disk import MEBIBYTE, crowd, fill, make_room, small_disk
from tests.faults.tiny import config_tree, judged_by, read_log
from tests.trainer.rewards.judge_server import judge_server

pytestmark = pytest.mark.faults
NUM_STEPS = 40


def newest_step(checkpoints: Path) -> int:
    refused: list[str] = []
    found = newest_verified(
        checkpoints,
        is_ours=lambda _: True,
        on_refused=refused.append,
        on_progress=lambda: None,
    )
    assert found is not None, refused
    return found.step


def test_a_run_without_space_for_a_checkpoint_pauses_and_resumes_by_itself(
    launch_tiny, data_folder, undisturbed
):
    run = launch_tiny(num_steps=NUM_STEPS)
    files = run_directory(run.id)
    with small_disk(files.path, mebibytes=200) as disk:
        strike = Once(
            run,
            data_folder,
            step=22,
            act=lambda _: fill(disk, leave=30 * MEBIBYTE),
        )

        paused = run_attempt(run, act=strike)

        assert paused.state == RunState.PAUSED, paused.fail_reason
        assert re.search(r"\b\d\d MiB free", paused.pause_reason)
        assert "step-000020-attempt-1" in paused.pause_reason
        assert newest_step(files.checkpoints) == 20
        assert resume_on_free_disk() == []

        make_room(disk)
        assert resume_on_free_disk() == [run.id]
        ended = run_attempt(run)

    assert ended.state == RunState.FINISHED
    assert ended.attempts.get(number=2).from_step == 20
    assert_whole(ended, undisturbed, num_steps=NUM_STEPS)


def test_a_run_without_space_for_its_log_pauses_and_loses_no_step(
    launch_tiny, data_folder, alice, undisturbed
):
    run = launch_tiny(num_steps=NUM_STEPS)
    files = run_directory(run.id)
    with small_disk(files.path, mebibytes=200) as disk:
        strike = Once(run, data_folder, step=22, act=lambda _: fill(disk, leave=0))

        paused = run_attempt(run, act=strike)

        assert paused.state == RunState.PAUSED, paused.fail_reason
        assert re.search(r"\b[\d.]+ [KM]?i?B free", paused.pause_reason)
        assert newest_step(files.checkpoints) == 20

        make_room(disk)
        assert resume_run(run=paused, user=alice)
        ended = run_attempt(run)

    assert ended.state == RunState.FINISHED
    assert_whole(ended, undisturbed, num_steps=NUM_STEPS)


def test_a_run_without_space_for_judge_replies_pauses(trainers, tiny_model, tmp_path):
    with judge_server() as judging, small_disk(tmp_path, mebibytes=200) as disk:
        env = {"COHORT_JUDGE_HOSTS": judging.url.split("/")[2]}
        reward = judged_by(judging, timeout_seconds=60)
        tree = config_tree(tiny_model, num_steps=4) | {"reward": reward}
        write_run(disk, tree)

        def reply(_: object) -> str:
            if len(judging.asked) == 25:
                fill(disk, leave=0)
            return "It is right. " * 300 + "7"

        judging.reply = reply
        status = trainers.run(disk, env=env)

        assert status == 4, (disk / "trainer.log").read_text()
        make_room(disk)
        status = trainers.run(disk, "--resume", env=env)
        assert status == 0, (disk / "trainer.log").read_text()


def test_an_attempt_without_space_for_its_folder_pauses(
    launch_tiny, data_folder, alice
):
    def pause_behind(step: int) -> Once:
        return Once(
            run,
            data_folder,
            step=step,
            act=lambda _: request_pause(run=run, user=alice),
        )

    run = launch_tiny(num_steps=10_000)  # it can't end before it hears of the pause
    files = run_directory(run.id)
    with small_disk(files.path, mebibytes=200, inodes=500) as disk:
        paused = run_attempt(run, act=pause_behind(5))
        assert paused.state == RunState.PAUSED, paused.fail_reason
        reached = paused.last_step
        crowd(disk)
        assert resume_run(run=paused, user=alice)

        paused = run_attempt(run)

        assert paused.state == RunState.PAUSED, paused.fail_reason
        assert (paused.num_losses, paused.last_step) == (0, reached)
        make_room(disk)
        assert resume_run(run=paused, user=alice)
        paused = run_attempt(run, act=pause_behind(reached + 1))
        assert paused.state == RunState.PAUSED, paused.fail_reason
        assert paused.last_step > reached


def test_a_disk_that_fills_up_in_a_save_leaves_no_partial_checkpoint(
    trainers, tiny_model, tmp_path
):
    tree = config_tree(tiny_model, num_steps=5) | {"checkpoint": {"every_steps": 2}}
    with small_disk(tmp_path / "run", mebibytes=200) as disk:
        write_run(disk, tree)
        mishap = ["the_disk_fills_up_in_a_save", 4, str(disk)]

        status = trainers.run(disk, mishap=mishap)

        out = disk / "out"
        assert status == 4, (disk / "trainer.log").read_text()
        assert [path.name for path in (out / "checkpoints").iterdir()] == [
            "step-000002-attempt-1"
        ]
        assert newest_step(out / "checkpoints") == 2
        paused = read_log(out / "events.jsonl")[-1]
        assert (paused["type"], paused["step"]) == ("run_paused", 4)
        assert paused["checkpoint"] == "step-000002-attempt-1"

        make_room(disk)
        assert trainers.run(disk, "--resume") == 0, (disk / "trainer.log").read_text()
        assert newest_step(out / "checkpoints") == 5


def test_a_run_that_cannot_start_on_a_full_disk_pauses(launch_tiny, alice):
    run = launch_tiny(num_steps=2)
    files = run_directory(run.id)
    with small_disk(files.path, mebibytes=100) as disk:
        fill(disk, leave=0)

        paused = run_attempt(run)

        assert paused.state == RunState.PAUSED, paused.fail_reason

        make_room(disk)
        assert resume_run(run=paused, user=alice)
        assert run_attempt(run).state == RunState.FINISHED
