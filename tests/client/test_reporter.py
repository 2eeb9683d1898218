"""A reporter sends every event once, in order, and never disturbs its trainer."""

import json
import logging
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cohort.delivery import Delivery
from cohort.http import Server, Unreachable
from cohort.mismatch import GapMeasure, measure_gaps
from cohort.reporter import Completion, Reporter, Turn
from cohort.spool import Spool
from tests.client.server import FakeServer, serve
from tests.environment import child_environment
from trainer.events import (
    CallRecord,
    GroupScored,
    MismatchMeasured,
    RunFailed,
    StepFinished,
    Warned,
)

ROOT = Path(__file__).parents[2]
UNREACHABLE = Server("http://127.0.0.1:9", "secret")


def report(reporter: Reporter, *steps: int) -> None:
    for step in steps:
        for prompt in ("1 + 1 =", "2 + 2 ="):
            completions = [
                Completion(
                    text="yes", reward=1.0, rules={"answer": 1.0}, advantage=0.7
                ),
                Completion(
                    text="no", reward=0.0, rules={"answer": 0.0}, advantage=-0.7
                ),
            ]
            reporter.group(step, prompt, completions, answer="2")
        reporter.step(step, {"loss": 0.1 * step, "lr": 1e-6, "kl": float("nan")})


def kinds(fake: FakeServer) -> list[str]:
    return [event.type for event in fake.events]  # type: ignore[attr-defined]


def test_a_run_is_reported_from_its_opening_to_its_end(fake, server, tmp_path):
    options: dict[str, Any] = {"num_steps": 2, "settings": {"lr": 1e-6, "path": ROOT}}
    with Reporter("mine", server=server, folder=tmp_path / "run", **options) as cohort:
        report(cohort, 1, 2)

    opening = fake.openings[0]
    assert (opening["name"], opening["num_steps"]) == ("mine", 2)
    assert opening["settings"] == {"lr": 1e-6, "path": str(ROOT)}
    assert kinds(fake) == [
        *["group_scored", "group_scored", "step_finished"] * 2,
        "run_finished",
    ]
    group, step = fake.events[0], fake.events[2]
    assert isinstance(group, GroupScored)
    assert isinstance(step, StepFinished)
    assert (group.prompt_index, group.answer, group.signal) == (0, "2", "mixed")
    assert group.reward_std == pytest.approx(math.sqrt(0.5))
    assert step.metrics["reward/mean"] == 0.5
    assert step.metrics["reward/answer/mean"] == 0.5
    assert step.metrics["loss"] == 0.1
    assert step.metrics["kl/mean"] is None
    assert cohort.address == "http://here/alpha/runs/7/"
    assert fake.tokens == {"Bearer secret"}


def log_probs(rows, *, seed=0):
    rng = np.random.default_rng(seed)
    sampling = np.log(rng.uniform(0.1, 1.0, (rows, 5)))
    mask = np.arange(5) < rng.integers(1, 6, (rows, 1))
    return sampling + rng.normal(0.0, 0.1, sampling.shape), sampling, mask


def test_the_parts_of_a_steps_gap_are_one_event(fake, server, tmp_path):
    first, second = log_probs(3), log_probs(1, seed=1)
    advantages = torch.tensor([1.0, 2.0, -3.0], dtype=torch.bfloat16)
    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        tensors = map(torch.from_numpy, first)
        cohort.log_mismatch(
            5, *tensors, advantages=advantages, age=2, dtype=torch.bfloat16
        )
        cohort.log_mismatch(5, *second)
        cohort.step(5)

    event = fake.events[0]
    expected = GapMeasure.joined(
        [measure_gaps(*first, [1.0, 2.0, -3.0]), measure_gaps(*second)]
    )
    assert isinstance(event, MismatchMeasured)
    assert event.step == 5
    assert (event.age, event.against, event.incomparable) == (2, "old", None)
    assert event.dtype == "bfloat16"
    assert event.prompts == event.sizes == []
    assert event.advantages == [1.0, 2.0, -3.0, None]
    assert event.sums.num_tokens == expected.sums[:, 0].tolist()
    assert event.sums.sum == pytest.approx(expected.sums[:, 1], rel=1e-3)
    assert event.gaps == expected.gaps.tolist()
    assert event.differences == expected.differences.tolist()


def test_a_gap_is_reported_with_its_step(fake, server, tmp_path):
    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        cohort.log_mismatch(2, *log_probs(3), incomparable="restricted")
        report(cohort, 1, 2, 3)

    (event,) = [e for e in fake.events if isinstance(e, MismatchMeasured)]
    assert (event.step, len(event.sums.sum)) == (2, 3)
    assert event.advantages == [None] * 3
    assert event.incomparable == "restricted"
    assert np.sum(event.differences) == 0 < np.sum(event.gaps)


def test_log_probs_that_do_not_fit_are_dropped_without_the_step(
    fake, server, tmp_path, caplog
):
    logprobs, sampling, mask = log_probs(3)
    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        cohort.log_mismatch(1, logprobs, sampling[:2], mask)
        cohort.log_mismatch(1, "none", None, object())
        report(cohort, 1)

    assert [kind for kind in kinds(fake) if kind == "mismatch_measured"] == []
    assert "step_finished" in kinds(fake)
    assert caplog.text.count("Dropped an invalid mismatch") == 2


def test_a_prompt_repeated_within_a_step_is_one_group(fake, server, tmp_path):
    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        cohort.group(1, "same", [Completion(text="a", reward=1.0)])
        cohort.group(1, "same", [Completion(text="b", reward=0.0)])
        cohort.step(1)

    group = fake.events[0]
    assert isinstance(group, GroupScored)
    assert [one.text for one in group.completions] == ["a", "b"]
    assert kinds(fake).count("group_scored") == 1


def test_metrics_of_groups_override_logged_metrics(fake, server, tmp_path):
    texts = [Completion(text=str(n), reward=n / 10, num_tokens=n) for n in range(11)]
    logged = {"reward": 9.0, "completions/max_length": 9.0, "kl": 0.5}
    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        cohort.group(1, "one", texts)
        cohort.step(1, logged)
        cohort.group(2, "one", [Completion(text="unscored")])
        cohort.step(2, logged)

    first, second = (e.metrics for e in fake.events if isinstance(e, StepFinished))
    assert first["reward/mean"] == pytest.approx(0.5)
    assert first["reward/p10"] == pytest.approx(0.1)  # as NumPy interpolates
    assert first["reward/p90"] == pytest.approx(0.9)
    assert first["completion/max_length"] == 10
    assert first["kl/mean"] == 0.5
    assert second["reward/mean"] == 9.0  # its group has none


def test_unsent_events_are_kept_and_sent_later(fake, server, tmp_path):
    cohort = Reporter("mine", server=UNREACHABLE, folder=tmp_path / "run")
    report(cohort, 1, 2)
    cohort.finish()
    cohort.close(timeout_seconds=0.5)

    assert Delivery(Spool(tmp_path / "run"), server).deliver()

    assert kinds(fake).count("step_finished") == 2
    assert kinds(fake)[-1] == "run_finished"
    assert Delivery(Spool(tmp_path / "run"), server).deliver()  # nothing new
    assert kinds(fake).count("step_finished") == 2


@pytest.mark.parametrize("statuses", [[500], [503, 429, 502]])
def test_server_errors_are_retried(fake, server, tmp_path, statuses):
    fake.fail_next = statuses

    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        report(cohort, 1)

    assert kinds(fake)[-1] == "run_finished"


def test_a_lost_response_makes_no_duplicate(fake, server, tmp_path):
    fake.num_to_lose = 1

    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        report(cohort, 1)

    assert kinds(fake) == [
        "group_scored",
        "group_scored",
        "step_finished",
        "run_finished",
    ]


def test_a_restart_continues_in_the_same_folder(fake, server, tmp_path):
    cohort = Reporter("mine", server=UNREACHABLE, folder=tmp_path / "run")
    report(cohort, 1, 2)
    cohort.close(timeout_seconds=0.5)
    with (tmp_path / "run" / "life-1.jsonl").open("ab") as file:
        file.write(b'{"type": "step_fin')  # killed in the middle of a line

    options: dict[str, Any] = {"folder": tmp_path / "run", "from_step": 1}
    with Reporter("mine", server=server, **options) as cohort:
        report(cohort, 2, 3)

    assert len(fake.openings) == 1
    assert fake.from_steps == [0, 1]
    first, second = fake.attempts
    assert [e.step for e in first] == [1, 1, 1, 2, 2, 2]
    assert [e.step for e in second] == [2, 2, 2, 3, 3, 3, 3]
    groups = [e for e in fake.events if isinstance(e, GroupScored)]
    assert [g.prompt_index for g in groups] == [0, 1] * 4  # the same numbers


def test_a_replaced_reporter_stops_sending(fake, server, tmp_path, caplog):
    cohort = Reporter("mine", server=server, folder=tmp_path / "run")
    report(cohort, 1)
    cohort.close()
    fake.attempts.append([])

    with caplog.at_level(logging.WARNING, "cohort"):
        delivery = Delivery(Spool(tmp_path / "run"), server)
        delivery.deliver()

    assert "attempt" in delivery.over
    assert fake.attempts[1] == []


def test_a_refused_token_does_not_stop_the_training(fake, server, tmp_path, caplog):
    fake.fail_next = [401] * 100

    with (
        caplog.at_level(logging.WARNING, "cohort"),
        Reporter("mine", server=server, folder=tmp_path / "run") as cohort,
    ):
        report(cohort, 1)

    assert "Not now. (HTTP 401)" in caplog.text
    assert "cohort sync" in caplog.text
    assert (tmp_path / "run" / "life-1.jsonl").read_bytes().count(b"\n") == 4


def test_a_line_that_a_proxy_refuses_becomes_a_warning(fake, server, tmp_path):
    fake.largest_body = 3_000

    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        text = "".join(map(chr, range(100, 20_000)))  # hardly compressible
        cohort.group(1, "long", [Completion(text=text, reward=1.0)])
        cohort.step(1, {"loss": 1.0})

    warned, step = fake.events[0], fake.events[1]
    assert isinstance(warned, Warned)
    assert warned.code == "line_too_long"
    assert isinstance(step, StepFinished)


def test_without_a_login_the_events_are_kept(tmp_path, caplog):
    with (
        caplog.at_level(logging.WARNING, "cohort"),
        Reporter("mine", folder=tmp_path / "run") as cohort,
    ):
        report(cohort, 1)

    assert "cohort login" in caplog.text
    assert (tmp_path / "run" / "life-1.jsonl").read_bytes().count(b"\n") == 4


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.step("three", {"loss": 1.0}),
        lambda r: r.step(1, {"loss": object()}),
        lambda r: r.group(1, None, [Completion(text="a")]),
        lambda r: r.group(1, "p", [object()]),
        lambda r: r.group(1, "p", None),
        lambda r: r.step(1, 0.5),
        lambda r: [
            r.group(1, "p", [Completion(text="a", reward=1e308)] * 2),
            r.step(1),  # whose sum is infinite
        ],
        lambda r: r.evaluated(1, "set", None),
        lambda r: r.evaluated(1, "set", {"mean": "high"}),
    ],
)
def test_an_invalid_report_does_not_raise(fake, server, tmp_path, call):
    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        call(cohort)
        report(cohort, 2)

    steps = [e.step for e in fake.events if isinstance(e, StepFinished)]
    assert 2 in steps
    assert kinds(fake)[-1] == "run_finished"


def test_a_folder_that_cannot_be_written_does_not_stop_the_training(tmp_path, caplog):
    (tmp_path / "file").write_text("")

    with Reporter("mine", folder=tmp_path / "file" / "run") as cohort:
        report(cohort, 1)

    assert [one.levelname for one in caplog.records] == ["ERROR"]


def test_the_trainer_does_not_wait_for_a_stalled_disk(
    fake, server, tmp_path, monkeypatch
):
    from cohort import reporter as module

    recovers = threading.Event()
    monkeypatch.setattr(module, "MAX_QUEUED", 4)
    monkeypatch.setattr(
        module.Writer, "write", lambda self, item: recovers.wait(60) and None
    )
    cohort = Reporter("mine", server=server, folder=tmp_path / "run")

    for step in range(100):
        cohort.step(step)  # a call that waited would hang here

    assert cohort.num_dropped >= 95
    recovers.set()
    cohort.close()


def test_an_exception_of_the_trainer_fails_the_run(fake, server, tmp_path):
    def train() -> None:
        with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
            report(cohort, 1)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train()

    last = fake.events[-1]
    assert isinstance(last, RunFailed)
    assert last.error == "RuntimeError: out of memory"
    assert "Traceback" in last.details


@pytest.mark.parametrize(
    ("end", "kind"),
    [("raise ValueError('no')", "run_failed"), ("raise SystemExit(3)", "run_stopped")],
)
def test_a_reporter_that_is_never_closed_ends_its_run_at_exit(
    fake, server, tmp_path, end, kind
):
    program = (
        "from cohort.reporter import Reporter\n"
        "r = Reporter('mine', folder='run'); r.step(1, {'loss': 1.0})\n" + end
    )
    environment = child_environment()
    environment |= {"COHORT_URL": server.url, "COHORT_TOKEN": server.token}

    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False
    )

    assert kinds(fake) == ["step_finished", kind]


def test_a_forked_child_reports_nothing(fake, server, tmp_path):
    cohort = Reporter("mine", server=server, folder=tmp_path / "run")
    cohort._pid = os.getpid() + 1  # as in a forked child

    cohort.step(1)
    cohort.close()
    cohort._pid = os.getpid()
    cohort.close()

    assert kinds(fake) == []


def test_a_token_does_not_follow_a_redirect():
    class Redirects(FakeServer):
        def respond(self, *_: Any) -> tuple[int, Any]:
            return 302, {}

    with serve(Redirects()) as server:
        with pytest.raises(Exception, match="302"):
            server.get("/external-runs/7/events")
        assert "secret" not in repr(server)


def test_a_server_url_is_http():
    with pytest.raises(ValueError, match="http://"):
        Server("file:///etc/passwd", "secret")


def test_a_server_without_a_response_is_unreachable():
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        UNREACHABLE.get("/external-runs/7/events")


def test_it_is_imported_without_the_rest_of_cohort(tmp_path):
    """As where only the client is installed."""
    (tmp_path / "cohort").symlink_to(ROOT / "cohort")
    paths = (ROOT / "cohort").glob("*.py")
    modules = sorted({path.stem for path in paths} - {"mismatch"})  # it needs numpy
    program = (
        "import importlib, json, sys\n"
        f"for name in {[m for m in modules if m != '__init__']!r}:\n"
        "    importlib.import_module('cohort.' + name)\n"
        "imported = {m.partition('.')[0] for m in sys.modules}\n"
        "print(json.dumps(sorted(imported - set(sys.stdlib_module_names))))\n"
    )

    process = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, '.')\n{program}",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(process.stdout) == ["__main__", "cohort"]


def test_a_server_restored_from_a_backup_gets_its_missing_lines_again(
    fake, server, tmp_path
):
    cohort = Reporter("mine", server=server, folder=tmp_path / "run")
    report(cohort, 1, 2)
    cohort.close()
    spool = Spool(tmp_path / "run")
    delivery = Delivery(spool, server)
    delivery.deliver()
    del fake.attempts[0][2:]
    with spool.events_path(1).open("ab") as file:
        file.write(b'{"type":"run_finished","time":1.0,"step":2}\n')

    assert delivery.deliver()

    assert kinds(fake).count("step_finished") == 2
    assert kinds(fake)[-1] == "run_finished"


def test_nothing_is_sent_to_a_closed_run(fake, server, tmp_path):
    cohort = Reporter("mine", server=server, folder=tmp_path / "run")
    report(cohort, 1)
    cohort.close()
    fake.ended = "stopped"
    delivery = Delivery(Spool(tmp_path / "run"), server)
    delivery.deliver()

    delivery.heartbeat()

    assert "stopped" in delivery.over


def test_turns_of_an_episode_are_reported(fake, server, tmp_path):
    call = {"name": "add", "arguments": '{"a": 5}', "error": "No b."}
    turns = [
        Turn(author="policy", text="policy", reward=0.5),
        Turn(author="tool", name="add", text="No b.", seconds=0.25, calls=[call]),
    ]
    rendered = "<say>policy<hear>No b.</hear>"
    placed = [replace(turns[0], start=5), replace(turns[1], start=17)]
    with Reporter("mine", server=server, folder=tmp_path / "run") as cohort:
        cohort.group(
            1,
            "5 + 7",
            [
                Completion(turns=turns, reward=1.0),
                Completion(text=rendered, turns=placed, reward=0.5),
                Completion(text="12", reward=0.0),
            ],
        )
        cohort.step(1)
        cohort.group(2, "5 + 7", [Completion(turns=[Turn(author="me", text="")])])
        cohort.step(2)

    group, step, *others = fake.events
    assert isinstance(group, GroupScored)
    assert isinstance(step, StepFinished)
    made, given, single = group.completions
    assert made.text == "policy: policy\n\nadd: No b."
    assert given.text == rendered
    for completion in (made, given):
        texts = [completion.text[t.start : t.end] for t in completion.turns]
        assert texts == ["policy", "No b."]
        assert [t.reward for t in completion.turns] == [0.5, None]
        assert completion.turns[1].calls == [CallRecord(**call)]
    assert single.turns == []
    assert step.metrics["episode/num_turns"] == 1.0
    assert step.metrics["episode/num_tool_calls"] == pytest.approx(2 / 3)
    assert step.metrics["episode/frac_tool_errors"] == 1.0
    assert [event.type for event in others] == ["step_finished", "run_finished"]
