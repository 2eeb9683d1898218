"""Each judge request is sent once, even if a worker is lost."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from dashboard.analysis.rescoring.models import Rescoring
from dashboard.analysis.rescoring.results import read_columns
from dashboard.analysis.rescoring.services import folder_of
from dashboard.jobs.models import Job
from dashboard.jobs.queue import reap
from dashboard.jobs.tasks import clean
from tests.dashboard.analysis.rescoring.factories import (
    make_scored_run,
    see_through,
    start,
)
from tests.dashboard.completions.factories import make_recipe
from tests.dashboard.jobs.working import do, take
from tests.trainer.rewards.judge_server import Judging, judge_server


@pytest.fixture
def judging(monkeypatch) -> Iterator[Judging]:
    with judge_server() as server:
        monkeypatch.setenv("COHORT_JUDGE_HOSTS", server.url.split("/")[2])
        yield server


def rule(judging: Judging) -> dict[str, Any]:
    params = {
        "base_url": judging.url,
        "model": "m",
        "template": "{prompt} {completion}",
    }
    return {"name": "judge", "kind": "llm_judge", "params": params}


def test_it_judges_the_stored_conversations(team, judging):
    parts = {"data": {"rows": "rows.jsonl", "system_prompt": "Be brief."}}
    run = make_scored_run(team, num_steps=1, num_prompts=1, parts=parts)
    judging.usage = {"prompt_tokens": 20, "completion_tokens": 10}

    done = see_through(start(run, [rule(judging)], allows_judges=True))

    assert (done.state, done.error) == ("done", "")
    assert done.result["num_new"] == 4
    requests = {each["messages"][1]["content"] for each in judging.asked}
    assert len(requests) == 4
    (use,) = team.judge_uses.all()
    assert (use.source, use.target_id, use.run, use.model) == (
        "rescoring",
        done.pk,
        run,
        "m",
    )
    assert (use.calls, use.input_tokens, use.output_tokens) == (4, 80, 40)
    # As a run asks: the conversation with its roles, not the chat template's marks.
    assert all(
        "system: Be brief." in text and "user: 0+0?" in text for text in requests
    )


def test_a_lost_worker_repeats_no_judge_request(team, judging):
    run = make_scored_run(team, num_steps=2, num_prompts=2)
    rescoring = start(run, [rule(judging)], allows_judges=True)
    claim = take("rescoring")

    def killed_behind_the_first() -> bool:
        if Rescoring.objects.get(pk=rescoring.pk).scored.exists():
            raise SystemExit
        return False

    with pytest.raises(SystemExit):
        do(claim, is_shutting_down=killed_behind_the_first)
    num_requests = len(judging.asked)
    # The step is lost with its worker, but not what was paid for.
    rescoring.scored.all().delete()
    Job.objects.update(lease_until=Now() - timedelta(seconds=1))
    reap()

    done = see_through(rescoring)

    assert done.state == "done"
    # Steps repeat their completions here, so the second asks nothing new either.
    assert len(judging.asked) == num_requests == 8
    assert len(read_columns(done).completions) == 16


def test_judge_replies_are_deleted_at_the_end(team, judging):
    run = make_scored_run(team, num_steps=1, num_prompts=1)

    done = see_through(start(run, [rule(judging)], allows_judges=True))

    assert folder_of(done.pk).exists()
    clean()
    assert not folder_of(done.pk).exists()


def test_an_estimate_sends_no_judge_request(team, judging, alice_client):
    run = make_scored_run(team)
    version = make_recipe(team, name="judged", rules=[rule(judging)])

    page = alice_client.get(f"/alpha/rescorings/new?run={run.pk}&recipe={version.pk}")

    assert page.context["estimate"].num_calls == 24
    assert judging.asked == []
