"""Files of other trainers become a run while they are written.

`recorded/` has folders that the trainers' own writers made; see its scripts.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from cohort import follow as following
from cohort.__main__ import main
from cohort.follow import Follower, MetricLines, find_format, follow
from cohort.formats import files
from cohort.http import Server
from cohort.lines import number_line
from cohort.reporter import Reporter
from cohort.spool import Spool
from tests.client.server import FakeServer
from tests.environment import child_environment
from trainer.events import (
    GroupScored,
    RunFinished,
    StepFinished,
    Warned,
    parse_event,
)

RECORDED = Path(__file__).parent / "recorded"


def dump(folder: Path, step: int, *, score: float = 1.0) -> None:
    """As verl's `_dump_generations`; after batch balancing, groups are interleaved."""
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


def nemo_rl(folder: Path) -> None:
    """As NeMo-RL's GRPO (commit 7ea279ab) logs two steps, a batch of one a line."""
    folder.mkdir()
    samples = [
        (["Guess.\n", "5?", "lower", "3"], [0, 0, 1, 1, 0, 1, 0, 0], 6, 1.0),
        (["Guess.\n", "7"], [0, 0, 1, 0, 0, 0, 0, 0], 3, 0.0),
    ]
    for step in (1, 2):
        lines = [
            {
                "content": [texts],
                "rewards": [0.25],
                "filtered_rewards": [reward],
                "input_lengths": [length],
                "token_ids": [[9] * 8],
                "token_loss_mask": [mask],
                "sample_loss_mask": [1.0],
                "advantages": [[reward - 0.5] * 8],
                "generation_logprobs": [[-0.1] * 8],
                "prev_logprobs": [[-0.1] * 8],
                "idx": idx,
            }
            for idx, (texts, mask, length, reward) in enumerate(samples)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"train_data_step{step}.jsonl").write_text(text)
    (folder / "val_data_step2.jsonl").write_text(text)


def verl(folder: Path) -> None:
    for step in (1, 2, 3):
        dump(folder, step)


def folder_of(kind: str, tmp_path: Path) -> Path:
    folder = tmp_path / kind
    if (RECORDED / kind).exists():
        shutil.copytree(RECORDED / kind, folder)
    else:
        {"nemo-rl": nemo_rl, "verl": verl}[kind](folder)
    return folder


def steps_of(fake: FakeServer) -> dict[int, dict[str, float | None]]:
    return {e.step: e.metrics for e in fake.events if isinstance(e, StepFinished)}


def groups_of(fake: FakeServer, step: int) -> list[GroupScored]:
    return [e for e in fake.events if isinstance(e, GroupScored) and e.step == step]


class Script:
    """An event that does the next thing before each poll, and is set after the last."""

    def __init__(self, *acts: Callable[[], None]) -> None:
        self._acts = list(acts)

    def wait(self, timeout: float) -> bool:
        if self._acts:
            self._acts.pop(0)()
        return not self._acts


def nothing() -> None:
    pass


@pytest.fixture
def login(server, monkeypatch):
    monkeypatch.setenv("COHORT_URL", server.url)
    monkeypatch.setenv("COHORT_TOKEN", server.token)


def follow_at_once(folder: Path, **options: Any) -> None:
    follow(folder, end=Script(nothing), **options)  # type: ignore[arg-type]


def follower_of(folder: Path, reporter: Reporter, **options: Any) -> Follower:
    source = find_format(folder)
    assert source
    return Follower(source, reporter, metrics=MetricLines(source), **options)


def test_verls_rows_become_groups_by_prompt_and_answer(fake, login, tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    data = {"actor/grad_norm": 0.5, "critic/score/mean": 0.5, "training/epoch": 0}
    metrics.write_text(json.dumps({"step": 1, "data": data}) + "\n" + '{"step": 2')

    follow_at_once(folder_of("verl", tmp_path), metrics=metrics)

    steps = steps_of(fake)
    assert fake.openings[0]["tool"] == "verl"
    assert sorted(steps) == [1, 2, 3]
    assert steps[1]["grad_norm"] == 0.5
    groups = groups_of(fake, 1)
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


def turns(completion: Any) -> list[tuple[str, str, str]]:
    return [
        (turn.author, turn.name, completion.text[turn.start : turn.end])
        for turn in completion.turns
    ]


def test_results_of_tools_become_turns_that_are_guessed(fake, login, tmp_path):
    outputs = [EPISODE, "user\n<tool_response>\nnever closed"]
    lines = [{"input": "5 + 7", "output": text, "score": 1.0} for text in outputs]
    folder = tmp_path / "rollouts"
    folder.mkdir()
    (folder / "1.jsonl").write_text("".join(json.dumps(li) + "\n" for li in lines))

    follow_at_once(folder)

    (group,) = groups_of(fake, 1)
    episode, single = group.completions
    assert episode.text == EPISODE
    assert turns(episode) == [
        ("policy", "", "Let me add.\n<tool_call>\n{}\n</tool_call>"),
        ("tool", "tool (guessed)", "12"),
        ("tool", "tool (guessed)", "13"),
        ("policy", "", "It is 12."),
    ]
    assert single.turns == []


def test_prime_rls_longest_branch_is_the_completion(fake, login, tmp_path):
    follow_at_once(folder_of("prime-rl", tmp_path))

    (opening,) = fake.openings
    assert (opening["tool"], opening["num_steps"]) == ("prime-rl", 2)
    assert opening["model"] == "Qwen/Qwen3-0.6B"
    assert opening["settings"]["trainer.optim.lr"] == 1e-6
    assert "hub_token" not in opening["settings"]
    assert opening["rules"] == {"other_branches": 0.0}
    three, five = groups_of(fake, 1)
    assert (three.prompt, three.answer) == ("system: Use tools.\n\nuser: 3 + 1", "4")
    right, wrong = three.completions
    assert turns(right)[0][2].startswith("<think>\nHm.\n</think>")
    assert turns(right)[1:] == [("tool", "add", "4"), ("policy", "", "It is 4.")]
    assert [call.result for call in right.turns[1].calls] == ["4"]
    assert (right.reward, right.num_tokens, right.advantage) == (1.25, 11, 0.5)
    assert (right.end_reason, wrong.end_reason) == ("stop", "length")
    # The judge is not trained.
    (branched,) = five.completions
    assert branched.rules == {"correct": 1.0, "calls": 0.25, "other_branches": 1.0}
    steps = steps_of(fake)
    assert (steps[2]["grad_norm"], steps[2]["lr"]) == (1.0, 1e-6)
    assert steps[2]["episode/num_tool_calls"] == 1.0


def test_nemo_rls_messages_are_turns_by_the_loss_mask(fake, login, tmp_path):
    follow_at_once(folder_of("nemo-rl", tmp_path))

    assert fake.openings[0]["tool"] == "NeMo-RL"
    assert sorted(steps_of(fake)) == [1, 2]
    (group,) = groups_of(fake, 1)
    episode, single = group.completions
    assert group.prompt == "Guess.\n"
    assert [turn[::2] for turn in turns(episode)] == [
        ("policy", "5?"),
        ("environment", "lower"),
        ("policy", "3"),
    ]
    assert (episode.num_tokens, episode.reward, episode.advantage) == (3, 1.0, 0.5)
    assert (single.text, single.turns, single.num_tokens) == ("7", [], 1)


def test_a_table_of_ms_swift_counts_once_for_its_generation(fake, login, tmp_path):
    follow_at_once(folder_of("ms-swift", tmp_path))

    (opening,) = fake.openings
    assert (opening["tool"], opening["model"]) == ("ms-swift", "Qwen/Qwen3-0.6B")
    assert "hub_token" not in opening["settings"]
    steps = steps_of(fake)
    assert [len(groups_of(fake, step)) for step in (1, 2, 3)] == [2, 0, 2]
    assert [steps[step]["loss"] for step in (1, 2, 3)] == [0.125, 0.25, 0.375]
    right, wrong = groups_of(fake, 3)[0].completions
    assert (right.text, right.reward, right.advantage) == ("2.0", 1.5, 0.7)
    assert (wrong.rules, wrong.reward) == ({"Accuracy": 0.0, "Format": 1.0}, 0.5)
    assert groups_of(fake, 3)[1].completions[1].reward == 0.0  # Format is NaN


@pytest.mark.parametrize("step", [{"gen_step": 0}, {"gen_step": [0]}])
def test_megatrons_steps_of_ms_swift_count_from_zero(step, fake, login, tmp_path):
    row = {"prompt": "p", "completion": "a", "reward": 0.5}
    if isinstance(step["gen_step"], list):
        row = {name: [value] for name, value in row.items()}
    (tmp_path / "completions.jsonl").write_text(2 * (json.dumps(row | step) + "\n"))

    follow_at_once(tmp_path)

    (group,) = groups_of(fake, 1)
    # With Ray, a line is a completion; a table that repeats counts once.
    assert len(group.completions) == (1 if isinstance(step["gen_step"], list) else 2)
    assert group.reward_mean == 0.5


def test_tinkers_lengths_have_the_texts_that_are_logged(fake, login, tmp_path):
    follow_at_once(folder_of("tinker", tmp_path))

    (opening,) = fake.openings
    assert (opening["tool"], opening["model"]) == ("Tinker cookbook", "Qwen/Qwen3-8B")
    assert "num_groups_to_log" in opening["notes"]
    logged, unlogged = groups_of(fake, 1)
    assert logged.prompt == "2 + 1 ="
    by_reward = {c.reward: c for c in logged.completions}
    assert by_reward[1.0].text == "3"
    assert all(c.num_tokens for c in (*logged.completions, *unlogged.completions))
    assert {c.text for c in unlogged.completions} == {""}
    assert "group 1" in unlogged.prompt
    assert set(by_reward[1.0].rules) == {"format", "correct"}
    assert steps_of(fake)[2]["lr"] == 4e-5


def slices_of(recorded: Path, target: Path, rng: random.Random) -> Iterator[None]:
    """Write a folder's files step by step, each in slices of random size."""
    paths = sorted(path for path in recorded.rglob("*") if path.is_file())
    logs = [path for path in paths if path.name in ("metrics.jsonl", "logging.jsonl")]
    others = [path for path in paths if path not in logs]
    for path in (*others, *logs):
        copy = target / path.relative_to(recorded)
        copy.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        while data:
            size = rng.randrange(1, len(data) + 1)
            with copy.open("ab") as file:
                file.write(data[:size])
            data = data[size:]
            yield


def kill(spool: Spool, rng: random.Random) -> None:
    """Cut the last attempt's file as a process does that is killed while it writes."""
    path = spool.events_path(len(spool.state().attempts))
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size + 1))


def remaining_events(spool: Spool) -> list[dict[str, Any]]:
    """Return what the server keeps: a later attempt replaces steps after its first."""
    kept: list[dict[str, Any]] = []
    for index, attempt in enumerate(spool.state().attempts, start=1):
        kept = [event for event in kept if event["step"] <= attempt.from_step]
        for line in spool.events_path(index).read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                parse_event(number_line(line, number=1, attempt=1))
                kept.append({**json.loads(line), "time": 0})
    return [event for event in kept if event["type"] != "run_stopped"]


@pytest.mark.parametrize("kind", ["verl", "prime-rl", "nemo-rl", "ms-swift", "tinker"])
def test_slices_and_kills_give_the_same_events_once(kind, tmp_path):
    recorded = folder_of(kind, tmp_path)
    with Reporter("whole", folder=tmp_path / "whole") as reporter:
        follower_of(recorded, reporter).poll(is_over=True)
    expected = remaining_events(Spool(tmp_path / "whole"))
    for seed in range(6):
        rng = random.Random(seed)
        target, spool = tmp_path / f"{kind}-{seed}", Spool(tmp_path / f"run-{seed}")
        target.mkdir()
        follower = None
        for _ in slices_of(recorded, target, rng):
            if follower is None and find_format(target):
                reporter = Reporter("cut", folder=spool.folder, from_step=0)
                follower = follower_of(target, reporter, settle_seconds=3_600)
            if follower is None:
                continue
            follower.poll()
            if rng.random() < 0.2:
                reporter.close()
                kill(spool, rng)
                last_step = following._last_step(spool)
                reporter = Reporter("cut", folder=spool.folder, from_step=last_step)
                follower = follower_of(
                    target, reporter, settle_seconds=3_600, last_step=last_step
                )
        assert follower
        follower.poll(is_over=True)
        reporter.finish()
        reporter.close()

        assert remaining_events(spool) == expected


def test_a_step_waits_for_a_late_file_before_it(tmp_path):
    for step in (1, 3, 4):
        dump(tmp_path, step)
    with Reporter("run", folder=tmp_path / "cohort") as reporter:
        follower = follower_of(tmp_path, reporter, settle_seconds=3_600)
        counts = [follower.poll(), follower.poll(), follower.poll()]
        dump(tmp_path, 2)
        counts += [follower.poll(), follower.poll(), follower.poll(is_over=True)]

    # Step 1 is next and a later one has begun. Step 4 is the last one.
    assert counts == [0, 1, 0, 0, 2, 1]


@pytest.mark.parametrize("settle_seconds", [0, 3_600])
def test_a_half_written_file_waits(settle_seconds, tmp_path):
    dump(tmp_path, 1)
    whole = (tmp_path / "1.jsonl").read_bytes()
    (tmp_path / "1.jsonl").write_bytes(whole + whole[:9])
    with Reporter("run", folder=tmp_path / "cohort") as reporter:
        source = find_format(tmp_path)
        follower = Follower(
            source,
            reporter,
            metrics=MetricLines(source),
            settle_seconds=settle_seconds,
        )
        counts = [follower.poll(), follower.poll()]
        dump(tmp_path, 2)
        counts += [follower.poll(), follower.poll()]

    # It is left half, if the trainer goes on and it settles.
    assert counts == [0, 0, 0 if settle_seconds else 1, 0 if settle_seconds else 1]


def test_a_step_that_settles_is_reported_behind_a_gap(tmp_path):
    dump(tmp_path, 5)
    with Reporter("run", folder=tmp_path / "cohort") as reporter:
        follower = follower_of(tmp_path, reporter, settle_seconds=0)

        assert [follower.poll(), follower.poll()] == [0, 1]


def test_a_step_waits_for_its_metrics_until_two_later_ones(tmp_path):
    metrics = tmp_path / "metrics"
    metrics.write_text('{"step": 9, "data": {"lr": 1}}\n')
    for step in (1, 2):
        dump(tmp_path, step)
    with Reporter("run", folder=tmp_path / "cohort") as reporter:
        source = find_format(tmp_path)
        lines = MetricLines(source, metrics)
        follower = Follower(source, reporter, metrics=lines, settle_seconds=0)
        counts = [follower.poll(), follower.poll()]
        dump(tmp_path, 3)
        counts += [follower.poll(), follower.poll()]
        metrics.write_text(metrics.read_text() + '{"step": 2, "data": {"lr": 1}}\n')
        counts.append(follower.poll())

    assert counts == [0, 0, 1, 0, 1]


def test_steps_that_a_restarted_trainer_repeats_replace_the_earlier_ones(
    fake, login, tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "MAX_LOOKED_AT", 2)  # steps 2 and 3, then 1
    folder = tmp_path / "run"
    for step in (1, 2, 3):
        dump(folder, step)

    follow(
        folder,
        settle_seconds=0,
        end=Script(  # type: ignore[arg-type]
            nothing, nothing, lambda: dump(folder, 2, score=0.5), nothing, nothing
        ),
    )

    assert fake.from_steps == [0, 1]
    # Step 3 of before the restart is not reported again.
    first, second = (
        [e.step for e in events if isinstance(e, StepFinished)]
        for events in fake.attempts
    )
    assert (first, second) == ([1, 2, 3], [2])
    assert following._last_step(Spool(folder / "cohort")) == 2
    assert groups_of(fake, 2)[-1].completions[0].reward == 0.5
    assert isinstance(fake.events[-1], RunFinished)


def test_prime_rl_appends_to_the_steps_that_it_repeats(fake, login, tmp_path):
    folder = folder_of("prime-rl", tmp_path)
    path = folder / "rollouts/step_2/train/effective/traces.jsonl"
    first = path.read_bytes()

    def repeat() -> None:
        path.write_bytes(first + first.replace(b"It is 4.", b"It is 44."))

    follow(
        folder,
        settle_seconds=0,
        end=Script(nothing, nothing, repeat, nothing, nothing),  # type: ignore[arg-type]
    )

    assert fake.from_steps == [0, 1]
    (earlier,), (later,) = (group.completions for group in groups_of(fake, 2))
    assert (earlier.text[-8:], later.text[-9:]) == ("It is 4.", "It is 44.")


def test_bad_lines_are_counted_and_warned_of_once(fake, login, tmp_path, caplog):
    dump(tmp_path, 1)
    dump(tmp_path, 2)
    for step in (1, 2):
        with (tmp_path / f"{step}.jsonl").open("a") as file:
            file.write('no JSON\n[]\n{"input": 7, "output": "a"}\n{"input": "half')

    follow_at_once(tmp_path)

    warnings = [e for e in fake.events if isinstance(e, Warned)]
    assert [warning.code for warning in warnings] == ["bad_line"]
    assert "line 5 of 1.jsonl" in warnings[0].message
    assert "8 lines" in caplog.text
    assert len(groups_of(fake, 2)) == 2


def test_what_is_no_file_is_no_step(fake, login, tmp_path):
    dump(tmp_path, 1)
    (tmp_path / "2.jsonl").mkdir()
    (tmp_path / "3.jsonl").symlink_to("3.jsonl")
    (tmp_path / "4.jsonl").symlink_to("nowhere")
    os.mkfifo(tmp_path / "5.jsonl")

    follow_at_once(tmp_path)

    assert sorted(steps_of(fake)) == [1]
    assert isinstance(fake.events[-1], RunFinished)


def test_a_value_of_a_bad_line_is_shortened_in_its_warning(fake, login, tmp_path):
    folder = folder_of("prime-rl", tmp_path)
    path = folder / "rollouts/step_2/train/effective/traces.jsonl"
    episode = json.loads(path.read_text().splitlines()[0])
    episode["traces"][0]["nodes"][-1]["logprobs"] = ["x" * 9_999]
    path.write_text(json.dumps(episode) + "\n")

    follow_at_once(folder)

    (warning,) = (e for e in fake.events if isinstance(e, Warned))
    assert len(warning.message) < 500


def test_metrics_are_read_again_from_a_file_that_is_truncated(tmp_path):
    dump(tmp_path, 1)
    metrics = tmp_path / "metrics"
    line = '{"step": %d, "data": {"lr": %d}}\n'
    metrics.write_text(line % (1, 1) + line % (2, 1))
    source = find_format(tmp_path)
    assert source
    lines = MetricLines(source, metrics)
    lines.read()

    metrics.write_text(line % (2, 5))
    lines.read()

    assert lines.of(2) == {"lr": 5}


def test_a_truncated_file_of_ms_swift_is_read_again(tmp_path):
    row = '{"step": [%d], "prompt": ["p"], "completion": ["%s"]}\n'
    path = tmp_path / "completions.jsonl"
    path.write_text(row % (1, "a") + row % (2, "b"))
    source = find_format(tmp_path)
    assert source
    assert sorted(source.parts(0)) == [1, 2]

    path.write_text(row % (1, "c"))

    assert {step: part.end for step, part in source.parts(2).items()} == {
        1: path.stat().st_size
    }


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("global_step_1_training_input.pkl", "cohort.skyrl"),
        ("0.pt", "cohort.slime"),
        ("rollouts.pkl", "cohort.reporter"),
    ],
)
def test_pickles_are_refused_with_the_hook_to_use(name, hook, tmp_path):
    (tmp_path / name).write_bytes(b"\x80\x04.")

    with pytest.raises(ValueError, match=hook):
        follow_at_once(tmp_path)


def test_a_folder_of_no_known_format_is_described(tmp_path, capsys):
    (tmp_path / "1.jsonl").write_text('{"question": "?"}\n')
    (tmp_path / "a\nb").touch()

    with pytest.raises(ValueError, match=r"prime-rl.*it has 1\.jsonl, a b"):
        follow_at_once(tmp_path)

    # As told, it is read, and every line is bad.
    follow_at_once(tmp_path, form="verl")
    assert following._last_step(Spool(tmp_path / "cohort")) == 1


def test_the_former_command_follows_verl_alone(monkeypatch):
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(following, "follow", lambda _, **to: calls.append(to))
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    main(["verl", "folder"])
    main(["follow", "folder", "--format", "tinker", "--settle", "3"])
    main(["follow", "folder"])

    assert [call["form"] for call in calls] == ["verl", "tinker", ""]
    assert [call["settle_seconds"] for call in calls] == [10.0, 3.0, 10.0]


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
    assert isinstance(fake.events[-1], RunFinished)


def test_a_folder_followed_before_keeps_the_name_of_its_run(fake, login, tmp_path):
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
    command = [sys.executable, "-m", "cohort", "follow", str(folder), "--settle", "0"]
    with subprocess.Popen(command, env=environment) as child:
        end = monotonic() + 30
        while not is_done() and monotonic() < end:
            sleep(0.02)
        child.send_signal(signal.SIGTERM)
    assert child.returncode == 0
    assert is_done()
