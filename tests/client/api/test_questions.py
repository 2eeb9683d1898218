"""`client.questions` against a real web process, with a judge that sees hedging."""

from collections.abc import Iterator

import pytest

from cohort import Refused
from cohort.api.records import LabelShare
from dashboard.analysis.questions.models import HandLabel, Question
from dashboard.runs.models import Run
from tests.dashboard.analysis.questions.factories import (
    answer_honestly,
    make_hedging_run,
    make_judge,
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
def run(team, judging) -> Run:
    make_priced_judge(team, judging)
    return make_hedging_run(team)


def test_a_question_is_asked_and_its_labels_are_read(client, run):
    asked = client.questions.ask(client.runs.get(run.pk), "Does it hedge?", sample=60)
    row = see_through(Question.objects.get())
    tried = asked.wait()
    tried.start()
    see_through(row)
    labels = list(tried.labels())
    drawn = {label.id for label in tried.labels(drawn=20)}
    tried.label_by_hand({label.id: label.label for label in labels})
    question = tried.refresh()

    assert (asked.judge, asked.label_names) == ("judge", ["yes", "no"])
    assert (tried.state, tried.num_asked, tried.num_sampled) == ("done", 5, 60)
    assert tried.expected_cost == pytest.approx(60 * 30 / 1e6)
    assert {label.label for label in labels} == {"yes", "no"}
    assert (len(labels), len(list(tried.labels(limit=7)))) == (60, 7)
    assert drawn < {label.id for label in labels}
    assert len(drawn) == 20
    assert question.num_not_drawn == 0
    assert HandLabel.objects.count() == 60
    yes = question.shares[0]
    assert isinstance(yes, LabelShare)
    assert (yes.label, yes.judge.value) == ("yes", yes.corrected.value)
    assert question.kappa.value == pytest.approx(1)
    assert [one.id for one in client.questions.list()] == [asked.id]
    with pytest.raises(Refused, match="done"):
        question.stop()


def test_a_judge_is_named_where_there_are_several(client, run, team):
    make_judge(team, name="other")

    with pytest.raises(Refused) as refused:
        client.questions.ask(run.pk, "Does it hedge?")
    named = client.questions.ask(
        run.pk, "Hedge?", judge="judge", labels={"a": "", "b": ""}
    )

    assert refused.value.code == "question.unknown_judge"
    assert named.label_names == ["a", "b"]
