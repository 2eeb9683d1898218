"""The audit page of a run: changes, missing signals and example completions."""

import math
import re
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.analysis.audit.completions import study
from dashboard.analysis.audit.findings import Audit, audit
from dashboard.analysis.audit.texts import choose_steps, read_groups
from dashboard.completions.models import Group
from dashboard.completions.search.indexing import delete_completions_of
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run, make_steps
from tests.dashboard.completions.stored import change_completions
from tests.dashboard.noted_sql import noting_sql

CHANGED = 21  # the first step of another behaviour
KEYS = ("length", "entropy", "kl", "duplicates", "repetition")


def wave(step: int, size: float = 0.01) -> float:
    """Something that varies from step to step, around 0."""
    return size * math.sin(2.4 * step)


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    """Of 40 steps, whose policy begins to game its reward at step 21."""
    run = make_run(shared_team, "clever-otter-1", num_steps=40)
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
        for prompt in (0, 1):
            make_group(run, step, prompt, **group_of(step, prompt, is_late=is_late))
    return run


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


def statuses(audit: Audit) -> dict[str, str]:
    return {each.signal.key: each.status for each in audit.findings}


def test_each_changed_signal_has_its_step(run):
    found = audit(run)

    assert statuses(found) == dict.fromkeys(KEYS, "changed")
    for key in ("length", "entropy", "duplicates", "repetition"):
        finding = found.find(key)
        assert finding is not None
        assert finding.change is not None
        assert (finding.change.before.first, finding.change.before.last) == (1, 10)
        assert (finding.change.after.first, finding.change.after.last) == (31, 40)
        assert finding.step is not None
        assert CHANGED <= finding.step < CHANGED + 5, key


def test_a_small_change_is_not_reported_however_clear(team):
    run = make_run(team)
    make_steps(run, {"completion/mean_length": [25.1 - 0.025 * s for s in range(40)]})

    found = audit(run).find("length")

    assert found is not None
    assert found.change is not None
    assert found.change.is_clear
    assert found.status == "steady"


def test_unmeasured_signals_are_missing_or_have_few_points(alice_client, team):
    empty = make_run(team, num_steps=5)
    few = make_run(team)
    make_steps(few, {"entropy": [1.0] * 11})

    html = page(alice_client, empty)
    of_few = audit(few).find("entropy")

    assert set(re.findall(r'data-status="(\w+)"', html)) == {"unmeasured"}
    assert 'data-why="few"' in html
    assert "reference.kind" in html
    assert all(one.signal.missing for one in audit(empty).findings)
    assert of_few is not None
    assert (of_few.status, of_few.num_points) == ("few", 11)
    assert "11 of the 24 points" in page(alice_client, few)


def test_the_page_shows_the_verdict_and_the_compared_windows(
    alice_client, bob_client, charlie_client, run
):
    html = page(alice_client, run)

    found = audit(run)
    assert (found.last_step, found.num_steps, found.num_between) == (40, 40, 40)
    assert found.num_completions == 320
    assert 'data-verdict="unknown" data-why="no_rule"' in html
    assert "health/verdict/" in html
    shown = re.findall(r'class="check" data-hash data-status="(\w+)"', html)
    assert shown == ["changed"] * 5
    assert "steps 31–40" in html
    assert 'completions/?first_step=31&amp;last_step=40&amp;surprise=near"' in html
    # Another time its texts are not read again.
    with noting_sql() as queries:
        page(alice_client, run)
    assert queries
    assert not [sql for sql in queries if "samples_groupcompletions" in sql]

    # It is the team's own.
    page(bob_client, run)
    page(charlie_client, run, status=404)
    for signal in ("verdict", "length"):
        examples = reverse("run_health_examples", args=["alpha", run.pk, signal])
        assert alice_client.get(examples).status_code == 200
        assert charlie_client.get(examples).status_code == 404


def test_an_import_without_lengths_is_audited(alice_client, team):
    names = ["<b>accuracy</b>", "format"]
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
    rising = [0.01 * s + wave(s) for s in range(40)]
    make_steps(run, {"reward/mean": list(rising), f"reward/{names[0]}/mean": rising})
    for step in range(1, 14):
        group = make_group(run, step, 0, rewards=(0.0, 1.0), rule_names=names)
        change_completions(group, num_tokens=None, rule_scores=[1.0, 0.0])
    make_group(run, 14, 0, rewards=())

    html = page(alice_client, run)

    found = audit(run)
    assert statuses(found)["length"] == "missing"
    assert found.verdict.why == "rises"
    assert "&lt;b&gt;accuracy&lt;/b&gt;" in html
    assert "<b>accuracy" not in html


def test_superseded_steps_do_not_count(run):
    Group.objects.filter(run=run, step__gt=30).update(superseded_by=2)

    chosen = choose_steps(run)

    assert max(chosen.steps) == 30
    assert chosen.num_between == 30


def test_the_time_limit_is_shown_with_the_steps_read(alice_client, run, monkeypatch):
    assert list(study(run, seconds=0.0).texts) == [1]
    hurried = partial(study, seconds=0.0)
    monkeypatch.setattr("dashboard.analysis.audit.findings.study", hurried)

    html = page(alice_client, run)

    hurried_audit = audit(run)
    assert (hurried_audit.num_steps, hurried_audit.num_chosen) == (1, 40)
    assert "1 of 40 steps" in html


def test_a_long_run_is_sampled_at_sixty_steps(team):
    run = make_run(team)
    for step in range(0, 500, 5):
        make_group(run, step, 0, rewards=(1.0,))

    chosen = choose_steps(run)

    assert len(chosen.steps) <= 60
    assert len(chosen.steps) >= 50
    assert chosen.num_between == 496


def test_ten_completions_of_each_side_are_shown(alice_client, run):
    address = reverse("run_health_examples", args=["alpha", run.pk, "length"])

    html = re.sub(r"\s+", " ", alice_client.get(address).content.decode())

    assert "Before: steps 1–10" in html
    assert "After: steps 31–40" in html
    assert html.count("10 completions of 20 groups") == 2
    found = re.findall(r"groups/(\d+)/\d+/#completion-\d", html)
    assert len(found) == 20
    assert sum(int(step) < CHANGED for step in found) == 10
    assert {int(step) for step in found} == {*range(1, 11), *range(31, 41)}
    again = re.sub(r"\s+", " ", alice_client.get(address).content.decode())
    assert re.findall(r"groups/(\d+)/\d+/#completion-\d", again) == found


def test_the_same_prompts_are_shown_where_both_sides_sampled_ten(alice_client, run):
    for step in (2, 6, 33, 37):
        for prompt in range(10, 16 if step in (2, 33) else 24):
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


def test_all_completions_are_shown_if_there_are_fewer_than_ten(alice_client, team):
    run = make_run(team)
    make_steps(run, {"entropy": [1.0 + wave(s) for s in range(40)]})
    make_group(run, 40, 0, rewards=(1.0, 2.0))
    address = reverse("run_health_examples", args=["alpha", run.pk, "entropy"])

    html = alice_client.get(address).content.decode()

    assert "0 completions of 0 groups" in html
    assert "2 completions of 1 group<" in html


def test_a_signal_with_nothing_to_compare_is_not_found(alice_client, team):
    run = make_run(team)

    for signal in ("unknown", "verdict"):
        address = reverse("run_health_examples", args=["alpha", run.pk, signal])
        assert alice_client.get(address).status_code == 404, signal


def test_metric_signals_remain_without_completions(alice_client, run):
    delete_completions_of(run, keep=())

    response = alice_client.get(reverse("run_health", args=["alpha", run.pk]))
    assert response.status_code == 200
    assert 'id="length"' in response.text
    examples = reverse("run_health_examples", args=["alpha", run.pk, "length"])
    assert alice_client.get(examples).status_code == 200


def test_texts_are_the_policys(team):
    run = make_run(team)
    stored = make_group(
        run, texts=["a<b>c", "d"], rewards=(1.0, 0.0)
    ).packed_completions
    authors = ("policy", "environment", "policy")
    stored.turns = [
        [
            {"author": author, "start": 2 * place, "end": 2 * place + 1}
            for place, author in enumerate(authors)
        ],
        [],
    ]
    stored.save()

    (group,) = read_groups(run, 1)

    assert group.texts == ["a\nc", "d"]
