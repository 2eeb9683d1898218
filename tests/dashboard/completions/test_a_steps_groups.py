"""The reader lists one step's groups, the first of them open."""

import json
import re

from django.urls import reverse

from dashboard.completions.prompts import SNIPPET_CHARS, read_snippets
from dashboard.datasets.models import DatasetRow
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run
from tests.page_client import PageClient


def get(client: PageClient, run: Run, query: str = "") -> str:
    return client.read(reverse("groups", args=["alpha", run.pk]) + query)


def prompts(html: str) -> list[int]:
    return [
        int(n) for n in re.findall(r'class="group-link".*?data-prompt="(\d+)"', html)
    ]


def test_the_newest_step_is_shown_by_default(alice_client, run):
    make_group(run, step=1, prompt_index=3)
    make_group(run, step=7, prompt_index=5)

    html = get(alice_client, run)

    assert prompts(html) == [5]
    assert 'value="7"' in html


def test_a_step_without_groups_shows_the_nearest(alice_client, run):
    make_group(run, step=10, prompt_index=1)
    make_group(run, step=20, prompt_index=2)

    html = get(alice_client, run, "?step=13")

    assert prompts(html) == [1]
    assert re.search(r"Step 13.*step 10", html)


def test_previous_and_next_skip_steps_without_groups(alice_client, run):
    for step in (5, 10, 20):
        make_group(run, step=step)

    html = get(alice_client, run, "?step=10&signal=mixed")

    assert 'groups/?step=5&amp;signal=mixed"' in html
    assert 'groups/?step=20&amp;signal=mixed"' in html


def test_the_summary_counts_groups_with_signal(alice_client, run):
    make_group(run, prompt_index=0)
    make_group(run, prompt_index=1, rewards=(0.0, 0.0))
    make_group(run, prompt_index=2, rewards=(1.2, 1.2))

    html = get(alice_client, run)

    assert "1 of 3 groups" in html


def test_a_signal_leaves_only_its_groups(alice_client, run):
    make_group(run, prompt_index=0)
    make_group(run, prompt_index=1, rewards=(0.0, 0.0))

    assert prompts(get(alice_client, run, "?signal=all_wrong")) == [1]
    assert prompts(get(alice_client, run, "?signal=tied")) == []


def test_groups_are_sorted_and_those_without_a_value_come_last(alice_client, run):
    make_group(run, prompt_index=0, rewards=(1.2, 0.0))
    make_group(run, prompt_index=1, rewards=(1.2, 1.2))
    make_group(run, prompt_index=2, rewards=(None, None))

    for sort in ("prompt", "mean", "-spread", "nonsense", ""):
        assert prompts(get(alice_client, run, f"?sort={sort}")) == [0, 1, 2], sort
    assert prompts(get(alice_client, run, "?sort=-mean")) == [1, 0, 2]


def test_superseded_groups_are_not_shown(alice_client, run):
    make_group(run, step=3, prompt_index=1)
    make_group(run, step=4, prompt_index=8, superseded_by=2)
    make_group(run, step=3, prompt_index=9, superseded_by=2)

    html = get(alice_client, run)

    assert prompts(html) == [1]


def test_another_runs_groups_are_not_shown(alice_client, team, run):
    make_group(run, step=1, prompt_index=1)
    make_group(make_run(team, "other"), step=9, prompt_index=2)

    assert prompts(get(alice_client, run)) == [1]


def test_a_run_without_groups_shows_an_empty_state(alice_client, run):
    assert "stored no groups" in get(alice_client, run)

    Run.objects.filter(pk=run.pk).update(state="queued")

    assert "No groups yet" in get(alice_client, run)


def test_truncated_completions_are_counted(alice_client, run):
    make_group(run, rewards=(0.0, 1.2), end_reasons=["length", "stop"])

    assert "1 truncated</span>" in get(alice_client, run)


def test_bars_have_the_same_scale_at_every_step(alice_client, run):
    make_group(run, step=1, rewards=(0.6,))
    make_group(run, step=2, rewards=(0.6,), prompt_index=1)
    make_group(run, step=2, rewards=(1.2,), prompt_index=2)

    first, second = (get(alice_client, run, f"?step={n}&sort=prompt") for n in (1, 2))
    heights = re.findall(r'class="strip-bar".*? height="([\d.]+)"', first + second)

    assert heights == ["12.00", "12.00", "24.00"]


def test_a_prompt_with_markup_stays_text(alice_client, run):
    make_group(run, prompt="<script>alert(1)</script>", answer="<img src=x onerror=y>")

    html = get(alice_client, run)

    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_a_bad_parameter_never_breaks_the_page(alice_client, run):
    make_group(run, step=2, prompt_index=4)

    for query in ("step=-1", "step=x", f"step={10**20 - 1}", "page=0", "signal=%00"):
        assert prompts(get(alice_client, run, f"?{query}")) == [4], query


def test_many_groups_cost_no_more_queries_than_one(
    alice_client, run, django_assert_num_queries
):
    for i in range(20):
        make_group(run, step=1, prompt_index=i)
    make_group(run, step=2, prompt_index=0)
    url = reverse("groups", args=["alpha", run.pk])

    with django_assert_num_queries(23):
        alice_client.get(url + "?step=1")
    with django_assert_num_queries(23):
        alice_client.get(url + "?step=2")


def test_dropped_groups_are_shown(alice_client, run):
    make_group(run, step=5, prompt_index=0)
    make_group(run, step=5, prompt_index=1, is_trained=False)
    make_group(run, step=5, prompt_index=2, rewards=(0.0, 0.0), is_trained=False)

    page = alice_client.get(f"/{run.team.slug}/runs/{run.pk}/groups/?step=5").text
    dropped = alice_client.get(f"/{run.team.slug}/runs/{run.pk}/groups/5/1/").text
    trained = alice_client.get(f"/{run.team.slug}/runs/{run.pk}/groups/5/0/").text

    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "1 of 3 groups" in text
    assert "2 dropped" in text
    assert page.count('class="left-out ') == 2
    assert "data-dropped" in dropped
    assert "data-dropped" not in trained


def test_a_snippet_is_the_question_or_the_end_of_the_prompt(run):
    marks = "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n"
    values = [("system", "Be kind."), ("user", "2\n+ 2?"), ("assistant", "<")]
    chat = json.dumps([{"role": role, "content": text} for role, text in values])
    version = run.dataset_version
    version.rows.all().delete()
    DatasetRow.objects.create(version=version, position=1, prompt=chat, is_chat=True)
    DatasetRow.objects.create(version=version, position=2, prompt="3 + 3? " * 60)
    groups = [
        make_group(run, prompt_index=n, prompt=marks + "x" * 300 + "end")
        for n in (1, 2, 9)
    ]

    asked, long, unknown = read_snippets(run, groups).values()

    assert asked == "2 + 2?"
    assert (len(long), long[:6], long[-1]) == (SNIPPET_CHARS, "3 + 3?", "…")
    assert (len(unknown), unknown[0], unknown[-4:]) == (SNIPPET_CHARS, "…", "xend")
