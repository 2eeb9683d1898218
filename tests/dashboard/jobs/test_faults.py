"""One table of faults over every kind of job: whatever happens, the result is once.

A worker that is killed is one that raises SystemExit: the transaction it is in is
rolled back, and its job's row stays as it is. tests/faults kills real ones.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError
from django.db.models import Model
from django.db.models.functions import Now

from dashboard.accounts.models import Team, User
from dashboard.analysis.probes.jobs import probe
from dashboard.analysis.probes.models import Probe
from dashboard.analysis.questions.models import CompletionLabel
from dashboard.analysis.questions.services import NUM_TRIED
from dashboard.analysis.rescoring.models import RescoredStep
from dashboard.datasets import selections as generated
from dashboard.datasets import splits
from dashboard.datasets.analysis import results
from dashboard.datasets.fetching.fetches import begin_fetch
from dashboard.datasets.fetching.links import Link
from dashboard.datasets.generators import Task
from dashboard.datasets.imports import start_job, store_upload
from dashboard.datasets.mapping import Mapping
from dashboard.datasets.models import (
    DatasetVersion,
    RowOrder,
    TokenLengths,
    Upload,
    VersionDifference,
    VersionLeak,
    VersionSplit,
    VersionStatistics,
)
from dashboard.datasets.row import Row
from dashboard.datasets.selections import source_of, start_generation, start_selection
from dashboard.jobs.kinds import Claim, Context, all_kinds, kind_of
from dashboard.jobs.models import Job, JobState
from dashboard.jobs.queue import cancel, claim_next, enqueue, reap
from dashboard.runs.launch.language_model import MODEL, model_folder, start_download
from dashboard.runs.models import Run
from dashboard.transfers import jobs as exchange_jobs
from dashboard.transfers.import_files import begin_import, store_file
from dashboard.transfers.models import RunImport
from tests.dashboard.analysis.probes.factories import make_probe, make_version
from tests.dashboard.analysis.probes.test_probe_jobs import scripted
from tests.dashboard.analysis.questions.factories import (
    answer_honestly,
    ask,
    make_hedging_run,
)
from tests.dashboard.analysis.rescoring.factories import make_scored_run, start
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.datasets.fetching.hub_site import add_model
from tests.dashboard.datasets.fetching.site import Site, file, web_site
from tests.dashboard.datasets.test_upload import FILES
from tests.dashboard.jobs.working import change_kind, do, report_progress, take
from tests.dashboard.transfers.tools import verl_jsonl
from tests.trainer.rewards.judge_server import Judging, judge_server

ROWS = FILES["sums.jsonl"]
Result = Callable[[], int]


def written(task: str, *, size: int, **_: Any) -> Iterator[Row]:
    """As the task's own process writes them."""
    for number in range(size):
        yield Row(prompt=f"{task} {number}?", answer=str(number))


class Made:
    """What the kinds' jobs are made of."""

    def __init__(self, team: Team, user: User, site: Site, judging: Judging) -> None:
        self.team, self.user, self.site, self.judging = team, user, site, judging

    def version(self, name: str = "Sums", *, num_rows: int = 4) -> DatasetVersion:
        rows = [
            Row(prompt=f"{name}: {n} + {n}?", answer=str(2 * n))
            for n in range(num_rows)
        ]
        return store_dataset(self.team, rows, name=name)

    def fetched(self) -> Result:
        self.site.pages["/sums.jsonl"] = file(ROWS)
        link = Link(url=self.site.url("/sums.jsonl"))
        begin_fetch(team=self.team, user=self.user, link=link, dataset=None)
        return Upload.objects.filter(is_whole=True).count

    def imported(self) -> Result:
        upload = store_upload(
            team=self.team,
            user=self.user,
            file=SimpleUploadedFile("sums.jsonl", ROWS),
            dataset=None,
        )
        mapping = Mapping(prompt="question", answer="solution")
        start_job(upload=upload, mapping=mapping, name="New", user=self.user)
        return DatasetVersion.objects.count

    def selected(self) -> Result:
        parent = self.version()
        source = source_of(parent, kind="view", query="", how="all")
        start_selection(
            parent=parent,
            source=source,
            name="New",
            dataset=None,
            user=self.user,
            key=uuid.uuid4(),
            positions=[0, 2],
        )
        return DatasetVersion.objects.exclude(pk=parent.pk).count

    def generated(self) -> Result:
        task = Task(name="sums", summary="Sums", options=())
        start_generation(
            team=self.team,
            user=self.user,
            task=task,
            name="New",
            size=3,
            seed=0,
            options={},
        )
        return DatasetVersion.objects.count

    def found(self, found: Any, /, **fields: Any) -> Result:
        row: Model = found.objects.create(**fields)
        enqueue(found.JOB, row.pk, team_id=self.team.pk)
        if found is RowOrder:
            return RowOrder.objects.filter(is_made=True).count
        return cast("Result", found.objects.exclude(result=None).count)

    def read(self) -> Result:
        self._sent(RunImport.READ)
        return RunImport.objects.exclude(findings={}).count

    def made(self) -> Result:
        sent = self._sent(RunImport.READ)
        do(take(RunImport.READ))
        choices = {
            "name": "Theirs",
            "model": "theirs",
            "weights": [["score", 1.0]],
            "computes_advantages": True,
            "right_from": 1.0,
            "leave_out": 0,
            "wandb_run": None,
        }
        assert exchange_jobs.start(sent, RunImport.MAKE, choices=choices)
        return Run.objects.count

    def _sent(self, kind: str) -> RunImport:
        sent = begin_import(self.team, self.user)
        store_file(sent, SimpleUploadedFile("1.jsonl", verl_jsonl(1)))
        assert exchange_jobs.start(sent, kind)
        return sent

    def downloaded(self) -> Result:
        shutil.rmtree(model_folder().parent, ignore_errors=True)
        add_model(self.site, MODEL, {"config.json": b"{}", "model.safetensors": b"0"})
        start_download(self.team, self.user)
        return lambda: int((model_folder() / "model.safetensors").exists())

    def probed(self) -> Result:
        make_probe(self.team, make_version(self.team))
        return Probe.objects.exclude(metrics={}).count

    def asked(self) -> Result:
        self.judging.reply = answer_honestly
        ask(make_hedging_run(self.team, num_steps=2), self.judging, sample_size=20)
        labelled = CompletionLabel.objects.exclude(label="")
        return lambda: int(labelled.count() == NUM_TRIED)

    def rescored(self) -> Result:
        start(make_scored_run(self.team, num_steps=1))
        return RescoredStep.objects.count


def _two(made: Made) -> tuple[DatasetVersion, DatasetVersion]:
    return made.version("One"), made.version("Two")


def _pair(made: Made, model: Any, old: str, new: str) -> Result:
    one, two = _two(made)
    return made.found(model, num_wanted=8, **{old: one, new: two})


KINDS: dict[str, Callable[[Made], Result]] = {
    "dataset.fetch": Made.fetched,
    "dataset.import": Made.imported,
    "dataset.select": Made.selected,
    "dataset.generate": Made.generated,
    "dataset.order": lambda made: made.found(
        RowOrder, version=made.version(), key="answer"
    ),
    "dataset.statistics": lambda made: made.found(
        VersionStatistics, version=made.version(), num_wanted=4
    ),
    "dataset.token_lengths": lambda made: made.found(
        TokenLengths, version=made.version(), model="m", num_wanted=4
    ),
    "dataset.difference": lambda made: _pair(made, VersionDifference, "old", "new"),
    "dataset.leak": lambda made: _pair(made, VersionLeak, "held_out", "trained_on"),
    "dataset.split": lambda made: made.found(
        VersionSplit,
        version=made.version(num_rows=40),
        rule={"by": "share", "share": 50.0, "seed": 0},
        train_name="Train",
        eval_name="Eval",
        num_wanted=40,
    ),
    "run_import.read": Made.read,
    "run_import.make": Made.made,
    "rescoring": Made.rescored,
    "question": Made.asked,
    "model.download": Made.downloaded,
    "probe": Made.probed,
}


@pytest.fixture
def made(team, alice, settings, monkeypatch) -> Iterator[Made]:
    """However small, everything is left to a worker, which reports each row."""
    monkeypatch.setattr(results, "REPORT_ROWS", 1)
    monkeypatch.setattr(splits, "REPORT_ROWS", 1)
    monkeypatch.setattr(exchange_jobs, "is_quick", lambda _: False)
    monkeypatch.setattr(generated, "generate_rows", written)
    monkeypatch.setattr(results, "count_tokens", lambda _, rows: {3: len(list(rows))})
    change_kind(monkeypatch, "probe", run=partial(probe, command=scripted("finish")))
    with web_site() as site, judge_server() as judging:
        settings.DATASET_HOSTS = site.host
        settings.HUB_ENDPOINT = site.url("")
        monkeypatch.setenv("COHORT_JUDGE_HOSTS", judging.url.split("/")[2])
        yield Made(team, alice, site, judging)


def test_every_kind_is_in_the_table():
    assert {kind.name for kind in all_kinds()} == set(KINDS)


def lose() -> None:
    """As after the lease of a worker that is gone, or an outage of the database."""
    Job.objects.filter(state=JobState.RUNNING).update(
        lease_until=Now() - timedelta(seconds=1)
    )
    reap()
    Job.objects.update(not_before=None)


def fail(error: BaseException) -> Callable[[Context], None]:
    def on_progress(_: Context) -> None:
        raise error

    return on_progress


def _killed_while_running(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        if name == "dataset.order":  # one statement, which reports nothing
            change_kind(patch, name, run=fail(SystemExit()))
        with pytest.raises(SystemExit):
            do(take(name), on_progress=fail(SystemExit()))


def _killed_before_the_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Context, "seal", killed)
        patch.setattr(Claim, "end", killed)
        with pytest.raises(SystemExit):
            do(take(name))


def _killed_behind_the_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kind_of(name).run

    def run_and_die(context: Context) -> None:
        run(context)
        raise SystemExit

    with monkeypatch.context() as patch:
        change_kind(patch, name, run=run_and_die)
        with pytest.raises(SystemExit):
            do(take(name))


def _database_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OperationalError("the connection is closed")
    with monkeypatch.context() as patch:
        if name == "dataset.order":
            change_kind(patch, name, run=fail(error))
        job = do(take(name), on_progress=fail(error))
    assert (job.state, job.num_losses) == (JobState.QUEUED, 1)
    assert claim_next([name], "too soon") is None


def _given_to_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker is slow, not dead: it continues after the second."""
    slow = take(name)
    lose()
    do(take(name, worker="quick"))
    do(slow)


FAULTS = (
    _killed_while_running,
    _killed_before_the_end,
    _killed_behind_the_end,
    _database_away,
    _given_to_another,
)


# What a kind has stored is rolled back, and fenced; the other faults are the queue's.
OF_EACH_KIND = {_killed_before_the_end, _given_to_another}
UNDER_EACH_FAULT = ("dataset.import", "rescoring")
CASES = [
    pytest.param(
        name,
        fault,
        id=f"{name}-{fault.__name__}",
        marks=[]
        if name in UNDER_EACH_FAULT or fault in OF_EACH_KIND
        else pytest.mark.slow,
    )
    for name in KINDS
    for fault in FAULTS
]


@pytest.mark.parametrize(("name", "fault"), CASES)
def test_the_result_is_stored_once_under_any_fault(name, fault, made, monkeypatch):
    num_results = KINDS[name](made)
    job = Job.objects.get(kind=name)

    fault(name, monkeypatch)
    lose()
    while claim := claim_next([name], "another"):
        do(claim)

    job.refresh_from_db()
    assert (job.state, job.error) == (JobState.DONE, "")
    assert num_results() == 1


@pytest.mark.parametrize("name", UNDER_EACH_FAULT)
def test_only_one_of_two_workers_gets_a_job(name, made):
    KINDS[name](made)

    assert take(name)
    assert claim_next([name], "another") is None


@pytest.mark.parametrize("name", KINDS)
def test_a_job_cancelled_while_its_worker_is_lost_stores_nothing(name, made):
    num_results = KINDS[name](made)
    lost = take(name)
    cancel(Job.objects.get(kind=name))

    lose()
    do(lost, on_progress=report_progress)

    assert Job.objects.get(kind=name).state == JobState.CANCELLED
    # An order is one statement, which no cancellation reaches; rows never change.
    assert num_results() == (name == "dataset.order")
