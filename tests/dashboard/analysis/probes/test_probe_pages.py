"""Each warning of the reward editor and each figure of a test, as a page tells it."""

import re
from typing import Any

import pytest
from django.utils import timezone

from dashboard.analysis.probes import services
from dashboard.analysis.probes.models import Probe, ProbeGroup
from dashboard.datasets.models import DatasetVersion
from dashboard.runs.models import Run, RunState
from tests.dashboard.analysis.probes.factories import (
    completion,
    finish,
    make_probe,
    make_version,
    measured,
)
from tests.dashboard.rewards.editor import fields
from tests.dashboard.runs.launching import make_dataset, make_recipe, make_run
from tests.dashboard.runs.test_clone import _fields
from tests.dashboard.supervision.machines import make_worker

SCORES = "/alpha/rewards/scores"
NUMERIC = ("numeric_answer", {})


@pytest.fixture(scope="module")
def version(shared_team) -> DatasetVersion:
    return make_version(shared_team)


def words(answer: Any) -> str:
    text = answer.text.replace("<wbr>", "")
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_rules_that_always_agree_are_reported(alice_client, version):
    rules = NUMERIC, ("exact_answer", {"params-source": "whole"})
    pasted = {f"completion-{n}": f"{2 * n}\n---\nno" for n in range(3)}

    answer = alice_client.post(SCORES, fields(*rules, **pasted))

    assert [finding.kind for finding in answer.context["findings"]] == ["agree"]
    assert "exact_answer" in words(answer)


def test_baseline_completions_with_a_reward_are_reported_with_their_rows(
    alice_client, version
):
    version.rows.update(answer="5")
    for rule, expected in (
        (("length", {"params-maximum": "9"}), "An empty"),
        (("contains", {"params-phrases": "+"}), "A copy"),
        (("format_tags", {}), "Empty tags"),
        (NUMERIC, "“5” would earn 1"),
    ):
        answer = alice_client.post("/alpha/rewards/rows", fields(rule))

        assert expected in words(answer)
        assert 'data-finding="trivial"' in answer.text
        assert answer.context["findings"][0].positions[0] == 0


def test_a_completion_has_its_scores_total_advantage_and_error(alice_client, version):
    rules = NUMERIC, ("length", {"weight": "0.5"}), ("countdown", {})
    pasted = {"completion-2": "4\n---\nno"}

    answer = alice_client.post(SCORES, fields(*rules, **pasted))

    shown = words(answer)
    first = answer.context["bench"].groups[2].tried[0]
    assert first.trial.score.rules == {
        "numeric_answer": 1.0,
        "length": 1.0,
        "countdown": None,
    }
    assert (first.total, first.shown_total) == (1.5, None)
    assert "&quot;numbers&quot;" in shown
    assert re.search(r" – 0\.707 ", shown)
    took = r"(?:&lt; )?\d+ ms"
    assert re.search(rf"numeric_answer {took} length {took} ", shown)


def test_a_probe_page_shows_its_metrics(alice_client, team, version):
    probe = make_probe(team, version)
    found = measured(frac_truncated=0.125, num_unscored=7)
    finish(num_done=2, metrics=found)

    page = words(alice_client.get(f"/alpha/probes/{probe.pk}/"))

    for expected in (
        *("pass@1", "0.25", "pass@8", "0.8"),
        *("0.3 95%: 0.25 to 0.35", "40 38 and 96", "0.125", "without a score 7"),
        *("A step of 2 × 2 2 s", "10,240", "1,000 tokens/s 1 s"),
        *("Scoring 100 ms", "900 ms", "477 MiB", "On cpu (2 threads)"),
    ):
        assert expected in page


@pytest.fixture
def tried(team, version) -> Probe:
    """A try of a row, with an episode."""
    probe = make_probe(team, version, positions=[3], is_sample=True)
    turns = [
        {"author": "policy", "start": 0, "end": 2},
        {"author": "environment", "start": 2, "end": 3},
        {"author": "policy", "start": 3, "end": 5},
    ]
    episode = completion("23+26", 1.0, end_reason="done", turns=turns)
    ProbeGroup.objects.create(
        probe=probe, position=3, completions=[episode, completion("no", 0.0)]
    )
    return probe


def test_a_try_of_a_row_shows_its_turns(alice_client, tried):
    finish(num_done=1, metrics=measured())

    page = alice_client.get(f"/alpha/probes/{tried.pk}/").text

    assert re.findall(r'data-turn="(\w+)"', page) == [
        "policy",
        "environment",
        "policy",
    ]
    assert "3+3?" in words(alice_client.get(f"/alpha/probes/{tried.pk}/"))
    assert "data-verdict" not in page  # a row tells nothing of a run


def test_the_editor_scores_what_the_policy_wrote(alice_client, version, tried):
    form = fields(NUMERIC, source="probe", probe=str(tried.pk), dataset=str(version.pk))

    bench = alice_client.post(SCORES, form).context["bench"]

    assert [one.text for one in bench.groups[0].tried] == ["23\n26", "no"]


def test_a_probe_page_shows_the_verdict(alice_client, team, version):
    probe = make_probe(team, version)
    none = {"signal/share": 0.0, "signal/high": 0.1, "pass@1": 0.0, "pass@8": 0.0}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "can learn", "80% of groups"),
        ({"signal/share": 0.02}, "may learn little", "2% of groups"),
        (none, "cannot learn", "none of 32"),
    ]
    for changes, verdict, reason in cases:
        found = measured(**changes)
        finish(num_done=2, metrics=found)

        page = words(alice_client.get(f"/alpha/probes/{probe.pk}/"))

        assert verdict in page
        assert reason in page


@pytest.mark.parametrize(
    ("share", "group_size", "status"),
    [(0.0, 8, 422), (0.5, 8, 302), (0.0, 16, 302)],  # 16: not what was probed
)
def test_a_launch_that_cannot_learn_needs_confirmation(
    alice_client, team, share, group_size, status
):
    form = {
        "name": "otter",
        "model": "other",
        "model_other": "org/model",
        "dataset": make_dataset(team).pk,
        "recipe": make_recipe(team).pk,
    }
    assert alice_client.post("/alpha/runs/new/probe", form).status_code == 302
    found = measured(**{"signal/share": share, "signal/high": 0.1, "pass@1": 0.0})
    finish(num_done=2, metrics=found)

    form["rollout.group_size"] = group_size

    assert alice_client.post("/alpha/runs/new", form).status_code == status
    confirmed = alice_client.post("/alpha/runs/new", form | {"confirmed": "on"})
    assert confirmed.status_code == 302


@pytest.fixture
def finished(team, version) -> Probe:
    probe = make_probe(team, version)
    finish(num_done=2, metrics=measured())
    return probe


def test_a_probes_page_gives_a_verdict_and_its_numbers(alice_client, finished):
    page = alice_client.get(f"/alpha/probes/{finished.pk}/").content.decode()

    assert "80% of groups" in page
    assert "95%: 0.65 to 0.9" in page
    assert "2 s" in page
    assert "hx-trigger" not in page.split('id="probe-body"')[1].split("</main>")[0]


def test_a_failed_probe_shows_its_error(alice_client, finished):
    finish(state="failed", metrics={}, error="too long")

    page = alice_client.get(f"/alpha/probes/{finished.pk}/").content.decode()

    assert "too long" in page
    assert "Verdict" not in page


def test_an_ended_test_loads_its_completions(alice_client, finished):
    address = f"/alpha/probes/{finished.pk}/progress?short=1"

    page = alice_client.get(address).content.decode()

    assert 'hx-target="#samples"' in page
    finish(state="queued")
    assert 'hx-trigger="every 1s"' in alice_client.get(address).content.decode()


def test_probes_are_listed_with_their_verdicts(alice_client, finished):
    page = alice_client.get("/alpha/probes/").content.decode()

    assert f"/alpha/probes/{finished.pk}/" in page
    assert "can learn" in page


def test_a_probe_is_stopped(alice_client, team, version):
    probe = make_probe(team, version)

    answer = alice_client.post(f"/alpha/probes/{probe.pk}/stop")

    assert answer.status_code == 302
    probe.refresh_from_db()
    assert probe.state == "cancelled"


def test_a_launch_form_is_probed_unsaved(alice_client, team, version):
    recipe = make_recipe(team)
    page = alice_client.get("/alpha/runs/new")
    form = page.context["form"]
    data = {
        **form.texts,
        "name": "first",
        "model": "",
        "model_other": "org/model",
        "dataset": str(version.pk),
        "recipe": str(recipe.pk),
        "rollout.prompts_per_step": "4",
        "data.num_eval_rows": "0",
    }

    answer = alice_client.post("/alpha/runs/new/probe", data)

    probe = Probe.objects.get()
    assert answer.url == f"/alpha/probes/{probe.pk}/"
    assert probe.recipe_version == recipe
    assert probe.config["rollout"]["prompts_per_step"] == 4
    assert (len(probe.positions), probe.num_samples) == (6, 8)  # all rows; G
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("fits_beside", "seconds_left", "starts"),
    [
        (True, 1_200.0, "within 15 s"),
        (False, 1_200.0, "in about 20 min"),
        (False, None, "when it ends"),
    ],
)
def test_the_launch_form_says_when_a_test_starts(
    alice_client, team, version, monkeypatch, fits_beside, seconds_left, starts
):
    monkeypatch.setattr(services, "fits_beside", lambda _config: fits_beside)
    monkeypatch.setattr(services, "seconds_until_free", lambda: seconds_left)
    make_recipe(team)
    fields = _fields(alice_client.get("/alpha/runs/new").text)
    fields |= {"model": "", "model_other": "org/model"}
    url = "/alpha/runs/new/summary"
    worker = make_worker()

    free = alice_client.post(url, fields)
    make_run(
        team,
        "busy",
        dataset=version,
        recipe=make_recipe(team, "other"),
        state=RunState.RUNNING,
        worker=worker.name,
        lease_until=timezone.now(),
    )
    busy = alice_client.post(url, fields)

    assert free.context["test_wait"] == ""
    assert worker.name in busy.context["test_wait"]
    assert starts in busy.context["test_wait"]
    assert "data-test-wait" in busy.text


def test_an_invalid_launch_form_starts_no_probe(alice_client):
    answer = alice_client.post("/alpha/runs/new/probe", {"name": "x"})

    assert answer.status_code == 422
    assert not Probe.objects.exists()
