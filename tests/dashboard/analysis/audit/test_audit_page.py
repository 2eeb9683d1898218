"""The audit page of a run: changes, missing signals and example completions."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboard.accounts.models import Team
from dashboard.analysis.audit.completions import study
from dashboard.analysis.audit.findings import Audit, audit
from dashboard.analysis.audit.texts import choose_steps
from dashboard.runs.charts.chart import LARGEST
from dashboard.runs.models import Evaluation, Run
from dashboard.samples.models import Group
from dashboard.samples.search.indexing import delete_completions_of
from tests.dashboard.samples.factories import START, make_group, make_run, make_steps
from tests.dashboard.samples.stored import change_completions

pytestmark = pytest.mark.django_db
CHANGED = 21  # the first step of another behaviour
FINDINGS = (
    "held-out:fresh",
    "length",
    "entropy",
    "kl",
    "duplicates",
    "shared",
    "repetition",
    "by-length",
    "rules",
)


def wave(step: int, size: float = 0.01) -> float:
    """Something that varies from step to step, around 0."""
    return size * math.sin(2.4 * step)


@pytest.fixture
def run(team: Team) -> Run:
    """Of 40 steps, whose policy begins to game its reward at step 21."""
    run = make_run(team, "clever-otter-1", num_steps=40)
    steps = range(1, 41)
    late = [step >= CHANGED for step in steps]
    make_steps(
        run,
        {
            "reward/mean": [
                0.3 + 0.5 * is_late + wave(s)
                for s, is_late in zip(steps, late, strict=True)
            ],
            "completion/mean_length": [
                100 + 80 * is_late + wave(s, 3)
                for s, is_late in zip(steps, late, strict=True)
            ],
            "entropy": [
                1.0 - 0.4 * is_late + wave(s)
                for s, is_late in zip(steps, late, strict=True)
            ],
            "kl/mean": [
                0.001 * s + 0.02 * max(0, s - 20) + wave(s, 1e-4) for s in steps
            ],
        },
    )
    for step, is_late in zip(steps, late, strict=True):
        add_evaluation(run, step, 0.3 - 0.2 * is_late + wave(step))
        for prompt in (0, 1):
            make_group(run, step, prompt, **group_of(step, prompt, is_late=is_late))
    return run


def add_evaluation(run: Run, step: int, mean: float, name: str = "fresh") -> None:
    Evaluation.objects.create(
        run=run,
        step=step,
        name=name,
        attempt=1,
        seq=step,
        time=START,
        metrics={f"eval/{name}/mean": mean},
    )


def group_of(step: int, prompt: int, *, is_late: bool) -> dict[str, Any]:
    own = [f"w{step}p{prompt}c{i}n{n}" for i in range(4) for n in range(6)]
    texts = [" ".join(own[6 * i : 6 * i + 6]) for i in range(4)]
    if is_late:
        texts = ["Surely the answer is right here. " * 2 + texts[0]] * 4
    rewards = (1.2, 0.2, 1.0, 0.1) if step % 2 else (0.2, 1.2, 0.1, 1.0)
    return {"texts": texts, "rewards": rewards}


def page(client: Client, run: Run, query: str = "", status: int = 200) -> str:
    response = client.get(reverse("run_health", args=["alpha", run.pk]) + query)
    assert response.status_code == status
    return re.sub(r"\s+", " ", response.content.decode())


def found(run: Run, **where: int) -> Audit:
    return audit(run, **where)


def statuses(audit: Audit) -> dict[str, str]:
    return {each.signal.key: each.status for each in audit.findings}


def test_each_signal_of_reward_hacking_is_found_at_its_step(run: Run) -> None:
    audit = found(run)

    assert tuple(statuses(audit)) == FINDINGS
    for key in (
        "held-out:fresh",
        "length",
        "entropy",
        "duplicates",
        "shared",
        "repetition",
    ):
        finding = audit.find(key)
        assert finding is not None
        assert finding.status == "suspect", key
        assert finding.change is not None
        assert finding.change.step == CHANGED, key
    kl = audit.find("kl")
    assert kl is not None
    assert kl.status == "suspect"
    assert kl.change is not None
    assert abs(kl.change.step - CHANGED) <= 1
    assert kl.change.after.mean == pytest.approx(2.1, abs=0.05)
    assert audit.num_suspect >= 7


def test_a_gap_is_of_the_rewards_since_the_evaluation_before(team: Team) -> None:
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.01 * s for s in range(1, 301)]})
    # Before the first step there is no reward to be compared with.
    evaluated = [0, 4, 6, *range(20, 301, 20)]
    for step in evaluated:
        add_evaluation(run, step, 0.5)

    finding = found(run).find("held-out:fresh")

    assert finding is not None
    assert finding.signal.series is not None
    assert finding.signal.series.steps.tolist() == evaluated[1:]
    gaps = finding.signal.series.values.tolist()
    assert gaps[0] == pytest.approx((0.01 + 0.02 + 0.03 + 0.04) / 4 - 0.5)
    assert gaps[1] == pytest.approx((0.05 + 0.06) / 2 - 0.5)
    assert gaps[2] == pytest.approx(0.01 * sum(range(11, 21)) / 10 - 0.5)


def test_a_change_in_the_other_direction_is_not_suspicious(team: Team) -> None:
    run = make_run(team)
    entropy = [1.0 + 0.4 * (s > 20) + wave(s) for s in range(40)]
    make_steps(run, {"entropy": list(entropy)})

    audit = found(run)

    assert statuses(audit)["entropy"] == "otherwise"
    assert audit.num_suspect == 0
    assert audit.num_judged == 1


def test_unmeasured_signals_are_missing_or_have_few_points(
    alice_client: Client, team: Team
) -> None:
    empty = make_run(team, num_steps=5)
    few = make_run(team)
    make_steps(few, {"entropy": [1.0] * 11})

    html = page(alice_client, empty)
    of_few = found(few).find("entropy")

    assert found(empty).num_judged == 0
    assert set(re.findall(r'data-status="(\w+)"', html)) == {"unmeasured"}
    assert "reference.kind" in html
    missing = [one.signal.missing for one in found(empty).findings]
    assert all(missing)
    assert "entropy" in " ".join(missing)
    Run.objects.filter(pk=empty.pk).update(state="queued", finished_at=None)
    html = page(alice_client, empty)
    assert "data-hash data-status" not in html
    assert "step 12." in html
    assert of_few is not None
    assert (of_few.status, of_few.num_points) == ("few", 11)
    assert "11 of the 12 points" in page(alice_client, few)


def test_the_page_shows_the_compared_windows_and_counts(
    alice_client: Client, bob_client: Client, charlie_client: Client, run: Run
) -> None:
    html = page(alice_client, run)

    audit = found(run)
    assert (audit.last_step, audit.num_steps, audit.num_between) == (40, 40, 40)
    assert audit.num_completions == 320
    assert f'data-checks="9" data-suspect="{audit.num_suspect}"' in html
    shown = re.findall(r'class="check" data-hash data-status="(\w+)"', html)
    assert len(shown) == 9
    assert shown == sorted(shown, key=lambda status: status != "suspect")
    assert "steps 16–20" in html
    assert 'completions/?first_step=21&amp;last_step=25&amp;surprise=near"' in html
    assert "surely the answer" in html
    assert "100 % <span" in html
    # Another time its texts are not read again.
    with CaptureQueriesContext(connection) as queries:
        page(alice_client, run)
    assert not [q for q in queries if "samples_groupcompletions" in q["sql"]]

    given = page(alice_client, run, "?at=11&width=3")

    assert "steps 8–10" in given
    length = found(run, at=11, width=3).find("length")
    assert length is not None
    assert length.chance is None  # no one has looked for the clearest place
    assert 'health/length/?at=11&amp;width=3"' in given
    early = page(alice_client, run, "?at=2")
    assert "before or after step 2." in early
    assert 'id="length-change"' not in early
    narrow = alice_client.get(f"/alpha/runs/{run.pk}/health/?width=1")
    assert "width" in narrow.context["audit_form"].errors

    # It is the team's own.
    examples = reverse("run_health_examples", args=["alpha", run.pk, "length"])
    page(bob_client, run)
    page(charlie_client, run, status=404)
    assert charlie_client.get(examples).status_code == 404


def test_rules_are_compared_in_pairs(team: Team) -> None:
    rules = [
        {"name": name, "kind": "exact_answer", "weight": 1.0, "params": {}}
        for name in ("answer", "format", "style")
    ]
    run = make_run(team, rules=rules)
    for step in range(1, 31):
        names = ["answer", "format", "style"]
        rewards = (1.0, 2.0, 3.0, 4.0)
        group = make_group(run, step, 0, rewards=rewards, rule_names=names)
        for place in range(4):
            scores = [place, place, -place if step > 15 else place]
            change_completions(group, position=place, rule_scores=scores)

    finding = found(run).find("rules")

    assert finding is not None
    assert finding.signal.title.endswith("answer and style")
    assert [line.name for line in finding.signal.lines] == [
        "answer and style",
        "format and style",
        "answer and format",
    ]
    assert finding.status == "suspect"
    assert finding.change is not None
    assert (finding.change.before.mean, finding.change.after.mean) == (0.0, 1.0)


def test_a_penalty_disagrees_where_it_orders_as_a_rule_does(team: Team) -> None:
    rules = [
        {"name": "answer", "kind": "exact_answer", "weight": 1.0, "params": {}},
        {"name": "style", "kind": "exact_answer", "weight": -0.5, "params": {}},
    ]
    run = make_run(team, rules=rules)
    names = ["answer", "style"]
    group = make_group(run, 1, 0, rewards=(1.0, 2.0, 3.0, 4.0), rule_names=names)
    for place in range(4):
        change_completions(group, position=place, rule_scores=[place, place])

    (disagree,) = study(run).disagreements().values()

    assert disagree.values.tolist() == [1.0]


def test_one_huge_reward_does_not_change_later_gaps(team: Team) -> None:
    run = make_run(team)
    make_steps(run, {"reward/mean": [1e300 if s == 2 else 0.25 for s in range(1, 41)]})
    for step in range(2, 41, 2):
        add_evaluation(run, step, 0.5)

    finding = found(run).find("held-out:fresh")

    assert finding is not None
    assert finding.signal.series is not None
    values = finding.signal.series.values
    assert values.tolist() == [pytest.approx(LARGEST / 2)] + [-0.25] * 19


def test_an_import_without_lengths_is_audited(alice_client: Client, team: Team) -> None:
    names = ["<b>bold</b>", 'a "quoted" & one']
    run = make_run(
        team,
        config={
            "reward": {
                "recipe": {"rules": [{"name": n, "weight": 1.0} for n in names]},
                "right_from": None,
            },
            "checkpoint": {"keep_last": 0},
        },
        source={"tools": ["trl"], "num_files": 1, "num_bytes": 9},
        dataset_version=None,
        recipe_version=None,
    )
    for step in range(1, 14):
        group = make_group(run, step, 0, rewards=(0.0, 1.0), rule_names=names)
        change_completions(group, num_tokens=None, rule_scores=[1.0, 0.0])
        change_completions(group, position=0, rule_scores=[0.0, 1.0])
    make_group(run, 14, 0, rewards=())

    html = page(alice_client, run)

    assert statuses(found(run))["by-length"] == "missing"
    assert "&lt;b&gt;bold&lt;/b&gt; and a &quot;quoted&quot;" in html
    assert "<b>bold" not in html
    assert found(run).find("rules").status == "steady"  # type: ignore[union-attr]


def test_superseded_steps_do_not_count(run: Run) -> None:
    Group.objects.filter(run=run, step__gt=30).update(superseded_by=2)

    chosen = choose_steps(run)

    assert max(chosen.steps) == 30
    assert chosen.num_between == 30


def test_the_time_limit_is_shown_with_the_steps_read(
    alice_client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(study(run, seconds=0.0).texts) == [1]
    hurried = partial(study, seconds=0.0)
    monkeypatch.setattr("dashboard.analysis.audit.findings.study", hurried)

    html = page(alice_client, run)

    hurried_audit = found(run)
    assert (hurried_audit.num_steps, hurried_audit.num_chosen) == (1, 40)
    assert "1 of 40 steps" in html


def test_a_long_run_is_sampled_at_sixty_steps(team: Team) -> None:
    run = make_run(team)
    for step in range(0, 500, 5):
        make_group(run, step, 0, rewards=(1.0,))

    chosen = choose_steps(run)

    assert len(chosen.steps) <= 60
    assert len(chosen.steps) >= 50
    assert chosen.num_between == 496


def test_ten_completions_of_each_side_are_shown(alice_client: Client, run: Run) -> None:
    address = reverse("run_health_examples", args=["alpha", run.pk, "length"])

    html = re.sub(r"\s+", " ", alice_client.get(address).content.decode())

    assert "Before: steps 16–20" in html
    assert "After: steps 21–25" in html
    assert html.count("10 completions of 10 groups") == 2
    found = re.findall(r"groups/(\d+)/\d+/#completion-\d", html)
    assert len(found) == 20
    assert sum(int(step) < CHANGED for step in found) == 10
    assert {int(step) for step in found} == set(range(16, 26))
    again = re.sub(r"\s+", " ", alice_client.get(address).content.decode())
    assert re.findall(r"groups/(\d+)/\d+/#completion-\d", again) == found


def test_the_same_prompts_are_shown_where_both_sides_sampled_ten(
    alice_client: Client, run: Run
) -> None:
    for step in (16, 20, 21, 25):
        for prompt in range(10, 16 if step in (16, 21) else 24):
            make_group(run, step, prompt)
    address = reverse("run_health_examples", args=["alpha", run.pk, "length"])

    found, again = (
        re.findall(r"groups/(\d+)/(\d+)/#completion-\d", page.text)
        for page in (alice_client.get(address), alice_client.get(address))
    )

    before, after = found[:10], found[10:]
    assert len(after) == 10
    assert [prompt for _, prompt in before] == [prompt for _, prompt in after]
    assert len({prompt for _, prompt in before}) == 10
    assert max(int(step) for step, _ in before) < CHANGED
    assert min(int(step) for step, _ in after) >= CHANGED
    assert again == found


def test_all_completions_are_shown_if_there_are_fewer_than_ten(
    alice_client: Client, team: Team
) -> None:
    run = make_run(team)
    make_steps(run, {"entropy": [1.0 + wave(s) for s in range(40)]})
    make_group(run, 20, 0, rewards=(1.0, 2.0))
    finding = found(run).find("entropy")
    assert finding is not None
    assert finding.change is not None
    address = reverse("run_health_examples", args=["alpha", run.pk, "entropy"])

    html = alice_client.get(address + "?at=20&width=3").content.decode()

    assert "0 completions of 0 groups" in html
    assert "2 completions of 1 group<" in html


def test_a_signal_with_nothing_to_compare_is_not_found(
    alice_client: Client, team: Team
) -> None:
    run = make_run(team)

    for signal in ("unknown", "held-out"):
        address = reverse("run_health_examples", args=["alpha", run.pk, signal])
        assert alice_client.get(address).status_code == 404, signal


def test_metric_signals_remain_without_completions(
    alice_client: Client, run: Run
) -> None:
    delete_completions_of(run, keep=())

    response = alice_client.get(reverse("run_health", args=["alpha", run.pk]))
    assert response.status_code == 200
    assert 'id="length"' in response.text
    examples = reverse("run_health_examples", args=["alpha", run.pk, "length"])
    assert alice_client.get(examples).status_code == 200


def test_the_addresses_of_audit_and_alerts_lead_to_health(
    alice_client: Client, charlie_client: Client, team: Team
) -> None:
    at = f"/alpha/runs/{make_run(team).pk}"

    for old, new in {
        "audit/?at=11&width=3": "health/?at=11&width=3",
        "audit/length/?at=11": "health/length/?at=11",
        "alerts/?state=resolved": "health/?state=resolved",
        "alerts/": "health/",
    }.items():
        response = alice_client.get(f"{at}/{old}")
        assert response.status_code == 301
        assert response["Location"] == f"{at}/{new}"
        assert charlie_client.get(f"{at}/{old}").status_code == 404
