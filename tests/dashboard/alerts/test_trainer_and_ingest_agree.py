"""A recorded run gives the same alerts in the training loop and at ingest."""

import json
from typing import Any

import pytest

from dashboard.alerts import firing
from dashboard.alerts.models import Alert
from dashboard.runs.models import Run
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import claim_run
from dashboard.supervision.takeover import cut_history
from tests.dashboard.supervision.logs import LogBuilder
from trainer.alerts.evaluator import Recovered, RuleEvaluator
from trainer.alerts.rules import BY_CODE, meaningless_rules
from trainer.config import RunConfig
from trainer.events import Evaluated, PhaseStarted, StepFinished, Warned

pytestmark = pytest.mark.django_db

CALM: dict[str, float | None] = {
    "loss": 0.1,
    "grad_norm": 1.0,
    "kl/mean": 0.01,
    "kl/max": 0.5,
    "kl/p99": 0.02,
    "entropy": 2.0,
    "reward/mean": 0.5,
    "group/frac_zero_std": 0.2,
    "group/frac_unscorable": 0.0,
    "completion/frac_truncated": 0.1,
    "clip/frac": 0.05,
    "mismatch/mean": 0.01,
    "staleness/kl": None,
    "importance/frac_masked": 0.0,
    "tokens_per_second": 1_000.0,
}
EVAL = "eval/heldout/mean"


def steps(count: int, first: int = 1, **changed: float | None) -> list[Any]:
    """Steps whose metrics move a little, but for what is changed (kl_mean: kl/mean)."""
    named = {name.replace("__", "/"): value for name, value in changed.items()}
    return [
        {
            name: None if value is None else value * (1 + 0.01 * (place % 7))
            for name, value in CALM.items()
        }
        | named
        for place in range(first, first + count)
    ]


PHASE, RESUME = "phase", "resume"  # with a name; with the step gone back to
CASES: dict[str, tuple[list[Any], list[tuple[str, int]]]] = {
    "calm": (steps(40), []),
    "entropy collapses and comes back": (
        [*steps(10), *steps(12, entropy=0.15), *steps(10)],
        [("entropy", 15)],
    ),
    "KL jumps": (
        [
            *steps(15),
            *steps(12, kl__mean=3.0, kl__max=40.0, kl__p99=9.0),
            *steps(4),
            *steps(5, kl__p99=5.0),
        ],
        [("kl_max", 18), ("kl_tail", 18), ("kl", 25), ("kl_tail", 34)],
    ),
    "groups die and nothing can be scored": (
        steps(30, group__frac_zero_std=1.0, group__frac_unscorable=0.9,
              reward__mean=0.0),
        [("unscorable", 5), ("no_signal", 20), ("constant_reward", 21)],
    ),
    "spikes": (
        [*steps(12), *steps(1, grad_norm=30.0), *steps(3), *steps(2, grad_norm=40.0),
         *steps(1, loss=None), *steps(3), *steps(1, loss=None)],
        [("grad_norm", 13), ("grad_norm", 17), ("not_finite", 19), ("not_finite", 23)],
    ),
    "the rest": (
        [*steps(5, staleness__kl=0.01), *steps(80, mismatch__mean=0.04),
         *steps(25, clip__frac=0.4, mismatch__mean=0.06, staleness__kl=0.2,
                importance__frac_masked=0.5, completion__frac_truncated=0.8,
                tokens_per_second=100.0)],
        [("clipped", 90), ("mismatch", 90), ("stale", 90), ("importance_masked", 90),
         ("truncated", 95), ("slow", 105)],
    ),
    "episodes fail and wait": (
        [*steps(6, episode__frac_tool_errors=0.04),
         *steps(6, episode__frac_tool_errors=0.09),
         *steps(5, episode__frac_tool_errors=0.12, episode__frac_failed=0.06,
                episode__frac_rewritten=0.06, time__environment_share=0.6),
         *steps(1, episode__frac_failed=0.2, episode__frac_rewritten=0.2)],
        [("episodes_fail", 15), ("environment_wait", 17), ("tool_errors", 17),
         ("episodes_rewritten", 18)],
    ),
    "log-probs differ from the first step": (
        [*steps(2, mismatch__mean=0.12), *steps(6)], [("mismatch_high", 1)]
    ),
    "phases have usual values of their own": (
        [*steps(12), (PHASE, "later"), *steps(12, grad_norm=90.0),
         *steps(1, grad_norm=2_000.0), *steps(3, entropy=0.1), (PHASE, "last"),
         *steps(4, entropy=0.1)],
        [("grad_norm", 25)],
    ),
    "evaluations fall": (
        [
            item
            for place, value in enumerate([0.5, 0.6, 0.5, 0.4, 0.4, 0.7, 0.7])
            for item in [*steps(3, reward__mean=0.1 * place), (EVAL, value)]
        ],
        [("overfits", 12)],
    ),
    "evaluations of a phase stand beside rewards of the previous one": (
        [*steps(12, reward__mean=0.1), (EVAL, 0.6), (EVAL, 0.6),
         *steps(9, reward__mean=0.4), (PHASE, "later"), *steps(1, reward__mean=0.0),
         (EVAL, 0.2), (EVAL, 0.2)],
        [("overfits", 22)],
    ),
    "a resume repeats what it went back before": (
        [*steps(12), *steps(6, entropy=0.1, grad_norm=50.0), (RESUME, 15),
         *steps(8, entropy=0.1, grad_norm=50.0), *steps(9)],
        [("grad_norm", 13), ("entropy", 17)],
    ),
    "a resume in an open alert does not raise it again": (
        [*steps(12), *steps(9, entropy=0.1), (RESUME, 19), *steps(6, entropy=0.1),
         *steps(7), *steps(7, entropy=0.1)],
        [("entropy", 17), ("entropy", 37)],
    ),
    "a resume before an alert takes it back": (
        [*steps(12), *steps(6, entropy=0.1), (RESUME, 14), *steps(9)],
        [],
    ),
    "a resume goes back before a phase": (
        [*steps(9), *steps(6, clip__frac=0.5), (PHASE, "later"), *steps(3),
         (RESUME, 13), *steps(1, clip__frac=0.5, grad_norm=30.0), *steps(1),
         (PHASE, "later"), *steps(9)],
        [("clipped", 14), ("grad_norm", 14)],
    ),
}  # fmt: skip


def of_trainer(course: list[Any], config: RunConfig) -> list[tuple[Any, ...]]:
    """As the training loop judges, with a checkpoint of each step."""
    evaluator, step = RuleEvaluator(BY_CODE), 0
    saved: dict[int, str] = {}
    alerts: list[list[Any]] = []
    for item in course:
        found: list[Any] = []
        match item:
            case ("phase", _):
                evaluator.begin_phase()
            case ("resume", step):
                evaluator = RuleEvaluator(BY_CODE)
                evaluator.load_state_dict(json.loads(saved[step]))
                alerts = [each for each in alerts if each[1] <= step]
                for each in alerts:
                    each[3] = None if (each[3] or 0) > step else each[3]
            case (metric, value):
                found = list(evaluator.evaluation(step, {metric: value}))
            case metrics:
                step += 1
                left_out = meaningless_rules(config.config_at(step))
                found = list(evaluator.step(step, metrics, without=left_out))
        for each in found:
            if isinstance(each, Recovered):
                [open_one] = [a for a in alerts if a[4] == each.key and a[3] is None]
                open_one[3] = each.step
            else:
                alerts.append([each.key[0], each.step, each.bound, None, each.key])
        saved[step] = json.dumps(evaluator.state_dict())
    return sorted(tuple(alert[:4]) for alert in alerts)


def of_ingest(
    course: list[Any], run: Run, *, restarts: bool = False
) -> list[tuple[Any, ...]]:
    """As workers do, in batches: with `restarts` another one after each."""
    claim, log, step = claim_run(run.id, "w"), LogBuilder(), 0
    assert claim is not None
    batch = 7 if restarts else 20
    for place, item in enumerate(course):
        if place % batch == 0:
            ingest(claim, log.events)  # stores only what is new
            if restarts:
                firing._cached.clear()
        match item:
            case ("phase", name):
                fields: dict[str, Any] = {"first_step": step + 1, "last_step": 99}
                log.add(PhaseStarted, step=step + 1, name=name, **fields)
            case ("resume", step):
                ingest(claim, log.events)
                Run.objects.filter(id=run.id).update(state="queued", lease_until=None)
                claim = claim_run(run.id, "w")
                assert claim is not None
                cut_history(claim, after=step, checkpoint=None)
                log = LogBuilder(attempt=claim.attempt)
            case (metric, value):
                sizes = {"num_prompts": 4, "samples_per_prompt": 1}
                values = {metric: value}
                log.add(Evaluated, step=step, name="heldout", metrics=values, **sizes)
            case metrics:
                step += 1
                # The trainer's own warning, which is no second alert.
                log.add(Warned, step=step, code="entropy", message="It falls.")
                log.add(StepFinished, step=step, metrics=metrics)
    ingest(claim, log.events)
    alerts = Alert.objects.filter(run=run).exclude(state="superseded")
    names = ("rule__built_in", "step", "bound", "ended_step")
    return sorted(alerts.values_list(*names), key=lambda one: one[:2])


@pytest.mark.parametrize("case", CASES)
def test_both_find_the_same(launch, case):
    course, expected = CASES[case]
    run = launch()
    firing._cached.clear()

    found = of_trainer(course, RunConfig.model_validate(run.config))

    assert [alert[:2] for alert in found] == sorted(expected)
    assert of_ingest(course, run) == found
    assert of_ingest(course, launch(name="again"), restarts=True) == found


def test_both_leave_out_rules_that_do_not_apply_to_a_phase(launch):
    phases = [
        {"name": "compares", "num_steps": 25},
        {
            "name": "imitates",
            "num_steps": 25,
            "changes": {"advantage": {"credit": "ones"}},
        },
    ]
    run = launch(phases=phases, optim={"num_steps": 50})
    dead = {"group__frac_zero_std": 1.0}
    course = [*steps(25, **dead), (PHASE, "imitates"), *steps(25, **dead)]

    found = of_trainer(course, RunConfig.model_validate(run.config))

    assert [(code, step, end) for code, step, _, end in found] == [
        ("no_signal", 20, 26)
    ]
    assert of_ingest(course, run) == found


def test_both_hold_float32_to_its_own_limit(launch):
    run = launch(model={"path": "model", "dtype": "float32"})
    course = [*steps(2, mismatch__mean=0.12), *steps(6, mismatch__mean=0.001)]

    found = of_trainer(course, RunConfig.model_validate(run.config))

    assert [(code, step, end) for code, step, _, end in found] == [
        ("mismatch_float32", 1, 3)
    ]
    assert of_ingest(course, run) == found


def test_every_rule_is_in_a_case():
    found = {code for _, expected in CASES.values() for code, _ in expected}
    found.add("mismatch_float32")

    assert found == BY_CODE.keys()
