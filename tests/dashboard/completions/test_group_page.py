"""A group's page: every completion, its parts, and the way to its neighbours."""

import re

from django.urls import reverse

from dashboard.completions.annotations import Target, add_tag
from dashboard.completions.models import Group
from dashboard.completions.rewards import rank_completions, rule_weights, step_recipe
from tests.dashboard.completions.factories import make_group, make_note, make_run
from tests.dashboard.completions.stored import change_completions
from tests.page_client import PageClient


def get(client: PageClient, group: Group, query: str = "") -> str:
    address = ["alpha", group.run_id, group.step, group.prompt_index]
    return re.sub(r"\s+", " ", client.read(reverse("group", args=address) + query))


def order(html: str) -> list[int]:
    return [int(n) for n in re.findall(r'id="completion-(\d+)"', html)]


def test_each_rule_shows_score_times_weight_and_its_part(alice_client, run):
    html = get(alice_client, make_group(run, rewards=(1.2, 0.0)))

    assert re.findall(r"1 × ([\d.]+)</td>\s*<td[^>]*>(\+[\d.]+)<", html) == [
        ("1", "+1"),
        ("0.2", "+0.2"),
    ]
    assert "data-other" not in html


def test_the_part_of_a_reward_without_a_rule_is_shown(alice_client, run):
    group = make_group(run, rewards=(1.2, 0.0))
    change_completions(group, position=0, reward=1.1)

    html = get(alice_client, group)

    (other,) = re.findall(r"<tr data-other>.*?</tr>", html)
    assert "−0.1" in other


def test_a_rule_without_a_score_shows_no_score(alice_client, run):
    html = get(alice_client, make_group(run, rewards=(None, 1.2)))

    assert html.count(">no score</td>") == 2


def test_the_output_of_a_rule_is_shown_with_its_completion(alice_client, run):
    group = make_group(run, rewards=(1.0, 0.0))
    make_note(group, "<i>4</i> words")

    page = get(alice_client, group)

    assert page.count('data-note="output"') == 1
    assert "<bdi>&lt;i&gt;4&lt;/i&gt; words</bdi>" in page


def test_errors_of_rules_are_open_and_come_before_output(alice_client, run):
    group = make_group(run, rewards=(1.0, None), num_notes=5)
    make_note(group, "half way", position=1)
    make_note(group, "The grader was lost.", position=1, is_error=True)

    page = get(alice_client, group)

    assert page.index("The grader was") < page.index("half way")
    assert page.index('data-note="error" open') < page.index('data-note="output"')
    assert "2 of 5 stored" in page


def test_advantages_carry_their_sign(alice_client, run):
    html = get(alice_client, make_group(run, rewards=(1.2, 0.0)))

    assert '<span class="number">+0.707</span>' in html
    assert '<span class="number">−0.707</span>' in html


def test_completions_are_ordered_and_unscored_ones_come_last(alice_client, run):
    group = make_group(run, rewards=(0.2, 1.2, None))

    for sort, expected in {
        "position": [0, 1, 2],
        "-reward": [1, 0, 2],
        "reward": [0, 1, 2],
        "-length": [2, 1, 0],
        "nonsense": [1, 0, 2],
        "": [1, 0, 2],
    }.items():
        assert order(get(alice_client, group, f"?sort={sort}")) == expected, sort


def test_best_and_worst_are_marked_only_where_rewards_differ(alice_client, run):
    differing = get(alice_client, make_group(run, rewards=(1.2, 0.2, 0.0)))
    equal = get(alice_client, make_group(run, rewards=(1.2, 1.2), prompt_index=1))

    for mark in ('data-mark="best"', 'data-mark="worst"'):
        assert differing.count(mark) == 1
        assert mark not in equal


def test_equal_completions_are_one_row(alice_client, run):
    texts = ["same", "same", "own", "same"]
    group = make_group(run, rewards=(0.0, 0.0, 1.2, 1.2), texts=texts)
    change_completions(group, position=1, num_tokens=10)

    html = get(alice_client, group)

    # The last has another reward; links to the second lead to the first.
    assert re.findall(r'data-completion="(\d)"', html) == ["2", "3", "0"]
    assert order(html) == [2, 3, 0, 1]
    assert html.count(">×2</span>") == 1
    assert html.count('data-mark="alike"') == 2
    assert "data-num-distinct>2<" in html


def test_an_annotated_completion_has_its_own_row(alice_client, alice, run):
    group = make_group(run, rewards=(0.0, 0.0, 0.0), texts=["same"] * 3)
    change_completions(group, num_tokens=10)
    add_tag(alice, Target(group, 1), "odd")

    html = get(alice_client, group)

    assert re.findall(r'data-completion="(\d)"', html) == ["0", "1"]


def test_right_completions_are_counted(alice_client, run):
    html = get(alice_client, make_group(run, rewards=(1.2, 1.0, None, 0.2)))

    assert "data-num-right>2<" in html
    assert "answer = 1" in html


def test_a_link_of_the_list_gets_only_its_group(alice_client, run):
    make_group(run, step=4, prompt_index=6)
    url = reverse("group", args=["alpha", run.pk, 4, 6])
    of_list = {"HTTP_HX_REQUEST": "true", "HTTP_HX_TARGET": "group-pane"}

    part = alice_client.get(url, **of_list)
    whole = alice_client.get(url)
    restored = alice_client.get(url, **of_list, HTTP_HX_HISTORY_RESTORE_REQUEST="true")

    assert part.text.count("data-group ") == whole.text.count("data-group ") == 1
    assert 'id="reader"' not in part.text
    assert 'id="reader"' in whole.text
    assert 'id="reader"' in restored.text
    assert "HX-Target" in part["Vary"]


def test_the_step_of_a_group_is_listed_beside_it(alice_client, run, monkeypatch):
    monkeypatch.setattr("dashboard.completions.groups.GROUPS_PER_PAGE", 2)
    for prompt in range(5):
        make_group(run, step=4, prompt_index=prompt)
    make_group(run, step=5, prompt_index=4)

    html = get(alice_client, Group.objects.get(step=4, prompt_index=3), "?order=prompt")

    # The page of the list that has the group.
    assert re.findall(r'data-prompt="(\d)"( aria-current)?', html) == [
        ("2", ""),
        ("3", " aria-current"),
    ]


def test_the_same_prompt_is_found_at_its_other_steps(alice_client, run):
    for step in (3, 40, 77):
        make_group(run, step=step, prompt_index=6)
    make_group(run, step=41, prompt_index=7)

    html = get(alice_client, Group.objects.get(step=40))

    before = reverse("group", args=["alpha", run.pk, 3, 6])
    after = reverse("group", args=["alpha", run.pk, 77, 6])
    assert f'rel="prev" href="{before}"' in html
    assert f'rel="next" href="{after}"' in html


def test_a_link_outlives_a_resume(alice_client, run):
    old = make_group(run, step=4, superseded_by=2, texts=["old"], rewards=(0.0,))

    html = get(alice_client, old)

    assert "data-superseded" in html
    assert ">old</div>" in html


def test_the_current_group_replaces_the_superseded_one(alice_client, run):
    make_group(run, step=4, superseded_by=2, texts=["old"], rewards=(0.0,))
    new = make_group(run, step=4, attempt=2, texts=["new"], rewards=(0.0,))

    html = get(alice_client, new)

    assert ">new</div>" in html
    assert "data-superseded" not in html


def test_an_unknown_group_is_404(alice_client, run):
    make_group(run, step=1, prompt_index=0)

    for step, prompt in ((1, 99), (2, 0), (2**40, 0)):
        url = reverse("group", args=["alpha", run.pk, step, prompt])

        assert alice_client.get(url).status_code == 404


def test_a_completion_with_markup_stays_text(alice_client, run):
    texts = ["<script>alert(1)</script>", "</div><img src=x onerror=alert(2)>"]

    html = get(alice_client, make_group(run, rewards=(0.0, 1.2), texts=texts))

    assert "<script>alert" not in html
    assert "<img src=x" not in html


def test_a_group_costs_the_same_queries_whatever_its_size(
    alice_client, run, django_assert_num_queries
):
    small = make_group(run, step=1, rewards=(0.0, 1.2))
    big = make_group(run, step=2, prompt_index=1, rewards=tuple([0.0, 1.2] * 16))

    for group in (small, big):
        with django_assert_num_queries(23):
            get(alice_client, group)


def test_a_penalty_for_length_is_a_part_of_the_reward(run):
    found = make_group(run, rewards=(1.0, 0.0), rule_names=["answer", "overlong"])
    change_completions(found, position=0, reward=0.75, rule_scores=[1.0, -0.25])

    parts = {
        part.name: part.part
        for part in rank_completions(
            found, found.completions[:1], rule_weights(run, 1)
        )[0].parts
    }

    assert parts["overlong"] == -0.25


def test_a_phase_uses_its_own_weights(team):
    run = make_run(team)
    other = {"rules": [{"name": "answer", "kind": "exact_answer", "weight": 3.0}]}
    run.config["phases"] = [
        {"name": "a", "num_steps": 4, "changes": {"reward": {"recipe": other}}},
        {"name": "b", "num_steps": 4, "changes": {}},
    ]
    own = rule_weights(make_run(team, "plain"), 1)["answer"]

    assert [rule_weights(run, step)["answer"] for step in (1, 4, 5)] == [3.0, 3.0, own]


def test_parts_are_clipped_and_gated(alice_client, run):
    run.config["reward"]["recipe"] = {
        "rules": [
            {"name": "format", "kind": "length", "weight": 0.5},
            {
                "name": "answer",
                "kind": "length",
                "weight": 2.0,
                "only_if": {"rule": "format", "at_least": 1.0},
                "clip": {"high": 0.5},
                "schedule": {"points": [{"step": 3, "weight": 4.0}]},
            },
        ]
    }
    run.save()
    names = ["format", "answer"]
    group = make_group(run, step=2, rewards=(2.0, 0.25), rule_names=names)
    change_completions(group, position=0, rule_scores=[1.0, 1.0])
    change_completions(group, position=1, rule_scores=[0.5, 1.0])

    standings = rank_completions(
        group, group.completions, rule_weights(run, 2), step_recipe(run, 2)
    )

    parts = [[(p.counted, p.weight, p.part) for p in s.parts] for s in standings]
    assert parts == [
        [(1.0, 0.5, 0.5), (0.5, 3.0, 1.5)],
        [(0.5, 0.5, 0.25), (0.0, 3.0, 0.0)],
    ]
    page = get(alice_client, group)
    assert "1 → 0.5 × 3" in page
    assert "data-other" not in page
