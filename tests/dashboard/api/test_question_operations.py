"""Questions by the API."""

from collections.abc import Iterator

import pytest

from dashboard.analysis.questions.models import HandLabel, Question
from tests.dashboard.analysis.questions.factories import (
    HEDGE,
    answer_honestly,
    make_hedging_run,
    make_priced_judge,
    see_through,
)
from tests.trainer.rewards.judge_server import Judging, judge_server


@pytest.fixture
def judging(monkeypatch) -> Iterator[Judging]:
    with judge_server() as server:
        monkeypatch.setenv("COHORT_JUDGE_HOSTS", server.url.split("/")[2])
        server.reply = answer_honestly
        yield server


@pytest.fixture
def body(team, judging):
    make_priced_judge(team, judging)
    run = make_hedging_run(team)
    return {"run_id": run.pk, "text": "Does it hedge?", "judge": "judge"}


def test_a_question_is_tried_started_and_labelled(program, body):
    tried = program.post("/questions", body | {"sample_size": 60})
    assert tried.status_code == 201
    address = f"/questions/{tried.json()['id']}"
    question = see_through(Question.objects.get())
    expected = program.read(address)
    assert (expected["num_asked"], expected["num_sampled"]) == (5, 60)
    assert expected["expected_tokens"] == 60 * 30
    assert expected["expected_cost"] == pytest.approx(60 * 30 / 1e6)

    assert program.post(f"{address}/start").json()["done"] is True
    assert program.post(f"{address}/start").status_code == 409
    see_through(question)

    labels = program.read(f"{address}/labels?limit=100")
    assert labels["total"] == 60
    by_hand = [{"id": each["id"], "label": each["label"]} for each in labels["items"]]
    assert (
        program.post(f"{address}/hand-labels", {"labels": by_hand}).status_code == 200
    )
    found = program.read(address)
    assert (found["num_labelled"], found["num_by_hand"]) == (60, 60)
    assert found["kappa"]["value"] == pytest.approx(1)
    [yes, no] = found["shares"]
    assert (yes["label"], no["label"]) == ("yes", "no")
    assert yes["corrected"]["value"] == pytest.approx(yes["judge"]["value"])
    assert program.read("/questions")["items"][0]["labels"] == ["yes", "no"]


def test_the_draw_is_listed_for_labels_to_send(program, body):
    program.post("/questions", body | {"sample_size": 60})
    question = see_through(Question.objects.get())
    address = f"/questions/{question.pk}"
    program.post(f"{address}/start")
    see_through(question)

    drawn = program.read(f"{address}/labels?drawn=20&limit=100")["items"]
    assert len(drawn) == 20
    chosen = {each["label"] for each in drawn}
    others = question.sample.exclude(pk__in=[each["id"] for each in drawn])
    wrong = [{"id": others.last().pk, "label": "no"}]
    program.post(f"{address}/hand-labels", {"labels": wrong})
    assert chosen == {"yes", "no"}
    assert program.read(address)["num_not_drawn"] == 1
    labels = [{"id": each["id"], "label": each["label"]} for each in drawn]
    program.post(f"{address}/hand-labels", {"labels": labels})

    assert program.read(address)["num_by_hand"] >= 20
    assert program.read(f"{address}/labels?drawn=20")["items"] == []


def test_hand_labels_are_stored_all_or_none(program, body):
    program.post("/questions", body)
    question = see_through(Question.objects.get())
    first = question.sample.first().pk
    address = f"/questions/{question.pk}/hand-labels"

    for wrong in ({"id": first, "label": "maybe"}, {"id": 2**40, "label": "yes"}):
        sent = {"labels": [{"id": first, "label": "yes"}, wrong]}
        assert program.post(address, sent).status_code == 409

    assert not HandLabel.objects.exists()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"judge": "other"}, "question.unknown_judge"),
        ({"labels": [{"name": "a"}]}, "question.bad_labels"),
        ({"query": "min_reward=x"}, "question.bad_query"),
        ({"text": " "}, "question.empty"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(change, code, program, body):
    response = program.post("/questions", body | change)

    assert response.status_code == 422
    assert response.json()["code"] == code


def test_a_question_is_stopped_and_deleted(program, body):
    address = f"/questions/{program.post('/questions', body).json()['id']}"

    assert program.delete(address).status_code == 409
    assert program.post(f"{address}/stop").json()["done"] is True
    assert program.delete(address).json()["done"] is True
    assert not Question.objects.exists()


def test_a_question_with_a_filter_keeps_it(program, body):
    program.post("/questions", body | {"query": f"text={HEDGE}"})

    question = see_through(Question.objects.get())

    assert set(question.sample.exclude(label="").values_list("label")) == {("yes",)}
