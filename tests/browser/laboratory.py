"""A team at work: runs in every state, and rows behind every page."""

from datetime import date, timedelta
from typing import Any

import numpy as np
from allauth.account.models import EmailAddress
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from dashboard.accounts.members import deactivate, invite
from dashboard.accounts.models import Membership, Role, Team, User
from dashboard.alerts.delivery import describe_run
from dashboard.alerts.models import Channel, Event
from dashboard.analysis.comments import add_comment
from dashboard.analysis.probes.models import Probe, ProbeGroup
from dashboard.analysis.questions.services import label_by_hand, places_for
from dashboard.completions.annotations import Target, add_tag, judge
from dashboard.completions.models import GroupTokens
from dashboard.completions.tokens import pack_tokens
from dashboard.costs.models import add_judge_use
from dashboard.datasets.analysis.results import find_statistics
from dashboard.datasets.imports import (
    import_upload,
    request_stop,
    start_job,
    store_upload,
)
from dashboard.datasets.mapping import Mapping
from dashboard.datasets.models import DatasetVersion, Upload
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.datasets.trash import trash_dataset
from dashboard.jobs.models import Job, JobState
from dashboard.operations.models import Quota
from dashboard.rewards.services import save_recipe_version
from dashboard.runs.models import Run, RunState, SavedView, Sweep, TeamPreset
from dashboard.runs.queries import run_directory
from dashboard.supervision.external_runs import open_run
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from dashboard.transfers.models import RunImport
from tests.dashboard.alerts.factories import make_alert, make_delivery, make_rule
from tests.dashboard.analysis.compare.seeds import make_seeds
from tests.dashboard.analysis.mismatch.seeded import store_gaps
from tests.dashboard.analysis.probes.factories import (
    completion,
    make_probe,
    measured,
)
from tests.dashboard.analysis.questions.factories import ask, store_answers
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.analysis.rescoring.factories import (
    RIGHT,
    SHORT,
    make_scored_run,
    see_through,
    start,
)
from tests.dashboard.analysis.test_curriculum import make_curriculum_run
from tests.dashboard.api.asking import make_token
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_config, make_note, make_run
from tests.dashboard.costs.factories import (
    add_attempt,
    add_steps,
    make_costly_run,
    set_price,
)
from tests.dashboard.runs.checkpoints.saved import Saving
from tests.dashboard.runs.stories import Story, queue_run
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.logs import measured as measured_tokens
from tests.dashboard.supervision.machines import make_samples
from tests.dashboard.supervision.sending import send
from tests.dashboard.supervision.test_opening_a_run import OPENING
from tests.fixtures_app import set_password
from trainer.rewards.spec import Recipe

PASSWORD = "correct horse battery"
WORKER = "training@a-machine-with-a-long-name"
NUM_STEPS = 30
LONG = "First we add the two numbers, and then we look at what is left of them. " * 3
TEXTS = (
    f"{LONG}So it is **{{right}}**.\n\n$x = \\frac{{{{44}}}}{{{{4}}}}$",
    "it must be {right}",
    "it may well be {wrong}",
    "{wrong}",
)
# With an answer that is no number, a row that repeats, and two with errors.
PROBLEMS = (
    "".join(
        f'{{"prompt": "{n} + 1 = ?", "answer": "{n + 1 if n else "one"}"}}\n'
        for n in (*range(30), 7)
    )
    + '{"prompt": "", "answer": "1"}\n{"prompt": "2 + 2 = ?"}\n'
)
FAILING = """
def reward(completion, answer):
    if len(completion) > 14:
        raise ValueError("it is too long: " + completion * 9)
    return 1.0
"""
QUEUED: dict[str, Any] = {"state": "queued", "started_at": None, "finished_at": None}
Known = dict[str, Any]


def open_laboratory(team: Team, owner: User) -> Known:
    """What addresses of its pages are made of."""
    fill_account(owner)
    fill_people(team, owner)
    version, data = make_data(team, owner)
    run = train(team, owner, version)
    annotate(run, owner)
    return {
        "team": team.slug,
        "run_id": run.pk,
        "step": NUM_STEPS,
        "prompt": 1,
        **data,
        **fill_alerts(run),
        **make_other_runs(team, owner, version),
        **analyse(run, owner),
        **fill_costs(team, owner),
        "curriculum": make_curriculum_run(team, version).pk,
    }


def fill_account(owner: User) -> None:
    owner.email = "alice@laboratory.example.org"
    owner.save()
    set_password(owner, PASSWORD)
    EmailAddress.objects.create(
        user=owner, email=owner.email, verified=True, primary=True
    )
    EmailAddress.objects.create(user=owner, email="a@example.org")
    make_token(owner, "read", "write", name="nightly sweep of the small models")
    expired = timezone.now() - timedelta(days=1)
    make_token(owner, "admin", expires_at=expired, name="old")


def fill_people(team: Team, owner: User) -> None:
    by = Membership.objects.get(user=owner)
    for name in ("dora-with-a-rather-long-username", "erik"):
        user = User.objects.create_user(name, display_name=name.title())
        member = Membership.objects.create(team=team, user=user, role=Role.ADMIN)
        make_token(user, "ingest", name="trainer of node-3")
    deactivate(by=by, member=member)
    invite(by=by, role="viewer")
    invite(by=by, role="admin", email="someone.with.a.long.name@example.org")
    register(WORKER, num_slots=2)
    later = timezone.now() + timedelta(hours=1)  # alive for the whole test
    Worker.objects.update(last_seen=later)
    Quota.objects.create(team=team, max_bytes=10**9, max_runs=40)


def make_data(team: Team, owner: User) -> tuple[DatasetVersion, Known]:
    rows = [
        Row(
            prompt=f"What is {n} + {n}? " + "Think it over. " * (n % 7),
            answer=str(2 * n),
            columns={"level": n % 3, "numbers": [n, n], "target": 2 * n},
        )
        for n in range(60)
    ]
    mapping = {"prompt": "question", "answer": "solution", "columns": ["level"]}
    given: Known = {"team": team, "mapping": mapping, "source": {}, "user": None}
    version = create_dataset_version(name="Sums", rows=rows, **given)
    gone = create_dataset_version(name="Old sums", rows=rows[:3], **given)
    trash_dataset(gone.dataset, owner)
    recipe = save_recipe_version(
        team=team,
        name="Right and short",
        recipe=Recipe.model_validate({"rules": [RIGHT, SHORT]}),
        user=owner,
    )
    waiting = upload(team, owner, "rows.jsonl", '{"prompt": "1+1=", "answer": 2}\n' * 9)
    importing = upload(team, owner, "more.jsonl", '{"prompt": "1+1="}\n')
    job, _ = start_job(
        upload=importing, mapping=Mapping(prompt="prompt"), name="Rows", user=owner
    )
    request_stop(job)
    imported = import_upload(
        upload=upload(team, owner, "problems.jsonl", PROBLEMS),
        mapping=Mapping(prompt="prompt", answer="answer"),
        name="Word problems",
        user=owner,
        leave_out=2,
    )
    find_statistics(imported)
    return version, {
        "imported": imported.pk,
        "imported_id": imported.dataset_id,
        "recipe_version": recipe.pk,
        "dataset_id": version.dataset_id,
        "gone": gone.dataset_id,
        "recipe_id": recipe.recipe_id,
        "upload_id": waiting.pk,
        "job_id": job.pk,
    }


def upload(team: Team, owner: User, name: str, lines: str) -> Upload:
    file = SimpleUploadedFile(name, lines.encode())
    return store_upload(team=team, user=owner, file=file, dataset=None)


def train(team: Team, owner: User, version: DatasetVersion) -> Run:
    """A finished run with groups, held-out evaluations, checkpoints and a log."""
    run = make_scored_run(
        team,
        name="calm-otter-1",
        version=version,
        num_steps=NUM_STEPS,
        num_prompts=6,
        rules=(RIGHT, SHORT),
        texts=TEXTS,
        **QUEUED | {"owner": owner, "tags": ["baseline"]},
    )
    Run.objects.filter(pk=run.pk).update(num_steps=NUM_STEPS, last_step=0)
    run.refresh_from_db()
    story = Saving(run)
    story.start()
    for step in range(NUM_STEPS):
        if step % 10 == 0:
            story.evaluate(
                **{"eval/heldout/mean/low": 0.1, "eval/heldout/mean/high": 0.2}
            )
        story.save(reward=0.3 + step / 60, score=None if step % 10 else 0.2 + step / 60)
    story.prune(3)
    make_samples(run, 30, gpus=1)
    log = run_directory(run.pk).attempt(1).trainer_log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"step {n}/{NUM_STEPS}  reward 0.3\n" for n in range(300)))
    story.end(RunState.FINISHED)
    make_blocks(run)
    store_gaps(run, NUM_STEPS, np.full((4, 8), 0.01), prompts=[1], sizes=[4])
    run.refresh_from_db()
    return run


def annotate(run: Run, owner: User) -> None:
    group = run.groups.get(step=NUM_STEPS, prompt_index=1)
    judge(owner, Target(group, 0), is_up=True)
    add_tag(owner, Target(group, 2), "reward-hack")
    add_comment(owner, Target(group, 2), "@alice is this the prompt you meant?")
    add_comment(owner, run, "Longer with each step: see the rule short.")
    make_note(group, "checking 4 * 3\nfound 12\n" * 9, rule="short")
    make_note(group, "127.0.0.1 gave status 503.", position=3, is_error=True)
    tokens = [
        measured_tokens("3", " +", " 4\n", "<eos>", logprob=[-0.1, -0.5, -4.0, -0.01])
        for _ in TEXTS
    ]
    GroupTokens.objects.create(group=group, packed=pack_tokens(tokens))


def fill_alerts(run: Run) -> Known:
    rule = make_rule(run.team)
    channel = Channel.objects.create(
        team=run.team,
        kind="webhook",
        address="https://hooks.example.org/services/T0",
        events=Event.values,
    )
    Channel.objects.create(team=run.team, kind="email", address="ops@example.org")
    make_delivery(channel)
    channel.deliveries.create(
        run=run,
        event="run.finished",
        content=describe_run(run),
        not_before=timezone.now(),
        num_attempts=3,
        result="HTTP 503",
    )
    return {"alert_id": make_alert(run, rule).pk, "rule_id": rule.pk}


def make_other_runs(team: Team, owner: User, version: DatasetVersion) -> Known:
    """Of every state, of another trainer, in a sweep, and with other seeds."""
    same: Known = {"dataset_version": version, "owner": owner}
    training = Story(queue_run(team, name="brave-finch-2", **same), worker=WORKER)
    training.start()
    training.evaluate(**{"eval/heldout/mean/low": 0.1, "eval/heldout/mean/high": 0.2})
    for _ in range(12):
        training.step += 1
        for prompt in (3, 5):
            training.score_group(prompt)
        training.step -= 1
        training.take_steps(1)
    make_samples(training.run, 30, gpus=1)
    starting = Story(queue_run(team, name="new-wren-3", **same), worker=WORKER)
    ended = {}
    for name, state in (("failed", RunState.FAILED), ("paused", RunState.PAUSED)):
        story = Story(queue_run(team, name=f"{name}-4", **same), worker="worker-2")
        story.start()
        story.take_steps(2)
        reason = "CUDA out of memory: 2 GB of 80 GB were free. " * 3
        field = {"failed": "fail_reason", "paused": "pause_reason"}[name]
        story.end(state, **{field: reason})
        ended[name] = story.run.pk
    waiting = queue_run(team, name="waiting-5", **same)
    make_run(team, "old", trashed_at=timezone.now() - timedelta(days=3))
    outside, _ = open_run(OPENING, team=team, user=owner)
    send(outside, LogBuilder().stepped(1).stepped(2).stepped(3))
    sweep = Sweep.objects.create(team=team, name="rates")
    for place in range(6):
        make_run(
            team,
            f"rates-{place + 1}",
            sweep=sweep,
            config=make_config(
                optim={"learning_rate": 10.0 ** (place // 2 - 6)}, seed=place
            ),
            summary={"last": {"reward/mean": 0.2 + 0.1 * place}, "best": {}},
            **same,
        )
    base = make_seeds(team, "base", 3, num_steps=40)
    others = make_seeds(
        team, "kl", 3, like=base[0], num_steps=40, loss={"kl_coef": 0.1}
    )
    preset = TeamPreset.objects.create(team=team, name="Ours", config=base[0].config)
    SavedView.objects.create(
        team=team, owner=owner, name="Otters", query="q=otter", is_shared=True
    )
    imported = RunImport.objects.create(team=team)
    imported.files.create(filename="1.jsonl", stored_name="1", num_bytes=1)
    return {
        **ended,
        "training": training.run.pk,
        "starting": starting.run.pk,
        "waiting": waiting.pk,
        "outside": outside.pk,
        "sweep": sweep.pk,
        "preset": preset.pk,
        "version": version.pk,
        "base": base[0].pk,
        "seeds": ",".join(str(each.pk) for each in (*base, *others)),
        "import_id": imported.pk,
    }


def analyse(run: Run, owner: User) -> Known:
    """Tests of prompts, rescorings and a report of the run."""
    team, version = run.team, run.dataset_version
    probe = make_probe(team, version)
    jobs = Job.objects.filter(kind="probe")
    jobs.update(state=JobState.DONE, done=2, finished_at=timezone.now())
    Probe.objects.update(metrics=measured())
    ProbeGroup.objects.create(
        probe=probe,
        position=1,
        completions=[completion("2", 1.0), completion("x" * 400, 0.0)],
    )
    code = {"name": "code", "kind": "python_function", "params": {"source": FAILING}}
    fading = {**SHORT, "schedule": {"points": [{"step": 40, "weight": -0.5}]}}
    done = see_through(start(run, [fading, code]), beats=True)
    failed = start(run, [SHORT])
    error = 'Rule "judge": ' + "COHORT_JUDGE_KEY_LAB is not set here. " * 4
    Job.objects.filter(kind="rescoring", state=JobState.QUEUED).update(
        state=JobState.FAILED, error=error, finished_at=timezone.now()
    )
    other = team.runs.get(name="base-0").pk
    lines = [
        "## Heading",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        f"::chart runs={run.pk},{other} pin",
        f"::group run={run.pk} step={NUM_STEPS} prompt=1",
        f"::compare runs={run.pk},{other} metric=reward/mean",
        f"::table runs={run.pk},999999",
        "::chart runs=none",
    ]
    asked = ask(run, sample_size=100)
    store_answers(asked)
    for place in places_for(asked, owner):
        label_by_hand(asked, owner, place, place.label)
    report = make_report(team, owner, "\n".join(lines), "Does it help?")
    add_comment(owner, report, "It does on held-out prompts.")
    return {
        "probe_id": probe.pk,
        "probe_waiting": make_probe(team, version).pk,
        "question_id": asked.pk,
        "question_waiting": ask(run).pk,
        "rescoring_id": done.pk,
        "rescoring_failed": failed.pk,
        "rescoring_waiting": start(run).pk,
        "report_id": report.pk,
    }


def fill_costs(team: Team, owner: User) -> Known:
    """A run that was resumed, a judge without a price, and prices that changed."""
    run = make_costly_run(team, name="costly", owner=owner, attempt=2)
    add_attempt(run, 0, 1)
    add_attempt(run, 1.2, 2, number=2)
    tokens = {"judge/quality/calls": 200, "judge/quality/input_tokens": 1_200_000}
    add_steps(run, *({"hour": n / 10, "reward/mean": n / 20, **tokens} for n in (1, 8)))
    set_price(team, 3.5)
    set_price(team, 2.95, day=date(2026, 2, 1))
    set_price(team, 2, unit="input_tokens", name="gpt-small", currency="USD")
    usage = {"gpt-small": {"calls": 80, "input_tokens": 900_000}}
    add_judge_use(usage, team=team, user=owner, source="question")
    return {"costly": run.pk}
