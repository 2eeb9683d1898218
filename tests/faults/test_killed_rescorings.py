"""kill -9 of a worker in the middle of a rescoring: in the end each result once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db.models.functions import Now

from tests.faults.workers import Worker, wait_for

# Models are imported when a fixture runs: this file is read before Django is set up.
if TYPE_CHECKING:
    from dashboard.accounts.models import Team

pytestmark = pytest.mark.faults
NUM_STEPS = 600


def test_a_killed_rescoring_goes_on_where_it_was(
    transactional_db: None, team: Team, start_worker: Callable[..., Worker]
) -> None:
    from dashboard.rescoring.columns import read_columns
    from dashboard.rescoring.models import RescoredStep, Rescoring, State
    from dashboard.rescoring.services import reap, ring_workers
    from tests.dashboard.rescoring.factories import RIGHT, make_scored_run, start

    rescoring = start(make_scored_run(team, num_steps=NUM_STEPS, num_prompts=1))

    def is_under_way() -> bool:
        return RescoredStep.objects.count() > 3

    def is_done() -> bool:
        rescoring.refresh_from_db()
        assert rescoring.state != State.FAILED, rescoring.error
        return rescoring.state == State.FINISHED

    first = start_worker("one", queue="default")
    ring_workers()
    wait_for(is_under_way, what="the first steps")
    first.kill_all()
    kept = list(RescoredStep.objects.order_by("step").values_list("pk", flat=True))
    assert len(kept) < NUM_STEPS, "it was done before it was killed"

    # As after a minute of silence, which the beat looks for.
    Rescoring.objects.update(lease_until=Now() - timedelta(seconds=1))
    assert reap() == 1
    start_worker("two", queue="default")
    ring_workers()

    wait_for(is_done, what="the rescoring")
    found = read_columns(rescoring).completions
    places = {(each["step"], each["prompt"], each["position"]) for each in found}
    assert len(places) == len(found) == rescoring.num_done == 4 * NUM_STEPS
    assert found["new"].tolist() == found["old"].tolist()
    stored = RescoredStep.objects.order_by("step").values_list("pk", flat=True)
    assert list(stored)[: len(kept)] == kept
    assert RIGHT["name"] == rescoring.result["rules"][0]["name"]


def test_a_stop_reaches_a_worker_at_its_scoring(
    transactional_db: None, team: Team, start_worker: Callable[..., Worker]
) -> None:
    from dashboard.rescoring.models import Rescoring, State
    from dashboard.rescoring.services import request_stop, ring_workers
    from tests.dashboard.rescoring.factories import make_scored_run, start

    sleeping = {
        "name": "code",
        "kind": "python_function",
        "params": {
            "source": "import time\n\ndef reward(completion, answer):\n"
            "    time.sleep(20)\n    return 1.0\n",
            "timeout_seconds": 25,
        },
    }
    rescoring = start(make_scored_run(team, num_steps=2), [sleeping])

    def is_in(state: str) -> Callable[[], bool]:
        return lambda: Rescoring.objects.filter(pk=rescoring.pk, state=state).exists()

    start_worker("one", queue="default")
    ring_workers()
    wait_for(is_in(State.RUNNING), what="a worker")
    request_stop(rescoring=rescoring, user=None)

    # Sooner than the first step's eight completions of 20 s each would be.
    wait_for(is_in(State.STOPPED), what="its end", seconds=60)
