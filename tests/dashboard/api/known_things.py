"""One of each thing that an address can name."""

from uuid import UUID

from django.core.files.uploadedfile import SimpleUploadedFile

from dashboard.accounts.members import invite
from dashboard.accounts.models import Membership, Team, User
from dashboard.datasets.imports import start_job, store_upload
from dashboard.datasets.mapping import Mapping
from dashboard.runs.models import Run, Sweep
from dashboard.supervision.external_runs import Opening, open_run
from dashboard.transfers.models import RunImport
from tests.dashboard.alerts.factories import make_alert, make_rule
from tests.dashboard.analysis.probes.factories import make_probe, make_version
from tests.dashboard.analysis.questions.factories import ask
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.analysis.rescoring.factories import start
from tests.dashboard.api.asking import make_token, token_of
from tests.dashboard.completions.factories import make_checkpoint, make_group, make_run
from tests.dashboard.supervision.machines import make_worker

OPENING = Opening(key=UUID(int=1), name="known", tool="TRL")


def known_things(team: Team, user: User) -> dict[str, int | str]:
    run = make_run(team)
    make_group(run, step=1, prompt_index=0)
    file = SimpleUploadedFile("rows.jsonl", b'{"prompt": "1+1="}\n')
    upload = store_upload(team=team, user=user, file=file, dataset=None)
    job, _ = start_job(
        upload=upload, mapping=Mapping(prompt="prompt"), name="Rows", user=user
    )
    checkpoint = make_checkpoint(run)
    model = team.published_models.create(
        name="First", run=run, run_name=run.name, step=1, sha256="ab" * 32, num_bytes=1
    )
    run_import = RunImport.objects.create(team=team)
    assert run.dataset_version
    assert run.recipe_version
    return {
        "token_id": token_of(make_token(user, name="known")).pk,
        "run_id": run.pk,
        "external_id": open_run(OPENING, team=team, user=user)[0].pk,
        "step": 1,
        "prompt_index": 0,
        "file": "metrics.csv",
        "name": checkpoint.name,
        "dataset_id": run.dataset_version.dataset_id,
        "version_id": run.dataset_version_id,
        "job_id": job.pk,
        "upload_id": upload.pk,
        "rows_format": "jsonl",
        "recipe_id": run.recipe_version.recipe_id,
        "alert_id": make_alert(run, make_rule(team)).pk,
        "question_id": ask(run).pk,
        "rescoring_id": start(run).pk,
        "worker_id": make_worker().pk,
        "sweep_id": Sweep.objects.create(team=team, name="Rates").pk,
        "model_id": model.pk,
        "probe_id": make_probe(team, make_version(team)).pk,
        "report_id": make_report(team, user, "::table runs=1").pk,
        "import_id": run_import.pk,
        "suffix": "toml",
        "file_format": "jsonl",
        **known_of_team(team, user, run),
    }


def known_of_team(team: Team, user: User, run: Run) -> dict[str, int | str]:
    """What people set up."""
    by = Membership.objects.get(team=team, user=user)
    other = User.objects.create_user("known")
    return {
        "rule_id": make_rule(team, name="Known").pk,
        "member_id": Membership.objects.create(team=team, user=other).pk,
        "invitation_id": invite(by=by, role="member")[0].pk,
        "recipe_version_id": run.recipe_version_id or 0,
    }
