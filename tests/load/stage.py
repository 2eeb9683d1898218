"""What a load is put on: a run, its viewers and its supervisor.

In the database of the environment, each in a process of its own:

    python -m tests.load.stage prepare PACE          prints a Scene
    python -m tests.load.stage prepare-training STARTER NUM_STEPS NUM_PROMPTS
                                                     the same, to train
    python -m tests.load.stage supervise RUN [PACE]  from the claim to the run's end
    python -m tests.load.stage truth RUN FILE        what the database holds of the run
    python -m tests.load.stage token                 prints one of the first owner
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

from tests.load.steady_trainer import Pace

if TYPE_CHECKING:
    from dashboard.accounts.models import Team, User
    from dashboard.runs.models import Run
    from dashboard.runs.queries import RunDirectory

NUM_VIEWERS = 20  # more users, since one user may not open all pages of a crowd
TRAINER = Path(__file__).parent / "steady_trainer.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A run for `supervise`, and cookies of its viewers."""

    run_id: int
    team: str
    cookies: tuple[str, ...]  # first: of the user who launched it
    folder: str  # where its trainer writes

    @property
    def cookie(self) -> str:
        return self.cookies[0]

    @property
    def page(self) -> str:
        return f"/{self.team}/runs/{self.run_id}/"


def set_scene(team: Team, user: User, **parts: object) -> Scene:
    from django.db import transaction

    from tests.dashboard.supervision.factories import Launcher

    with (
        transaction.atomic()
    ):  # otherwise a worker of this machine would claim it at once
        run = Launcher(team, user)(**parts)
        return _set_aside(run, user)


def set_training(
    user: User, starter: Path, *, num_steps: int, num_prompts: int
) -> Scene:
    """A run of the starter model in its own team, with only steps."""
    from django.db import transaction

    from dashboard.accounts.models import Membership, Role, Team
    from dashboard.supervision.starter import launch_starter_run

    with transaction.atomic():
        slug = f"load-{Team.objects.count()}"
        team = Team.objects.create(slug=slug, name=slug)
        Membership.objects.create(team=team, user=user, role=Role.OWNER)
        run = launch_starter_run(team=team, user=user, folder=starter)
        assert run is not None
        run.config["evaluation"]["every_steps"] = 0
        run.config["checkpoint"]["every_steps"] = num_steps
        run.config["optim"]["num_steps"] = run.num_steps = num_steps
        run.config["rollout"]["prompts_per_step"] = num_prompts
        run.save()
        return _set_aside(run, user)


def _set_aside(run: Run, user: User) -> Scene:
    from dashboard.runs.models import Run

    # No worker of this machine may claim it.
    Run.objects.filter(id=run.id).update(on_hold=True)
    return scene_of(run, user)


def scene_of(run: Run, user: User) -> Scene:
    from dashboard.runs.queries import run_directory

    people = [user, *(_viewer_of(run.team, number) for number in range(NUM_VIEWERS))]
    folder = run_directory(run.id).attempt(1).path
    return Scene(
        run_id=run.id,
        team=run.team.slug,
        cookies=tuple(_cookie_of(person) for person in people),
        folder=str(folder),
    )


def _viewer_of(team: Team, number: int) -> User:
    from dashboard.accounts.models import Membership, Role, User

    user, _ = User.objects.get_or_create(username=f"viewer-{number}")
    Membership.objects.get_or_create(
        team=team, user=user, defaults={"role": Role.VIEWER}
    )
    return user


def _cookie_of(user: User) -> str:
    from django.conf import settings
    from django.test import Client

    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={client.cookies[name].value}"


def supervise_run(run_id: int, pace: Pace | None) -> None:
    """With the real supervisor; without a pace, also a real trainer."""
    from django.db import transaction

    from dashboard.runs.models import Run
    from dashboard.supervision.lease import claim_run
    from dashboard.supervision.process import trainer_command
    from dashboard.supervision.supervisor import supervise

    with transaction.atomic():
        Run.objects.filter(id=run_id).update(on_hold=False)
        claim = claim_run(run_id, "load")
    assert claim is not None, f"run {run_id} is not queued"

    def command(
        directory: RunDirectory, *, attempt: int, resume_from: Path | None
    ) -> list[str]:
        if pace is None:
            return trainer_command(directory, attempt=attempt, resume_from=resume_from)
        out = directory.attempt(attempt).path
        return [sys.executable, str(TRAINER), str(out), str(attempt), pace.as_json()]

    supervise(claim, is_shutting_down=lambda: False, command=command)


def read_truth(run_id: int) -> dict[str, Any]:
    """Data of a run that its viewers must have, from the tables."""
    from dashboard.runs.models import Run, Step

    run = Run.objects.get(id=run_id)
    steps = Step.objects.filter(run=run, superseded_by__isnull=True).order_by("step")
    return {
        "seq": run.seq,
        "attempt": run.attempt,
        "state": run.state,
        "last_step": run.last_step,
        "steps": {
            step.step: dict(zip(run.metric_names, step.values, strict=True))
            for step in steps
        },
    }


def main(what: str, *arguments: str) -> None:
    django.setup()
    if what == "prepare":
        [pace] = arguments
        num_steps = Pace(**json.loads(pace)).num_steps
        owner = _owner()
        team = owner.teams.order_by("id")[0]
        _print(set_scene(team, owner, optim={"num_steps": num_steps}))
    elif what == "prepare-training":
        starter, *sizes = arguments
        num_steps, num_prompts = map(int, sizes)
        scene = set_training(
            _owner(), Path(starter), num_steps=num_steps, num_prompts=num_prompts
        )
        _print(scene)
    elif what == "supervise":
        run_id, *paces = arguments
        supervise_run(int(run_id), Pace(**json.loads(paces[0])) if paces else None)
    elif what == "truth":
        run_id, path = arguments
        Path(path).write_text(json.dumps(read_truth(int(run_id))))
    elif what == "token":
        sys.stdout.write(_make_token(_owner()) + "\n")
    else:
        raise ValueError(f"{__doc__}\nNot {what!r}.")


def _make_token(owner: User) -> str:
    from dashboard.accounts.models import Membership
    from dashboard.api.auth import create_token

    membership = Membership.objects.filter(user=owner).order_by("id")[0]
    return create_token(
        membership=membership, name="load", scopes=["read", "write"], expires_at=None
    )[1]


def _owner() -> User:
    from dashboard.accounts.services import create_first_team

    return create_first_team()


def _print(scene: Scene) -> None:
    sys.stdout.write(json.dumps(asdict(scene)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
