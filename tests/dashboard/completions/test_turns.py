"""Pages show an episode as blocks of its turns."""

import re

import pytest
from django.template.loader import render_to_string
from django.urls import reverse

from dashboard.completions.models import Completion, Group
from dashboard.completions.rewards import merge_equal, rank_completions
from dashboard.completions.turns import (
    blocks_of,
    fold,
    pair_rows,
    token_turns,
    transcript_of,
)
from dashboard.supervision.storage import NumberedEvent, copy_groups
from tests.dashboard.completions.episodes import (
    FAILED,
    HIT,
    OUT_OF_TURNS,
    add_episodes,
    called,
    episode,
    said,
)
from tests.dashboard.completions.factories import make_dataset, make_group, make_run
from tests.dashboard.supervision.logs import LogBuilder

LONG = "".join(f"line {i}\n" for i in range(9))
READ = episode(said("Read."), said(LONG, **called("read", "{}", result=LONG)))
SINGLE = HIT.model_copy(update={"turns": [], "end_reason": "stop"})


def store(run, *episodes, index=0):
    (event,) = add_episodes(LogBuilder(), 1, *episodes, index=index).events
    copy_groups(run.pk, [NumberedEvent(index + 1, event)])
    return Group.objects.get(run=run, prompt_index=index)


@pytest.fixture(scope="module")
def run(shared_team):
    run = make_run(shared_team)
    store(run, HIT, FAILED, OUT_OF_TURNS, READ)
    return run


def get(client, run, query="", prompt=0):
    address = reverse("group", args=["alpha", run.pk, 1, prompt])
    return re.sub(r"\s+", " ", client.read(address + query))


def turns_of(html, position):
    """Authors and texts of a completion."""
    box = html.partition(f'id="text-{position}"')[2].partition('class="marks')[0]
    return re.findall(
        r'data-turn="(\w+)".*?<div class="turn-(?:text|call)[^>]*>(.*?)</div>', box
    )


def test_messages_are_shown_by_author_without_the_templates_marks(alice_client, run):
    html = get(alice_client, run)

    assert turns_of(html, 0) == [
        ("policy", "20"),
        ("environment", "+"),
        ("policy", "24"),
        ("environment", "."),
    ]
    assert "&lt;|end|&gt;" not in html
    assert '<span class="number">0.25</span> s' in html
    assert 'reward <span class="number">0.5</span>' in html


def test_a_row_tells_end_and_number_of_turns(alice_client, run):
    html = get(alice_client, run)

    assert re.findall(r'data-num-turns="(\d)"', html) == ["2", "1", "3", "1"]
    for words in ("ended by environment", "environment failed", "out of turns"):
        assert words in html
    assert "The game is over." in html


def test_calls_are_shown_with_results_and_errors(alice_client, run):
    html = get(alice_client, run)

    (_, _), (author, call), _, (_, failed), _ = turns_of(html, 2)
    assert author == "tool"
    assert call == "<code>add({&quot;a&quot;: 5, &quot;b&quot;: 7})</code> → 12"
    assert re.search(r'class="note-error">No b\.</span>', failed)
    # A tool's text is not shown again where it is the result.
    assert html.count('class="turn-text"') == 9
    assert "<b>that</b>" not in html


def test_a_long_reply_is_folded_and_the_policys_text_is_not(alice_client, run):
    html = get(alice_client, run)

    assert "3 more lines</summary>line 6" in html
    assert fold("a\n" * 6) == "a\n" * 6
    assert "<summary>1 more line</summary>" in fold("a\n" * 7)
    assert "<summary>9,400 more characters</summary>" in fold("a" * 10_000)


def test_other_views_show_turns(alice_client, run):
    cards = get(alice_client, run, "?layout=cards")
    rendered = get(alice_client, run, "?view=rendered")
    diff = get(alice_client, run, "?diff=on")

    assert cards.count('data-mark="end"') == 4
    assert rendered.count('class="turn-text is-rendered"') == 7
    # The best is the first; of the others each turn that it has, too.
    assert diff.count('data-diff-with="turn-0-1"') == 3
    assert diff.count('data-diff-with="turn-0-2"') == 1


def test_pages_with_lists_of_completions_show_turns(alice_client, run):
    def count(name, *args, query=""):
        html = alice_client.read(reverse(name, args=["alpha", run.pk, *args]) + query)
        return html.count('data-turn="')

    assert count("run_prompt", 0) == 12
    assert count("run_samples") == 4 + 5  # the best and the worst
    assert count("completions") == 0


def test_a_long_group_shows_the_beginning_of_its_turns():
    completion = stored(HIT)

    assert [b.text for b in blocks_of(completion, 11)] == ["20", "+"]
    assert [b.text for b in blocks_of(completion, 1)] == ["2"]
    assert [b.num_tokens for b in blocks_of(completion)] == [2, 2, 2, 2]


def stored(sent):
    return Completion(
        group=Group(rule_names=[]),
        position=0,
        rule_scores=(),
        **{
            name: getattr(sent, name)
            for name in (
                "text",
                "num_tokens",
                "end_reason",
                "reward",
                "advantage",
                "mean_logprob",
            )
        },
        turns=tuple(sent.turns),
    )


def test_a_test_of_a_model_shows_turns():
    tree = HIT.model_dump() | {"errors": {}}

    html = render_to_string("probes/try_completion.html", {"one": tree, "number": 1})
    single = render_to_string(
        "probes/try_completion.html", {"one": tree | {"turns": []}}
    )

    assert html.count('data-turn="') == 4
    assert "ended by environment" in html
    assert "<pre" in single
    assert "data-turn" not in single


def test_reports_name_the_authors():
    assert transcript_of(stored(READ)) == f"policy: Read.\n\nread: {LONG}"
    assert transcript_of(stored(SINGLE)) == SINGLE.text


def test_tokens_have_the_author_of_their_turn():
    unknown = stored(episode(said("20"), said("+", author="environment"), tokens=False))

    assert token_turns(stored(HIT)) == (
        '[["policy", true, 2], ["environment", false, 4], ["policy", true, 6], '
        '["environment", false, 8]]'
    )
    assert token_turns(unknown) == ""
    assert [b.num_tokens for b in blocks_of(unknown)] == [None, None]


def test_pairs_set_turns_of_the_policy_beside_each_other():
    rows = pair_rows(stored(HIT), stored(OUT_OF_TURNS))
    with_single = pair_rows(stored(SINGLE), stored(HIT))

    def texts(rows):
        return [tuple([b.text for b in side] for side in row) for row in rows]

    assert texts(rows) == [
        (["20"], ["Let me see."]),
        (["+"], ["12"]),
        (["24"], ["Now <b>that</b>."]),
        (["."], ["No b."]),
        ([], ["I give up."]),
    ]
    assert texts(with_single)[0] == ([HIT.text], ["20"])
    assert texts(pair_rows(stored(HIT), None))[0] == (["20"], [])
    assert pair_rows(stored(SINGLE), None) == []


def test_two_runs_are_compared_turn_by_turn(alice_client, team):
    version = make_dataset(team)
    a, b = (make_run(team, name, dataset_version=version) for name in "ab")
    store(a, HIT, SINGLE)
    store(b, OUT_OF_TURNS, SINGLE)
    address = reverse("compare_prompt", args=["alpha"])

    html = alice_client.read(
        f"{address}?runs={a.pk},{b.pk}&prompt=0&step=1&align=sampled"
    )

    assert html.count('class="pair-turns') == 10
    assert html.count('data-diff-with="turn-A1-') == 2
    assert html.count('data-diff-with="text-A-1"') == 1  # a pair of single turns


def test_equal_episodes_are_one_row_whatever_time_they_took(team):
    slow, better = HIT.model_copy(deep=True), HIT.model_copy(deep=True)
    for turn in slow.turns:
        turn.__dict__["seconds"] = 9.0
    better.turns[0].__dict__["reward"] = 0.75
    group = store(make_run(team), HIT, slow, better, HIT)

    merged = merge_equal(rank_completions(group, group.completions, {}), separate=())

    assert [(rank.completion.position, alike) for rank, alike in merged] == [
        (0, [1, 3]),
        (2, []),
    ]


def test_completions_of_one_turn_have_no_blocks(alice_client, team):
    run = make_run(team)
    make_group(run, texts=["a", "b"], rewards=(1.2, 0.0))

    html = get(alice_client, run)

    assert "data-turn" not in html
    assert "data-num-turns" not in html
    assert html.count('class="sample-text completion-text"') == 2
