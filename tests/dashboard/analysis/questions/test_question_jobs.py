"""A judge is asked of a sample, within a budget, and nothing twice."""

import json
import re
from collections import Counter

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.accounts.models import AuditEntry
from dashboard.analysis.questions import services
from dashboard.analysis.questions.jobs import CONCURRENCY
from dashboard.analysis.questions.models import HandLabel, Question
from dashboard.analysis.questions.results import read_result
from dashboard.analysis.questions.sampling import matching
from dashboard.completions.models import GroupCompletions
from dashboard.jobs.kinds import JobCancelled
from dashboard.jobs.models import Job
from dashboard.project.errors import UserError
from dashboard.runs.models import Run
from tests.dashboard.analysis.questions.factories import (
    HEDGE,
    ask,
    ask_all,
    completion_of,
    make_hedging_run,
    make_judge,
    reply_of,
    see_through,
)
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_recipe, make_run
from tests.dashboard.costs.factories import set_price
from tests.dashboard.jobs.working import do, take
from tests.trainer.rewards.judge_server import status, text
from trainer.rewards.model_judge.labels import Label


@pytest.fixture
def run(team):
    return make_hedging_run(team)


def labels_of(question):
    """Of those that were to be asked."""
    sample = question.sample.filter(rank__lt=question.goal).order_by("rank")
    return list(sample.values_list("label", flat=True))


def test_five_completions_are_tried_first(run, judging):
    question = see_through(ask(run, judging, sample_size=40))

    assert (question.state, question.num_found) == ("done", 160)
    assert len(judging.asked) == 5
    labels = question.sample.order_by("rank").values_list("label", flat=True)
    assert [bool(label) for label in labels] == [True] * 5 + [False] * 35
    spent = services.read_spent(question)
    assert (spent.num_asked, spent.num_sampled) == (5, 40)
    assert spent.num_tokens == 150
    assert spent.expected_tokens == 1_200
    assert spent.cost is None


def test_the_whole_sample_is_asked_once(run, judging, alice):
    judge = make_judge(run.team, judging)
    for unit, amount in (("input_tokens", 2.0), ("output_tokens", 8.0)):
        set_price(run.team, amount, unit=unit, name=judge.model)
    judging.tokens = None
    question = ask_all(run, judging, sample_size=40, user=alice)

    assert (question.state, question.error) == ("done", "")
    asked = Counter(map(completion_of, judging.asked))
    assert len(judging.asked) == 40
    assert set(asked.values()) == {1}
    for place in question.sample.select_related("group").prefetch_related(
        "group__packed_completions"
    ):
        completion = place.group.completions[place.position].text
        assert place.label == ("yes" if HEDGE in completion else "no")
        if place.label == "yes":
            assert completion[place.quote_from : place.quote_to] == HEDGE
    spent = services.read_spent(question)
    cost = (2 * spent.num_tokens_in + 8 * spent.num_tokens_out) / 1e6
    assert (spent.cost, spent.currency) == (pytest.approx(cost), "EUR")
    (use,) = run.team.judge_uses.all()
    assert (use.source, use.target_id, use.run, use.user) == (
        "question",
        question.pk,
        run,
        alice,
    )
    assert (use.calls, use.calls_without_usage, use.input_tokens) == (40, 40, 0)
    verbs = AuditEntry.objects.filter(verb__startswith="question.")
    assert sorted(verbs.values_list("verb", flat=True)) == [
        "question.started",
        "question.tried",
    ]


def test_a_stopped_job_asks_only_the_rest_when_it_is_resumed(run, judging):
    question = see_through(ask(run, judging, sample_size=100))
    services.start([question], None)

    def stop_at(context):
        if context.noted["done"] >= 16:
            raise JobCancelled

    job = do(take("question"), on_progress=stop_at)
    assert job.state == "cancelled"
    num_before = question.sample.exclude(label="").count()
    assert 16 <= num_before < 100
    services.start([question], None)

    done = see_through(question)

    assert (done.state, "" in labels_of(done)) == ("done", False)
    assert set(Counter(map(completion_of, judging.asked)).values()) == {1}
    assert len(judging.asked) == 100


def test_a_question_stops_at_its_budget(run, judging):
    question = see_through(ask(run, judging, sample_size=100))
    services.start([question], None)
    Question.objects.filter(pk=question.pk).update(budget_tokens=30 * 20)

    done = see_through(question)

    assert done.state == "done"
    num_asked = services.read_spent(done).num_asked
    assert 20 <= num_asked < 20 + CONCURRENCY
    # what was sent is stored, and counts
    assert len(judging.asked) == num_asked == read_result(done).num_labelled
    assert str(num_asked) in done.job.message
    services.start([done], None)  # with a new budget
    assert "" not in labels_of(see_through(done))
    assert len(judging.asked) == 100


def test_a_worker_that_shuts_down_stores_what_was_asked(run, judging):
    question = see_through(ask(run, judging, sample_size=100))
    services.start([question], None)

    def shut_down():
        return len(judging.asked) >= 30

    job = do(take("question"), is_shutting_down=shut_down)

    assert job.state == "queued"
    assert question.sample.exclude(label="").count() == len(judging.asked) < 60


def test_deleted_completions_are_no_error(run, judging, alice_client):
    question = see_through(ask(run, judging, sample_size=20))
    GroupCompletions.objects.all().delete()
    services.start([question], None)

    failed = see_through(question)

    assert failed.state == "failed"
    assert "retention" in failed.error
    assert len(judging.asked) == 5
    at = ["alpha", run.pk, question.pk]
    assert alice_client.get(reverse("question", args=at)).status_code == 200
    assert alice_client.get(reverse("question_check", args=at)).status_code == 200


def test_a_question_of_a_run_in_the_trash_is_not_asked(run, judging):
    question = see_through(ask(run, judging, sample_size=20))
    services.start([question], None)
    Run.objects.update(trashed_at=timezone.now())

    assert see_through(question).state == "failed"
    assert len(judging.asked) == 5
    assert not services.list_questions(run.team).exists()


def test_a_team_starts_four_questions_at_most(run, judging):
    tried = [see_through(ask(run, judging, sample_size=20)) for _ in range(5)]
    for question in tried[:4]:
        services.start([question], None)

    with pytest.raises(UserError) as error:
        services.start([tried[4]], None)

    assert error.value.code == "question.too_many_open"


def test_names_of_labels_are_stripped(run, judging):
    labels = [Label(" yes "), Label("no\n")]

    question = see_through(ask(run, judging, sample_size=20, labels=labels))

    assert question.names == ["yes", "no"]
    assert "" not in labels_of(question)


def test_completions_marked_by_one_who_is_gone_are_none(run):
    assert matching(run, "by=me&mark=good", None) == []


def test_an_unreadable_reply_is_asked_for_once_more(run, judging):
    judging.faults = [text("I cannot say.")]

    question = see_through(ask(run, judging, sample_size=20))

    assert len(judging.asked) == 6
    assert "" not in labels_of(question)
    place = question.sample.order_by("-num_tokens_in").first()
    assert place.num_tokens_in + place.num_tokens_out == 60


def test_a_reply_that_stays_unreadable_is_no_label(run, judging):
    judging.reply = lambda asked: '```json\n{"label": "yes'

    question = see_through(ask(run, judging, sample_size=20))

    assert question.state == "done"
    assert labels_of(question) == [""] * 5
    assert len(judging.asked) == 10
    assert question.sample.exclude(problem="").count() == 5
    assert read_result(question) is None
    services.start([question], None)
    see_through(question)
    assert len(judging.asked) == 10 + 15 * 2


def test_claims_of_two_replies_fit_their_column(run, judging):
    judging.reply = lambda asked: "no label"
    judging.usage = {"prompt_tokens": 2**40, "completion_tokens": 2**40}

    question = see_through(ask(run, judging, sample_size=20))

    assert question.state == "done"
    assert question.sample.filter(num_tokens_in__gt=0).count() == 5


def test_a_busy_judge_is_asked_again(run, judging):
    judging.faults = [status(429, b"{}", Retry_After="0.01")] * 3

    question = see_through(ask(run, judging, sample_size=20))

    assert "" not in labels_of(question)


def test_a_judge_that_is_away_ends_the_job(run, judging):
    judging.reply = lambda asked: "never"
    judging.faults = [status(401)] * 100

    question = see_through(ask(run, judging, sample_size=40))

    assert question.state == "failed"
    assert "401" in question.error
    with pytest.raises(UserError) as error:
        services.start([question], None)
    assert error.value.code == "question.not_tried"


def test_an_endpoint_that_refuses_a_schema_is_asked_without(run, judging):
    class Refusing(list):
        def __bool__(self):
            return True

        def pop(self, _):
            asked = judging.asked[-1]
            return status(400) if "response_format" in asked else None

    judging.faults = Refusing()
    question = see_through(ask(run, judging, sample_size=20))

    assert not question.uses_schema
    assert "" not in labels_of(question)
    assert "response_format" not in judging.asked[-1]


def test_a_quote_that_is_not_in_the_text_is_dropped(run, judging):
    judging.reply = lambda asked: reply_of("yes", quote="never written")

    question = see_through(ask(run, judging, sample_size=20))

    assert read_result(question).num_lost_quotes == 5
    labelled = question.sample.exclude(label="")
    assert set(labelled.values_list("label", "quote_from")) == {("yes", None)}


def test_a_host_that_is_not_allowed_is_never_asked(run, judging, monkeypatch):
    monkeypatch.setenv("COHORT_JUDGE_HOSTS", "")

    question = see_through(ask(run, judging, sample_size=20))

    assert question.state == "failed"
    assert judging.asked == []


def test_a_filter_without_matches_fails_with_its_reason(run, judging):
    question = see_through(ask(run, judging, query="text=nothing"))

    assert question.state == "failed"
    assert judging.asked == []


def test_a_long_completion_is_shown_by_its_ends(team, judging):
    run = make_run(team, last_step=1)
    make_group(run, 1, prompt_index=0, rewards=(1.0,), texts=["x" * 30_000 + HEDGE])
    make_blocks(run)

    question = see_through(ask(run, judging, sample_size=20))

    place = question.sample.get()
    assert (place.quote_from, place.quote_to) == (30_000, 30_005)
    assert len(completion_of(judging.asked[0])) < 25_000


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"text": "  "}, "question.empty"),
        ({"labels": [Label("a")]}, "question.bad_labels"),
        ({"labels": [Label("a"), Label("A")]}, "question.bad_labels"),
        ({"labels": [Label("a"), Label("")]}, "question.bad_labels"),
        ({"labels": [Label(f"l{n}") for n in range(13)]}, "question.bad_labels"),
        ({"sample_size": 19}, "question.bad_size"),
        ({"sample_size": 20_001}, "question.bad_size"),
        ({"query": "min_reward=x"}, "question.bad_query"),
        ({"query": "text=" + "x" * 2_000}, "question.bad_query"),
        ({"labels": [Label("yes"), Label("yes ")]}, "question.bad_labels"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(run, judging, fields, code):
    with pytest.raises(UserError) as error:
        ask(run, judging, **fields)

    assert error.value.code == code
    assert not Job.objects.filter(kind="question").exists()


def test_a_team_has_four_open_questions_at_most(run, judging):
    for _ in range(4):
        ask(run, judging)

    with pytest.raises(UserError) as error:
        ask(run, judging)

    assert error.value.code == "question.too_many_open"


# Labels of people.


def label_all(question, user, truth):
    places = services.places_for(question, user)
    for place in places:
        completion = place.group.completions[place.position].text
        services.label_by_hand(question, user, place, truth(completion))
    return places


def is_hedge(completion):
    return "yes" if HEDGE in completion else "no"


def test_people_label_equally_many_of_each_label(run, judging, alice):
    question = ask_all(run, judging, sample_size=100)

    places = label_all(question, alice, is_hedge)

    assert Counter(place.label for place in places) == {"yes": 10, "no": 10}
    assert services.places_for(question, alice) == []
    result = read_result(question)
    assert (result.num_by_hand, result.estimate.kappa.value) == (20, pytest.approx(1.0))
    share = result.estimate.truth[0]
    assert share.low < result.estimate.judge[0].value < share.high


def test_a_completion_that_cannot_be_decided_is_replaced(run, judging, alice):
    question = ask_all(run, judging, sample_size=100)
    place = services.places_for(question, alice)[0]
    services.label_by_hand(question, alice, place, "")

    places = services.places_for(question, alice)

    assert len(places) == 20
    assert place not in places
    assert read_result(question).num_undecided == 1


def test_fifty_labels_contain_the_twenty(run, judging, alice):
    question = ask_all(run, judging, sample_size=160)

    few = services.places_for(question, alice)
    many = services.places_for(question, alice, num=50)

    assert {place.pk for place in few} < {place.pk for place in many}


def test_the_first_persons_label_counts(run, judging, alice, bob):
    question = ask_all(run, judging, sample_size=100)
    label_all(question, alice, is_hedge)
    label_all(question, bob, lambda text: "no" if is_hedge(text) == "yes" else "yes")

    result = read_result(question)

    assert result.estimate.kappa.value == pytest.approx(1.0)
    assert result.agreement == pytest.approx(-1.0)
    assert HandLabel.objects.count() == 40


def send(question, user, places, truth=is_hedge):
    labels = {
        place.pk: truth(place.group.completions[place.position].text)
        for place in places
    }
    services.label_many(question, user, labels)


def test_sent_labels_of_the_draw_count(run, judging, alice):
    question = ask_all(run, judging, sample_size=100)
    places = services.places_for(question, alice)

    send(question, alice, places[:19])
    assert read_result(question).num_by_hand == 0
    assert read_result(question).num_not_drawn == 19
    send(question, alice, places[19:])

    result = read_result(question)
    assert (result.num_by_hand, result.num_not_drawn) == (20, 0)
    assert result.estimate.kappa.value == pytest.approx(1.0)


def test_sent_labels_that_were_chosen_are_left_out(run, judging, alice, bob):
    question = ask_all(run, judging, sample_size=100)
    drawn = label_all(question, alice, is_hedge)
    before = read_result(question).estimate.truth[0]
    others = question.sample.exclude(pk__in=[place.pk for place in drawn])
    yes = list(others.filter(label="yes").select_related("group"))
    first = {place.pk for place in services.places_for(question, bob, num=50)}
    chosen = [place for place in yes if place.pk not in first]

    send(question, bob, chosen, lambda text: "no")

    result = read_result(question)
    assert result.num_not_drawn == len(chosen) > 0
    assert result.num_by_hand == 20
    assert result.estimate.truth[0] == before


def test_a_persons_label_counts_before_one_that_was_sent(run, judging, alice, bob):
    question = ask_all(run, judging, sample_size=100)
    places = services.places_for(question, alice)
    send(question, bob, places, lambda text: "no")

    label_all(question, alice, is_hedge)

    assert read_result(question).estimate.kappa.value == pytest.approx(1.0)


def test_a_result_is_computed_once_until_labels_change(
    run, judging, alice, monkeypatch, django_assert_num_queries
):
    question = ask_all(run, judging, sample_size=100)
    first = read_result(question)
    with django_assert_num_queries(3):  # the newest labels, tokens and prices
        assert read_result(question) is first
    place = services.places_for(question, alice)[0]
    services.label_by_hand(question, alice, place, "yes")
    second = read_result(question)
    assert second.num_by_hand == 1

    services.label_by_hand(question, alice, place, "")

    assert read_result(question).num_by_hand == 0


def test_a_judge_of_the_recipe_is_offered(run, judging):
    params = {"base_url": judging.url, "model": "graded", "key_name": "BIG"}
    rule = {"name": "quality", "kind": "llm_judge", "params": params}
    run.recipe_version = make_recipe(run.team, rules=[rule])
    make_judge(run.team, judging)

    judges = services.list_judges([run, run])

    assert list(judges) == ["judge", f"quality of {run.recipe_version}"]
    [question] = services.ask(
        runs=[run], user=None, text="q?", judge=[*judges.values()][1]
    )
    name = f"quality of {run.recipe_version}"
    assert question.judge == params | {"name": name}


def test_an_unknown_label_is_refused(run, judging, alice):
    question = ask_all(run, judging, sample_size=20)
    place = services.places_for(question, alice)[0]

    with pytest.raises(UserError) as error:
        services.label_by_hand(question, alice, place, "perhaps")

    assert error.value.code == "question.unknown_label"


def test_kinds_are_counted_without_case_and_signs(run, judging):
    question = ask_all(run, judging, sample_size=160)

    num_yes = labels_of(question).count("yes")
    [kind] = read_result(question).kinds
    assert (kind.name, kind.num, kind.phrases) == ("a hedge", num_yes, ["a hedge"])
    assert "notes" not in json.dumps(judging.asked)  # one kind needs no groups


def name_kinds(judging, grouped):
    """Every yes has another kind; `grouped` replies when they are to be grouped."""

    def reply(asked):
        if "[begin" in (text := asked["messages"][1]["content"]) and " notes]" in text:
            return grouped(text)
        completion = completion_of(asked)
        label = "yes" if HEDGE in completion else "no"
        return reply_of(label, kind=completion[-4:])

    judging.reply = reply


def halves(text):
    numbers = list(range(1, len(re.findall(r"^\d+\. ", text, re.MULTILINE)) + 1))
    kinds = {"Ear\0ly": numbers[:5], "Late": numbers[5:]}
    return json.dumps({"kinds": [{"name": n, "notes": of} for n, of in kinds.items()]})


def test_many_kinds_are_grouped_by_one_request(run, judging):
    name_kinds(judging, halves)

    question = ask_all(run, judging, sample_size=100)

    num_yes = labels_of(question).count("yes")
    assert len(judging.asked) == 100 + 1
    late, early = read_result(question).kinds
    assert (late.name, early.name, early.num) == ("Late", "Ear␀ly", 5)
    assert late.num + early.num == num_yes > 13
    spent = services.read_spent(question)
    assert (spent.num_tokens > 30 * 100, spent.expected_tokens) == (True, 30 * 100)
    services.start([question], None)
    see_through(question)
    assert len(judging.asked) == 101


@pytest.mark.parametrize(
    "reply", ["I cannot.", '{"kinds": [{"name": "x", "notes": []}]}']
)
def test_kinds_without_groups_stay_as_they_are(reply, run, judging):
    name_kinds(judging, lambda text: reply)

    question = ask_all(run, judging, sample_size=100)

    assert (question.state, question.kinds) == ("done", {})
    assert services.read_spent(question).num_tokens == 30 * 101
    assert {kind.num for kind in read_result(question).kinds} == {1}


def test_kinds_are_not_grouped_beyond_the_budget(run, judging):
    name_kinds(judging, halves)
    question = see_through(ask(run, judging, sample_size=100))
    services.start([question], None)
    Question.objects.filter(pk=question.pk).update(budget_tokens=100 * 30)

    assert see_through(question).kinds == {}
    assert len(judging.asked) == 100


def test_a_label_is_saved_as_a_tag(run, judging, alice):
    question = ask_all(run, judging, sample_size=160)
    num_yes = labels_of(question).count("yes")

    assert services.save_as_tag(question, alice, "yes") == num_yes
    assert services.save_as_tag(question, alice, "yes") == 0
    assert (
        f"q{question.pk}:yes"
        in json.dumps(
            list(question.sample.first().group.tags.values_list("name", flat=True))
        )
        or num_yes < 160
    )


def test_a_deleted_question_takes_its_labels_along(run, judging, alice):
    question = ask_all(run, judging, sample_size=20)
    label_all(question, alice, is_hedge)

    services.delete(question, alice)

    assert not HandLabel.objects.exists()
