"""Runs with extreme numbers: every page and operation responds, in strict JSON."""

import json
import math
import re
from collections.abc import Iterator
from itertools import cycle, product
from typing import Any, get_args

import numpy as np
import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from dashboard.alerts.models import Alert
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.completions.forms import (
    COMPLETION_ORDERS,
    COMPLETION_SORTS,
    GROUP_SORTS,
    GROUP_VIEWS,
    TOKEN_COLORS,
)
from dashboard.jobs.kinds import Context
from dashboard.jobs.models import Job
from dashboard.jobs.runner import run as run_job
from dashboard.runs.charts.chart import LARGEST, clip, clip_all, has_clipped
from dashboard.runs.models import Run
from dashboard.runs.stream import read_batch, read_snapshot
from dashboard.supervision.ingest import ingest
from dashboard.supervision.lease import Claim
from dashboard.supervision.models import SystemSample
from dashboard.transfers.export_runs import FileName
from tests.dashboard.alerts.factories import make_rule
from tests.dashboard.analysis.probes.factories import make_version
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.analysis.rescoring.factories import start
from tests.dashboard.api.asking import BASE, Program, make_token
from tests.dashboard.api.conftest import no_limits as no_limits
from tests.dashboard.api.rows_of_operations import QUERIES
from tests.dashboard.api.test_every_operation_is_guarded import operations
from tests.dashboard.completions.factories import RULES, make_run
from tests.dashboard.completions.mismatches import mismatch
from tests.dashboard.jobs.working import take
from tests.dashboard.test_every_route_is_guarded import POST_ONLY
from tests.dashboard.test_every_route_is_guarded import addresses as addresses
from tests.inputs.requesting import failures
from trainer.alerts.conditions import Kind
from trainer.events import Event, parse_event

pytestmark = pytest.mark.django_db
NAN, INF = math.nan, math.inf
ODD = (1.7e308, 1e39, -1.7e308, 1e16, 5e-324, NAN, -0.0, INF, -1e39, -INF, None)
# By a run: all of them, each at every metric; only the largest of both signs; one.
SERIES: dict[str, tuple[float | None, ...]] = {
    "any": ODD,
    "swinging": (1.7e308, -1.7e308),
    "even": (1.7e308,),
    "small": (5e-324, -0.0),
}
NUM_STEPS = len(ODD) + 2
METRICS = (
    *("reward/mean", "reward/std", "reward/answer/mean", "reward/format/mean"),
    *("loss", "kl/mean", "kl/max", "kl/p99", "kl/coef", "entropy", "grad_norm", "lr"),
    *("clip/frac_low", "clip/frac_high", "clip/frac_dual", "ratio/mean", "ratio/max"),
    *("group/std_mean", "group/frac_zero_std", "group/frac_all_max"),
    *("group/frac_all_min", "group/num_effective", "advantage/abs_mean"),
    *("completion/mean_length", "completion/frac_truncated", "staleness/mean"),
    *("mismatch/mean", "mismatch/max", "sampling/frac_dropped", "tokens_per_second"),
    *("sampling/num_tokens", "sampling/num_completions", "theirs"),
    *(f"time/{part}" for part in ("generate", "score", "logprobs", "update", "step")),
)
SCORES = tuple(
    f"eval/held/{name}{end}"
    for name, end in product(
        ("mean", "pass@1", "pass@4", "maj@4"), ("", "/low", "/high")
    )
)
TOKENS = (
    *("logprob", "sampling_logprob", "entropy", "kl", "ratio", "advantage"),
    "coefficient",
)


class Log:
    """Lines as an outside trainer may write them, NaN and Infinity included."""

    def __init__(self, numbers: tuple[float | None, ...]) -> None:
        self._numbers = cycle(numbers)
        self.events: list[Event] = []

    def odd(self) -> float | None:
        return next(self._numbers)

    def add(self, type: str, step: int, **fields: Any) -> None:
        line = len(self.events) + 1
        place = {"type": type, "line": line, "attempt": 1, "step": step}
        tree = place | {"time": 1.7e9 + line} | fields
        self.events.append(parse_event(json.dumps(tree)))

    def add_step(self, step: int) -> None:
        for prompt in range(2):
            self.add("group_scored", step, **self._group(prompt))
            self.add("tokens_measured", step, **self._tokens(prompt))
        self.add("mismatch_measured", step, **self._gaps())
        # One further each time, so that every metric is given every number.
        metrics = {name: self.odd() for name in METRICS}
        self.odd()
        self.add("step_finished", step, metrics=metrics)
        self.add(
            "warned", step, code="odd", message="m", value=self.odd(),
            threshold=self.odd(),
        )  # fmt: skip

    def add_evaluation(self, step: int) -> None:
        self.add(
            "evaluated", step, name="held", num_prompts=4, samples_per_prompt=4,
            metrics={name: self.odd() for name in SCORES},
        )  # fmt: skip

    def _group(self, prompt: int) -> dict[str, Any]:
        completions = [
            {
                "text": f"<think>it</think> {place}",
                "num_tokens": 2,
                "end_reason": "stop",
                "reward": self.odd(),
                "rules": {"answer": self.odd(), "format": self.odd()},
                "advantage": self.odd(),
                "mean_logprob": self.odd(),
            }
            for place in range(4)
        ]
        return {
            "prompt_index": prompt, "prompt": f"{prompt}+{prompt}?",
            "answer": str(2 * prompt),
            "reward_mean": self.odd(), "reward_std": self.odd(), "signal": "mixed",
            "completions": completions,
        }  # fmt: skip

    def _gaps(self) -> dict[str, Any]:
        tree = mismatch([[0.1]] * 8, advantages=[1.0] * 8)
        for part in ("sums", "positions", "probabilities"):
            for name in set(tree[part]) - {"num_tokens"}:
                tree[part][name] = [self.odd() for _ in tree[part][name]]
        tree["advantages"] = [self.odd() for _ in range(8)]
        return {**tree, "prompts": [0, 1], "sizes": [4, 4]}

    def _tokens(self, prompt: int) -> dict[str, Any]:
        fields = ("num_tokens", "ids", "pieces", "special", "clipped")
        completions = [
            dict(zip(fields, (2, [5, 6], ["a", "b"], [1], [0, None]), strict=True))
            | {name: [self.odd(), self.odd()] for name in TOKENS}
            for _ in range(4)
        ]
        return {"prompt_index": prompt, "completions": completions}


def feed(run: Run, numbers: tuple[float | None, ...]) -> None:
    log = Log(numbers)
    log.add_evaluation(0)
    for step in range(1, NUM_STEPS + 1):
        log.add_step(step)
        if step % 4 == 0:
            log.add_evaluation(step)
    run.groups.all().delete()
    Run.objects.filter(pk=run.pk).update(
        state="running", attempt=1, worker="w", lease_until=timezone.now()
    )
    claim = Claim(run_id=run.pk, attempt=1)
    middle = len(log.events) // 2
    assert ingest(claim, log.events[:middle]) == middle
    assert ingest(claim, log.events[middle:]) == len(log.events) - middle
    Run.objects.filter(pk=run.pk).update(state="finished", worker="", lease_until=None)
    SystemSample.objects.bulk_create(
        SystemSample(
            run=run, attempt=1, time=timezone.now(), step=step,
            values=[log.odd() for _ in range(11)],
        )
        for step in range(1, NUM_STEPS)
    )  # fmt: skip


@pytest.fixture
def runs(addresses, team) -> list[Run]:
    """The run of the addresses, and two of each series that differ in their seed.

    Rules of every kind watch them, and one of each series is rescored.
    """
    for kind, metric in product(Kind, ("loss", "reward/mean", "eval/held/mean")):
        if kind not in (Kind.WARNED, Kind.OVERFITS):
            make_rule(team, name=f"{kind} {metric}", kind=kind, metric=metric)
    first, version = Run.objects.earliest("pk"), make_version(team, 4, name="Odd")
    feed(first, ODD)
    made = []
    for place, (name, seed) in enumerate(product(SERIES, (1, 2))):
        loss = first.config["loss"] | {"kl_coef": place // 2 / 10}
        run = make_run(
            team,
            f"{name}-{seed}",
            num_steps=NUM_STEPS,
            dataset_version=version,
            recipe_version=first.recipe_version,
            config=first.config | {"seed": seed, "loss": loss},
        )
        feed(run, SERIES[name])
        made.append(run)
    return [first, *made]


@pytest.fixture
def rescored(runs) -> list[int]:
    for run in runs[1::2]:
        run.refresh_from_db()
        start(run, RULES)
        while Job.objects.filter(kind="rescoring", state="queued").exists():
            run_job(Context(take("rescoring")), beats=False)
    found = Rescoring.objects.filter(run__in=runs[1:])
    assert [each.job.state for each in found] == ["done"] * len(SERIES)
    return [each.pk for each in found]


@pytest.mark.parametrize(
    ("value", "clipped"), [(1e300, LARGEST), (-1e39, -LARGEST), (5e-324, 5e-324)]
)
def test_a_number_is_clipped_where_it_is_drawn(value, clipped):
    assert clip(value) == clipped
    assert clip_all([value]).tolist() == [clipped]
    assert has_clipped([0.0, np.float32(clipped)]) == (abs(clipped) == LARGEST)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_non_finite_values_stay_non_finite(value):
    assert math.isnan(clip(value))
    assert np.isnan(clip_all([value])).all()


def refuse(token: str) -> None:
    raise ValueError(f"{token} is no JSON")


def read_strictly(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=refuse)


DATA = re.compile(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', re.DOTALL)


def faults_of(answer: Any) -> list[str]:
    """What is wrong with an answer: its status, its JSON, that of its scripts."""
    found = [f"status {answer.status_code}"] if answer.status_code >= 500 else []
    body = answer.getvalue() if answer.streaming else answer.content
    kind = answer.headers["Content-Type"]
    texts: list[Any] = []
    if "json" in kind:
        texts = body.splitlines() if "jsonl" in kind else [body]
    elif kind.startswith("text/html"):
        texts = DATA.findall(body.decode())
    for text in texts:
        try:
            read_strictly(text)
        except ValueError as error:
            found.append(str(error))
    return found


def ask_all(client: Client, addresses: list[str]) -> dict[str, list[str]]:
    wrong = {}
    client.raise_request_exception = False
    for address in addresses:
        with failures() as errors:
            try:
                with transaction.atomic():
                    found = faults_of(client.get(address))
                    transaction.set_rollback(True)
            except Exception as error:  # noqa: BLE001  # any exception is a fault
                found = [repr(error)]
        if found or errors:
            wrong[address] = [*found, *errors]
    return wrong


def of_runs(ids: list[int]) -> Iterator[str]:
    every = ",".join(map(str, ids))
    few = ("reward/mean", "loss", "kl/mean", "eval/held/mean", "theirs")
    yield "runs/?cols=" + ",".join(
        f"{m}.{stat}" for m in few for stat in ("last", "min", "max", "mean", "best")
    )
    for metric in few:
        yield f"runs/?sort=-{metric}.mean&q={metric}>1e300"
        for x, y, stat in product(
            ("step", "time", "tokens"), ("linear", "log"), ("mean", "iqm")
        ):
            drawn = f"runs={every}&metric={metric}&x={x}&y={y}&stat={stat}&smooth=0.9"
            yield f"compare?{drawn}"
            yield f"compare/figure.json?{drawn}&paired=1&each=1"
        yield f"compare?runs={every}&metric={metric}&by=none&better=higher&window=5"
        yield f"compare?runs={every}&metric={metric}&prompt=0&step=1"
        for of in ("last", "tail", "highest", "lowest"):
            yield f"sweep?runs={every}&metric={metric}&of={of}"
    pair = f"a={ids[0]}&b={ids[-1]}&prompt=0&step=1&sort=-reward"
    yield f"compare/prompt?runs={every}&{pair}"
    yield f"prompts/?runs={every}"


def of_run(pk: int) -> Iterator[str]:
    at = f"runs/{pk}/"
    yield from (at, f"{at}metrics/", f"{at}health/", f"{at}stream.json", f"{at}export/")
    yield f"{at}curves.json?metrics=" + ",".join(METRICS[:20])
    for chart in ("map", "rewards", "advantages", "rules", "anatomy", "passes"):
        yield f"{at}signals/{chart}.json"
        yield f"{at}signals/{chart}.json?first_step=2&last_step=3"
    for sort, _ in GROUP_SORTS:
        yield f"{at}groups/?sort={sort}&step=1"
    for sort, _ in COMPLETION_SORTS:
        yield f"{at}completions/?sort={sort}"
    yield f"{at}completions/?min_reward=1e38"
    for step in range(1, 4):
        for (view, _), (sort, _) in product(GROUP_VIEWS, COMPLETION_ORDERS):
            yield f"{at}groups/{step}/0/?view={view}&sort={sort}"
        yield f"{at}groups/{step}/0/tokens.json"
    for color, _ in TOKEN_COLORS:
        yield f"{at}groups/1/0/?view=tokens&color={color}"
    yield from (f"{at}prompts/", f"{at}prompts/0/", f"{at}reward-log/", f"{at}health/")
    yield from (f"{at}system/", f"{at}system.json", f"{at}system.json?axis=step")
    yield from (
        f"{at}{tab}/" for tab in ("alerts", "details", "checkpoints", "samples")
    )
    yield from (f"{at}export/{file}" for file in get_args(FileName))


@pytest.fixture
def reports(runs, team, alice) -> list[int]:
    every = ",".join(str(run.pk) for run in runs)
    lines = [
        f"::{kind} runs={of} metric={metric} x={x} y={y}"
        for kind in ("chart", "compare")
        for of in (every, runs[3].pk, runs[5].pk)
        for metric in ("loss", "reward/mean", "eval/held/mean")
        for x, y in product(("step", "tokens"), ("linear", "log"))
    ]
    lines += [f"::table runs={every} metrics=loss,reward/mean,eval/held/mean,theirs"]
    lines += [f"::group run={run.pk} step=1 prompt=0 sort=-reward" for run in runs]
    return [make_report(team, alice, "\n\n".join(lines[at::4])).pk for at in range(4)]


def of_pages(
    addresses: dict[str, str], runs: list[Run], reports: list[int], rescored: list[int]
) -> list[str]:
    paths = [at for name, at in addresses.items() if name not in POST_ONLY]
    ids = [run.pk for run in runs[1:]]
    paths += [f"/alpha/{at}" for at in of_runs(ids)]
    paths += [f"/alpha/{at}" for pk in ids[::2] for at in of_run(pk)]
    for pk, end in product(reports, ("", "export.html")):
        paths.append(f"/alpha/reports/{pk}/{end}")
    for pk, end in product(rescored, ("", "completions.csv", "completions.jsonl")):
        paths.append(f"/alpha/rescorings/{pk}/{end}")
    for pk in Alert.objects.values_list("pk", flat=True):
        paths.append(f"/alpha/alerts/{pk}/")
    return list(dict.fromkeys(paths))


def of_api(runs: list[Run], report: int) -> list[str]:
    """Every operation that reads a run, for all runs."""
    found = []
    alert = Alert.objects.latest("pk").pk
    every = ",".join(str(run.pk) for run in runs)
    for name, method, path, _ in operations():
        for run, file in product(runs[1::2], get_args(FileName)):
            known = {
                "run_id": run.pk, "step": 1, "prompt_index": 0, "alert_id": alert,
                "report_id": report, "file": file, "file_format": "jsonl",
                "suffix": "json",
            }  # fmt: skip
            is_known = set(re.findall(r"\{(\w+)\}", path)) <= known.keys()
            if method == "GET" and is_known:
                found.append((path + QUERIES.get(name, "")).format(**known))
    for metric, by, x in product(
        ("loss", "reward/mean", "eval/held/mean"), ("seeds", "none"), ("step", "tokens")
    ):
        found += [
            f"/compare/curves?runs={every}&metric={metric}&by={by}&x={x}&smooth=0.9",
            f"/compare?runs={every}&metric={metric}",
            f"/compare/sweep?runs={every}&metric={metric}",
        ]
    found.append("/runs?q=loss>1e300&sort=-loss.mean")
    return [BASE + at for at in dict.fromkeys(found)]


def of_each_kind(paths: list[str], every: int) -> list[str]:
    """The first of each page, and every so many of the others."""
    firsts = {re.sub(r"\d+", "#", at.partition("?")[0]): at for at in paths[::-1]}
    return list(dict.fromkeys([*firsts.values(), *paths[::every]]))


@pytest.mark.slow
@pytest.mark.usefixtures("no_limits")
def test_nothing_that_reads_a_run_fails(
    addresses, runs, reports, rescored, alice, alice_client
) -> None:
    """Every page and operation once or more; the slow test asks them in all ways."""
    pages = of_each_kind(of_pages(addresses, runs, reports, rescored), 41)
    program = Program(make_token(alice, "admin"))
    program.client.defaults["HTTP_AUTHORIZATION"] = program.headers["Authorization"]

    assert ask_all(alice_client, pages) == {}
    assert ask_all(program.client, of_each_kind(of_api(runs, reports[0]), 11)) == {}
    for run in Run.objects.all():
        for frame in (read_snapshot(run), read_batch(run, 0), read_batch(run, 9)):
            read_strictly(json.dumps(frame))
    assert len(pages) > 100
    assert Alert.objects.filter(run__in=runs).count() > 20


@pytest.mark.slow
@pytest.mark.usefixtures("no_limits")
def test_nothing_that_reads_a_run_fails_with_any_parameter(
    addresses, runs, reports, rescored, alice, alice_client
) -> None:
    program = Program(make_token(alice, "admin"))
    program.client.defaults["HTTP_AUTHORIZATION"] = program.headers["Authorization"]

    pages = of_pages(addresses, runs, reports, rescored)

    assert ask_all(alice_client, pages) == {}
    assert ask_all(program.client, of_api(runs, reports[0])) == {}
