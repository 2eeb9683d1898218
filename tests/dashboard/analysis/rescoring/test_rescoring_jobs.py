"""A rescoring on a worker: claimed once, done once, stopped, put back, forgotten."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.analysis.rescoring.models import RescoredStep, Rescoring
from dashboard.analysis.rescoring.results import read_columns
from dashboard.analysis.rescoring.services import (
    MAX_OPEN,
    delete_rescoring,
    folder_of,
    select_steps,
)
from dashboard.celery import app
from dashboard.completions.models import Group
from dashboard.datasets.trash import trash_dataset
from dashboard.jobs.kinds import Context, JobCancelled
from dashboard.jobs.models import Job, JobState
from dashboard.jobs.queue import reap
from dashboard.jobs.tasks import clean
from dashboard.local.supervisor import all_processes
from dashboard.project.errors import UserError
from dashboard.runs.models import Run
from tests.dashboard.analysis.rescoring.factories import (
    RIGHT,
    SHORT,
    make_scored_run,
    see_through,
    start,
)
from tests.dashboard.completions.rollups import make_rollup
from tests.dashboard.completions.step_groups import make_group
from tests.dashboard.jobs.working import do, take

pytestmark = pytest.mark.django_db
JUDGE = {
    "name": "judge",
    "kind": "llm_judge",
    "params": {"base_url": "https://judge.example.com/v1", "model": "large"},
}


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    return make_scored_run(shared_team)


def live(rescoring: Rescoring) -> Rescoring:
    return Rescoring.objects.get(pk=rescoring.pk)


def lose_worker() -> None:
    """As some seconds after its worker was killed."""
    Job.objects.update(lease_until=Now() - timedelta(seconds=1))
    reap()


def test_every_nth_stored_step_is_scored(team):
    run = make_scored_run(team, num_steps=7)
    Group.objects.filter(run=run, step=4).delete()

    found = select_steps(run, 2, None, 2)

    assert found.steps == [2, 5, 7]
    assert (found.num_steps_found, found.first_step, found.last_step) == (5, 2, 7)
    assert (found.num_completions, found.num_found) == (24, 40)


def test_steps_that_are_rolled_up_are_not_counted(run):
    """A rollup holds the sizes of a step's groups; here of others than are stored."""
    make_rollup(run, 2, [make_group((1.0, 0.0, 0.5))])
    make_rollup(run, 9, [make_group((1.0, 0.0))])  # whose groups were not kept

    found = select_steps(run, None, None, 1)

    assert found.steps == [1, 2, 3]
    assert found.num_completions == found.num_found == 8 + 3 + 8


def test_superseded_steps_are_left_out(run):
    Group.objects.filter(run=run, step=3).update(superseded_by=2)

    assert select_steps(run, None, None, 1).steps == [1, 2]


def test_a_lost_workers_steps_are_kept_and_the_rest_follows(run):
    rescoring = start(run, [SHORT])
    claim = take("rescoring")
    seen: list[int] = []

    def killed_behind_the_second() -> bool:
        seen.append(1)
        if len(seen) == 3:
            raise SystemExit
        return False

    with pytest.raises(SystemExit):
        do(claim, is_shutting_down=killed_behind_the_second)
    kept = list(RescoredStep.objects.values_list("pk", "step"))
    assert [step for _, step in kept] == [1, 2]
    lose_worker()

    done = see_through(rescoring)

    assert (done.state, done.num_done) == ("done", 24)
    assert list(RescoredStep.objects.values_list("pk", "step"))[:2] == kept
    found = read_columns(done).completions
    places = {(each["step"], each["prompt"], each["position"]) for each in found}
    assert len(places) == len(found) == 24


def test_a_worker_without_the_lease_writes_nothing(run):
    start(run)
    slow = take("rescoring")
    lose_worker()
    take("rescoring", worker="quick")

    job = do(slow)

    assert not RescoredStep.objects.exists()
    assert (job.state, job.worker) == ("running", "quick")


def test_a_stored_step_resets_the_number_of_losses(run):
    start(run)
    for _ in range(2):
        take("rescoring")
        lose_worker()

    with pytest.raises(SystemExit):
        do(take("rescoring"), is_shutting_down=_ends_at(2))

    assert Job.objects.get().num_losses == 0


def _ends_at(number: int) -> Callable[[], bool]:
    seen: list[int] = []

    def is_shutting_down() -> bool:
        seen.append(1)
        if len(seen) == number:
            raise SystemExit
        return False

    return is_shutting_down


def test_a_cancelled_rescoring_has_a_result(run):
    rescoring = start(run)
    seen: list[int] = []

    def cancel_behind_the_first(context: Context) -> None:
        seen.append(1)
        if len(seen) == 2:
            raise JobCancelled

    job = do(take("rescoring"), on_progress=cancel_behind_the_first)

    assert (job.state, job.done) == ("cancelled", 8)
    assert live(rescoring).result["num_steps"] == 1


def test_a_team_has_at_most_four_open_rescorings(run):
    for _ in range(MAX_OPEN):
        start(run)

    with pytest.raises(UserError) as refused:
        start(run)

    assert refused.value.code == "rescoring.too_many_open"


def test_too_many_completions_are_refused_with_a_step_interval(run, monkeypatch):
    monkeypatch.setattr("dashboard.analysis.rescoring.services.MAX_COMPLETIONS", 10)

    with pytest.raises(UserError, match="interval of 3") as refused:
        start(run)

    assert refused.value.code == "rescoring.too_many_completions"


def test_steps_without_stored_groups_are_refused(run):
    with pytest.raises(UserError) as refused:
        start(run, first_step=9, last_step=12)

    assert refused.value.code == "rescoring.no_groups"


def test_a_dataset_in_the_trash_is_refused(run):
    trash_dataset(run.dataset_version.dataset, None)
    run.refresh_from_db()

    with pytest.raises(UserError) as refused:
        start(run)

    assert refused.value.code == "rescoring.dataset_trashed"


def test_a_reward_model_is_refused(run):
    model = {"name": "model", "kind": "reward_model", "params": {"path": "/m"}}

    with pytest.raises(ValueError, match="model"):
        start(run, [model])


def test_a_judge_requires_consent(run):
    with pytest.raises(UserError) as refused:
        start(run, [JUDGE])

    assert refused.value.code == "rescoring.judge_not_confirmed"
    assert start(run, [JUDGE], allows_judges=True).state == "queued"


def test_a_judge_without_its_key_fails_before_any_request(run):
    named = {**JUDGE, "params": {**JUDGE["params"], "key_name": "NOBODYS"}}

    failed = see_through(start(run, [named], allows_judges=True))

    assert failed.state == "failed"
    assert "NOBODYS" in failed.error
    assert not RescoredStep.objects.exists()


def test_any_answer_of_a_row_is_right_again(run):
    assert run.dataset_version
    several = {"answer": '["2", "9"]', "answer_is_list": True}
    run.dataset_version.rows.filter(position=1).update(**several)
    Group.objects.filter(prompt_index=1).update(**several)

    done = see_through(start(run))

    assert (done.state, done.error) == ("done", "")
    # Of row 1 the answer 9, which was wrong, is right as well: two texts a step.
    (rule,) = done.result["rules"]
    assert (rule["num_changed"], rule["num_both"]) == (2 * 3, 8 * 3)


def test_a_group_of_another_row_is_refused(run):
    Group.objects.filter(step=2, prompt_index=1).update(answer="17")

    failed = see_through(start(run))

    assert failed.state == "failed"
    assert "another row" in failed.error
    assert [each.step for each in failed.scored.all()] == [1]  # which is kept


def test_a_group_of_a_missing_row_is_refused(run):
    Group.objects.filter(step=1, prompt_index=1).update(prompt_index=99)

    failed = see_through(start(run))

    assert "row 99 (line 100)" in failed.error


def test_only_what_has_ended_is_deleted(run):
    rescoring = start(run)
    with pytest.raises(UserError, match="queued"):
        delete_rescoring(rescoring=rescoring, user=None)
    done = see_through(rescoring)

    delete_rescoring(rescoring=done, user=None)

    assert not Rescoring.objects.exists()
    assert not RescoredStep.objects.exists()


def test_old_rescorings_are_deleted(run, monkeypatch):
    monkeypatch.setattr("dashboard.analysis.rescoring.services.MOST_KEPT", 2)
    ages = (31, 1, 1, 1)
    ended = [start(run) for _ in ages]
    for rescoring, days in zip(ended, ages, strict=True):
        end = timezone.now() - timedelta(days=days)
        Job.objects.filter(rescoring=rescoring).update(
            state=JobState.DONE, finished_at=end
        )
    waiting = start(run)
    folder_of(ended[1].pk).mkdir(parents=True)
    folder_of(waiting.pk).mkdir(parents=True)

    clean()

    assert set(Rescoring.objects.all()) == {ended[2], ended[3], waiting}
    assert not folder_of(ended[1].pk).exists()
    assert folder_of(waiting.pk).exists()


def test_rescorings_have_a_queue_slot_and_a_periodic_task(tmp_path):
    tasks = {one["task"] for one in app.conf.beat_schedule.values()}

    assert {"jobs.reap", "jobs.clean"} <= tasks
    (default,) = (
        each
        for each in all_processes(data=tmp_path, port=1)
        if each.name == "default worker"
    )
    at = default.arguments.index("--concurrency")
    # Imports, looks, rescorings, searches, and one for what dispatches runs.
    assert default.arguments[at + 1] == "5"


def test_the_runs_recipe_is_not_stored(run):
    assert start(run).spec is None
    assert start(run, [RIGHT]).spec == {"rules": start(run, [RIGHT]).spec["rules"]}  # type: ignore[index]
