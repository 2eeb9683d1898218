"""Two completions, nobody says whose: one vote a person, and what comes of them."""

from __future__ import annotations

import pytest
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import Membership, Team, User
from dashboard.insights.duels.pairs import Side, read_side
from dashboard.insights.duels.votes import cast, draw_ballot, tally
from dashboard.insights.models import Vote
from dashboard.runs.models import Run
from tests.dashboard.samples.factories import make_group, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def runs(team: Team) -> tuple[Run, Run]:
    ours = make_run(team, "calm-otter")
    theirs = make_run(team, "brave-finch", dataset_version=ours.dataset_version)
    for run in (ours, theirs):
        texts = [f"{run.name[0]}{i}" for i in range(4)]
        make_group(run, step=3, prompt_index=7, texts=texts)
    return ours, theirs


def address(runs: tuple[Run, Run], **query: object) -> str:
    url = reverse("compare_vote", args=["alpha"])
    told = {"runs": f"{runs[0].pk},{runs[1].pk}", "prompt": 7, **query}
    return url + "?" + "&".join(f"{name}={value}" for name, value in told.items())


def sides_of(runs: tuple[Run, Run]) -> tuple[Side, Side]:
    ours, theirs = (read_side(run, 7, 3) for run in runs)
    assert ours
    assert theirs
    return ours, theirs


def body(html: str) -> str:
    return html.split('class="ballot"')[1].split("</main>")[0]


def test_nothing_says_whose_the_completions_are(
    alice_client: Client, runs: tuple[Run, Run]
) -> None:
    html = body(alice_client.get(address(runs)).content.decode())

    for run in runs:
        assert run.name not in html
        assert f"/runs/{run.pk}/" not in html
    assert "Reward" not in html


def test_a_vote_is_kept_and_says_whose_they_were(
    alice_client: Client, alice: User, runs: tuple[Run, Run]
) -> None:
    ballot = draw_ballot(*sides_of(runs), number=0, seed=1)
    assert ballot

    answer = alice_client.post(address(runs), {"choice": "left"}, follow=True)

    vote = Vote.objects.get()
    first, second = ballot.pair
    chosen = first if vote.choice == "first" else second
    assert (vote.voter, chosen) == (alice, ballot.left)
    html = body(answer.content.decode())
    left = html.split('id="left-title"')[1].split("</h2>")[0]
    assert ballot.left_run.name in left
    assert "your vote" in left


def test_a_second_vote_of_a_person_changes_the_first_and_undo_takes_it_back(
    alice_client: Client, runs: tuple[Run, Run]
) -> None:
    alice_client.post(address(runs), {"choice": "left"})
    alice_client.post(address(runs), {"choice": "tie"})
    assert [vote.choice for vote in Vote.objects.all()] == ["tie"]

    alice_client.post(address(runs), {"undo": "1"})
    assert not Vote.objects.exists()


def test_the_order_is_the_links_and_not_always_the_same(runs: tuple[Run, Run]) -> None:
    sides = sides_of(runs)

    ballots = [draw_ballot(*sides, number=0, seed=seed) for seed in range(40)]
    again = [draw_ballot(*sides, number=0, seed=seed) for seed in range(40)]

    assert ballots == again
    lefts = [ballot.left_run.name for ballot in ballots if ballot]
    assert 8 < lefts.count("calm-otter") < 32
    assert len({ballot.left.place for ballot in ballots if ballot}) > 4


def test_every_completion_is_in_one_pair_of_a_link(runs: tuple[Run, Run]) -> None:
    sides = sides_of(runs)

    ballots = [draw_ballot(*sides, number=number, seed=5) for number in range(4)]

    shown = [c.place for ballot in ballots if ballot for c in ballot.pair]
    assert len(set(shown)) == 8
    assert draw_ballot(*sides, number=4, seed=5) is None


def test_the_tally_says_who_preferred_what(
    alice_client: Client, alice: User, team: Team, runs: tuple[Run, Run]
) -> None:
    dora = User.objects.create_user("dora")
    Membership.objects.create(team=team, user=dora, role="member")
    sides = sides_of(runs)
    wanted = ["calm-otter", "calm-otter", "brave-finch"]
    for number, name in enumerate(wanted):
        ballot = draw_ballot(*sides, number=number, seed=1)
        assert ballot
        cast(team, alice, ballot, "left" if ballot.left_run.name == name else "right")
    tied = draw_ballot(*sides, number=0, seed=1)
    assert tied
    cast(team, dora, tied, "tie")

    found = tally(team, runs)
    turned = tally(team, (runs[1], runs[0]))

    assert (found.wins, found.ties) == ((2, 1), 1)
    assert found.by_voter == [("alice", 2, 1, 0), ("dora", 0, 0, 1)]
    assert turned.wins == (1, 2)
    page = reverse("compare_prompt", args=["alpha"])
    ids = f"{runs[0].pk},{runs[1].pk}"
    html = alice_client.get(page, {"runs": ids}).text
    assert "2 of 3" in html
    assert "66.7 %" in html
    assert "20.8 % … 93.9 %" in html


def test_a_choice_that_is_none_is_refused(
    alice_client: Client, runs: tuple[Run, Run]
) -> None:
    answer = alice_client.post(address(runs), {"choice": "both"})

    assert answer.status_code == 400
    assert "both" in answer.text


def test_a_viewer_sees_the_pair_and_cannot_vote(
    bob_client: Client, runs: tuple[Run, Run]
) -> None:
    assert 'name="choice"' not in body(bob_client.get(address(runs)).text)
    assert bob_client.post(address(runs), {"choice": "left"}).status_code == 403
    assert not Vote.objects.exists()


def test_a_pair_that_is_not_there_is_404(
    alice_client: Client, runs: tuple[Run, Run]
) -> None:
    assert alice_client.get(address(runs, pair=4)).status_code == 404


def test_the_database_holds_one_vote_a_person_and_pair(
    alice: User, team: Team, runs: tuple[Run, Run]
) -> None:
    ballot = draw_ballot(*sides_of(runs), number=0, seed=1)
    assert ballot
    at = {"team": team, "voter": alice, **ballot.key}
    Vote.objects.create(**at, choice="tie")

    with pytest.raises(IntegrityError, match="person_and_pair"):
        Vote.objects.create(**at, choice="first")
