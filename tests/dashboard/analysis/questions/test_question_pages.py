"""Questions on pages."""

import re

import pytest
from django.urls import reverse

from dashboard.analysis.questions import services
from dashboard.analysis.questions.models import HandLabel, Question, TeamJudge
from tests.dashboard.analysis.questions.factories import (
    HEDGE,
    ask,
    ask_all,
    make_hedging_run,
    make_judge,
    make_priced_judge,
    see_through,
)
from tests.dashboard.costs.factories import set_price


@pytest.fixture
def run(team):
    return make_hedging_run(team)


def page(run, name="run_questions", *args):
    return reverse(name, args=["alpha", run.pk, *args])


def form(chosen, **fields):
    return {
        "text": "Does it hedge?",
        "labels": "yes: it hedges\nno",
        "judge": chosen.name,
        "sample_size": 40,
        "shows_prompt": "on",
    } | fields


def test_a_question_is_tried_started_and_checked(run, judging, alice_client):
    judge = make_judge(run.team, judging)
    response = alice_client.post(page(run) + "?first_step=3", form(judge))
    question = Question.objects.get()
    assert response.status_code == 302
    assert question.labels[0] == {"name": "yes", "meaning": "it hedges"}
    assert question.query == "first_step=3"
    see_through(question)
    at = page(run, "question", question.pk)
    assert 'value="start"' in alice_client.read(at)

    alice_client.post(at, {"action": "start"})
    see_through(question)

    response = alice_client.get(at)
    assert response.context["result"].num_labelled == 40
    assert response.context["result"].estimate.truth is None
    html = response.content.decode()
    assert f"<mark>{HEDGE}</mark>" in html
    assert page(run, "question_check", question.pk) in html


def test_the_check_never_shows_the_label_of_the_judge(run, judging, alice_client):
    judging.reply = lambda asked: (
        '{"why": "OPINION", "quote": "", "kind": "MOTIVE", "label": "yes"}'
    )
    question = ask_all(run, judging, sample_size=40)
    at = page(run, "question_check", question.pk)

    for _ in range(20):
        response = alice_client.get(at)
        html = response.content.decode()
        assert "OPINION" not in html
        assert "MOTIVE" not in html
        # each label stands there once, as a button
        assert re.findall(r'name="label" value="(\w*)"', html) == ["yes", "no", ""]
        place = re.search(r'name="place" value="(\d+)"', html)[1]
        alice_client.post(at, {"place": place, "label": "no"})

    assert alice_client.get(at).context["place"] is None
    assert HandLabel.objects.count() == 20
    result = alice_client.get(page(run, "question", question.pk)).context["result"]
    assert result.estimate.truth[0].value < 0.1


def test_another_persons_labels_stay_hidden(run, judging, alice, bob_client):
    question = ask_all(run, judging, sample_size=40)
    for place in services.places_for(question, alice):
        services.label_by_hand(question, alice, place, "yes")

    response = bob_client.get(page(run, "question_check", question.pk))

    assert response.context["num_left"] == 20


def test_changed_wording_begins_with_the_same_sample(run, judging, alice_client):
    question = ask_all(run, judging, sample_size=40, query="first_step=2")

    response = alice_client.get(page(run) + f"?again={question.pk}")

    fields = response.context["form"].initial
    assert fields["text"] == question.text
    assert fields["sample_size"] == 40
    assert response.context["query"] == "first_step=2"


def check_all(questions, user):
    for question in questions:
        for place in services.places_for(question, user):
            text = place.group.completions[place.position].text
            label = "yes" if HEDGE in text else "no"
            services.label_by_hand(question, user, place, label)


def compared(*runs):
    ids = ",".join(str(run.pk) for run in runs)
    return reverse("compare_questions", args=["alpha"]) + f"?runs={ids}"


def test_one_question_is_asked_of_compared_runs(run, judging, alice, alice_client):
    other = make_hedging_run(run.team, num_steps=3, name="other")
    judge = make_priced_judge(run.team, judging)
    at = compared(run, other)

    assert alice_client.post(at, form(judge) | {"action": "ask"}).status_code == 302
    questions = [see_through(each) for each in Question.objects.order_by("pk")]
    assert [each.run for each in questions] == [run, other]
    [found] = alice_client.get(at).context["listed"]
    num = sum(each.sample.count() for each in questions)
    assert found["expected_tokens"] == 30 * num >= 30 * 80
    assert found["expected_cost"] == pytest.approx(30 * num / 1e6)
    assert found["currency"] == "EUR"
    alice_client.post(at, {"action": f"start:{questions[0].pk}"})
    check_all([see_through(each) for each in questions], alice)

    [found] = alice_client.get(at).context["listed"]
    ours, theirs = found["rows"]
    assert all(row["result"].estimate.truth for row in (ours, theirs))
    assert ours["is_baseline"]
    more = theirs["more"]
    shares = [row["result"].estimate.truth[0].value for row in (theirs, ours)]
    assert more.value == pytest.approx(shares[0] - shares[1])
    assert more.low < more.value < more.high


def test_a_question_of_one_run_is_tried_on_the_others(run, judging, alice_client):
    asked = ask_all(run, judging, sample_size=40, query="first_step=2", seed=7)
    others = [make_hedging_run(run.team, num_steps=3, name=name) for name in "ab"]
    at = compared(*others, run)
    assert compared(run) in alice_client.read(page(run, "question", asked.pk))

    alice_client.post(at, {"action": f"again:{asked.pk}"})

    added = Question.objects.exclude(pk=asked.pk)
    fields = ("text", "labels", "query", "seed", "sample_size", "judge", "shows_prompt")
    assert {each.run for each in added} == {*others}
    for each in added:
        assert [getattr(each, f) for f in fields] == [getattr(asked, f) for f in fields]
    [found] = alice_client.get(at).context["listed"]
    assert (found["num_missing"], found["is_open"]) == (0, True)
    # a page that is old, or was made up
    for action in ("again", "start"):
        for number in (asked.pk, 10**9, ""):
            alice_client.post(at, {"action": f"{action}:{number}"})
    assert Question.objects.count() == 3
    assert alice_client.get(compared()).status_code == 200


def test_a_deleted_judge_is_not_asked_about_other_runs(run, judging, alice_client):
    asked = ask(run, judging)
    other = make_hedging_run(run.team, num_steps=3, name="other")
    run.team.judges.all().delete()

    alice_client.post(compared(run, other), {"action": f"again:{asked.pk}"})

    assert [*Question.objects.all()] == [asked]


def test_costs_in_two_currencies_are_not_added(run, judging, alice_client):
    other = make_hedging_run(run.team, num_steps=3, name="other")
    for each, currency in ((run, "EUR"), (other, "USD")):
        judge = make_judge(run.team, judging, name=currency, model=currency)
        for unit in ("input_tokens", "output_tokens"):
            set_price(run.team, 1.0, unit=unit, name=currency, currency=currency)
        services.ask(runs=[each], user=None, judge=judge, text="Does it hedge?")
        see_through(Question.objects.latest("pk"))

    [found] = alice_client.get(compared(run, other)).context["listed"]

    assert found["expected_tokens"] > 0
    assert found["expected_cost"] is None


def test_a_question_that_cannot_be_asked_of_runs_asks_nothing(
    run, judging, alice_client, bob_client
):
    judge = make_judge(run.team, judging)
    for wrong in ({"labels": "a"}, {"text": ""}, {"judge": ""}):
        fields = form(judge) | {"action": "ask"} | wrong
        assert alice_client.post(compared(run), fields).status_code == 422
    fields = form(judge) | {"action": "ask"}
    assert bob_client.post(compared(run), fields).status_code == 403
    assert not Question.objects.exists()


def test_labels_become_tags(run, judging, alice_client):
    question = ask_all(run, judging, sample_size=100)
    num = question.sample.filter(label="yes").count()

    alice_client.post(page(run, "question", question.pk), {"action": "tag:yes"})

    at = reverse("completions", args=["alpha", run.pk])
    found = alice_client.get(f"{at}?tag=q{question.pk}:yes")
    assert found.context["page"].num_found == num


def test_a_viewer_reads_and_changes_nothing(run, judging, bob_client):
    question = ask_all(run, judging, sample_size=20)
    at = page(run, "question", question.pk)
    place = question.sample.first()

    assert bob_client.get(at).status_code == 200
    for address, data in [
        (at, {"action": "delete"}),
        (at, {"action": "tag:yes"}),
        (page(run, "question_check", question.pk), {"place": place.pk, "label": "no"}),
        (page(run), form(run.team.judges.get())),
        (reverse("team_judges", args=["alpha"]), {"name": "x"}),
    ]:
        assert bob_client.post(address, data).status_code == 403
    assert Question.objects.count() == 1
    assert not HandLabel.objects.exists()


def test_a_question_is_deleted(run, judging, alice_client):
    question = ask_all(run, judging, sample_size=20)

    response = alice_client.post(
        page(run, "question", question.pk), {"action": "delete"}
    )

    assert response.url == page(run)
    assert not Question.objects.exists()


@pytest.mark.parametrize(
    "fields", [{"text": ""}, {"labels": "a"}, {"sample_size": 3}, {"judge": "none"}]
)
def test_a_bad_form_asks_nothing(fields, run, judging, alice_client):
    judge = make_judge(run.team, judging)

    response = alice_client.post(page(run), form(judge, **fields))

    assert response.status_code == 422
    assert not Question.objects.exists()


@pytest.mark.parametrize("name", ["question", "question_check", "question_progress"])
def test_a_question_is_found_only_in_its_team_and_run(
    name, run, judging, alice_client, charlie_client
):
    question = ask_all(run, judging, sample_size=20)
    theirs = make_hedging_run(run.team, num_steps=1, name="other")

    assert charlie_client.get(page(run, name, question.pk)).status_code == 404
    assert alice_client.get(page(theirs, name, question.pk)).status_code == 404


def test_an_admin_adds_and_deletes_a_judge(team, alice_client):
    at = reverse("team_judges", args=["alpha"])
    fields = {
        "name": "big",
        "base_url": "https://judge.example.com/v1/",
        "model": "m",
        "key_name": "OPENAI",
    }

    response = alice_client.post(at, fields)

    judge = TeamJudge.objects.get()
    assert response.status_code == 302
    assert judge.base_url == "https://judge.example.com/v1"
    alice_client.post(at, {"action": f"delete:{judge.pk}"})
    assert not TeamJudge.objects.exists()


@pytest.mark.parametrize(
    "change",
    [{"base_url": "judge"}, {"key_name": "../x"}, {"name": ""}],
)
def test_a_bad_judge_is_refused(change, team, alice_client):
    at = reverse("team_judges", args=["alpha"])
    fields = {"name": "big", "base_url": "https://a.example.com", "model": "m"}

    assert alice_client.post(at, fields | change).status_code == 422
    assert not TeamJudge.objects.exists()


def test_a_second_judge_of_a_name_is_refused(team, alice_client):
    make_judge(team, name="big")
    at = reverse("team_judges", args=["alpha"])
    fields = {"name": "big", "base_url": "https://a.example.com", "model": "m"}

    assert alice_client.post(at, fields).status_code == 422
    assert TeamJudge.objects.count() == 1


def test_only_filters_of_the_search_are_kept(run, judging, alice_client):
    query = "?first_step=3&page=2&sort=step&min_reward=&other=1"

    assert alice_client.get(page(run) + query).context["query"] == "first_step=3"
