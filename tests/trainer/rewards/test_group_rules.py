"""Rules that compare the completions of one prompt."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.trainer.rewards.scores import recipe_of
from tests.trainer.scored import make_prompt
from tests.trainer.waiting import wait_until
from trainer.config import RewardConfig
from trainer.rewards.rule import Batching, NotApplicable, Outcome, Sample, Unscorable
from trainer.rewards.rules import RULES
from trainer.rewards.scoring import score_all
from trainer.rewards.spec import Recipe
from trainer.scoring import Scorer
from trainer.types import Group, Rollout

LENGTH = RULES["length"]
MIXED = Recipe.model_validate(
    {
        "rules": [
            {"name": "most", "kind": "majority"},
            {"name": "short", "kind": "length", "params": {"maximum": 3}},
            {
                "name": "rank",
                "kind": "length_rank",
                "params": {"answer_kind": "numeric_answer"},
                "only_if": {"rule": "most", "at_least": 1},
            },
        ]
    }
)


def texts(*completions: str) -> list[Sample]:
    return [Sample("p", text, "4") for text in completions]


def group_of(*completions: str) -> tuple[Rollout, ...]:
    return tuple(
        Rollout.of_one_turn(
            text=text, token_ids=(3,), logprobs=(0.0,), end_reason="stop"
        )
        for text in completions
    )


def test_rules_for_one_and_for_a_group_stand_in_the_recipes_order():
    scores = score_all(MIXED, texts("4", "so 4", "it is 5"))

    assert [list(score.rules) for score in scores] == [["most", "short", "rank"]] * 3
    assert [score.total for score in scores] == [2.5, pytest.approx(1.0), 0.0]


def test_a_worker_judges_groups_as_this_process_does():
    with closing(Scorer(1)) as scorer:
        found = scorer.submit(MIXED, texts("4", "so 4", "5", "\ud800"), name="row 0")()

    assert found.scores == score_all(MIXED, texts("4", "so 4", "5", "\ud800"))


def test_a_group_rule_may_give_some_a_score_and_others_none(monkeypatch):
    def judge(samples: Sequence[Sample], params: Any) -> list[Outcome]:
        return [NotApplicable("no"), Unscorable("lost"), *[0.5] * (len(samples) - 2)]

    rule = replace(LENGTH, score=None, score_group=judge)
    monkeypatch.setitem(RULES, "length", rule)

    first, second, third = score_all(recipe_of("length"), texts("a", "b", "c"))

    assert (first.total, first.not_applicable, first.failed) == (None, ["it"], [])
    assert (second.total, second.not_applicable, second.failed) == (None, [], ["it"])
    assert third.total == 0.5


def test_a_group_rule_that_omits_a_completion_fails(monkeypatch):
    rule = replace(LENGTH, score=None, score_group=lambda samples, _: [1.0])
    monkeypatch.setitem(RULES, "length", rule)

    with pytest.raises(AssertionError, match="1 outcomes of 2"):
        score_all(recipe_of("length"), texts("a", "b"))


class Others:
    """Someone who is asked, and answers when let."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.threads: set[str] = set()
        self.may_answer = threading.Event()
        self.error: Exception | None = None

    def judge(self, samples: Sequence[Sample], params: Any) -> list[Outcome]:
        self.asked.append([sample.completion for sample in samples])
        self.threads.add(threading.current_thread().name)
        assert self.may_answer.wait(30)
        if self.error is not None:
            raise self.error
        return [float(len(sample.completion)) for sample in samples]


@pytest.fixture
def others(monkeypatch) -> Iterator[Others]:
    found = Others()
    batching = Batching(
        score=found.judge, most_at_once=lambda _: 4, num_calls=lambda _: 1
    )
    rule = replace(LENGTH, score=None, batching=batching, bounds=lambda _: (0.0, 99.0))
    monkeypatch.setitem(RULES, "length", rule)
    yield found
    found.may_answer.set()


def totals(groups: Sequence[Group]) -> list[list[float | None]]:
    return [[score.total for score in group.scores] for group in groups]


def test_groups_that_wait_are_requested_together(others):
    reward = RewardConfig(recipe=recipe_of("length"))
    groups = [group_of("a", "bb"), *[group_of("c", "d")] * 2, group_of("ccc")]
    with closing(Scorer(0)) as scorer:
        scoring = scorer.begin([make_prompt(n) for n in range(4)], reward)
        scoring.add(0, groups[0])
        wait_until(lambda: bool(others.asked))
        for index in (1, 2, 3):
            scoring.add(index, groups[index])
        others.may_answer.set()

        found = scoring.finish(groups)

    assert totals(found) == [[1, 2], [1, 1], [1, 1], [3]]
    assert others.asked == [["a", "bb"], ["c", "d", "c", "d"], ["ccc"]]


def test_a_group_that_is_larger_than_a_call_is_requested_in_parts(others):
    others.may_answer.set()

    (score, *_) = score_all(recipe_of("length"), texts(*"abcdef"))

    assert score.total == 1.0
    assert others.asked == [list("abcd"), list("ef")]


@pytest.mark.parametrize("act", ["fail", "raise"])
def test_waiting_callers_get_the_error(others, act):
    others.may_answer.set()
    others.error = Unscorable("No reply.") if act == "fail" else KeyError("x")
    with closing(Scorer(0)) as scorer:
        result = scorer.submit(recipe_of("length"), texts("a", "b"), name="row 0")

        if act == "raise":
            with pytest.raises(KeyError):
                result()
        else:
            assert [score.errors for score in result().scores] == [
                {"it": "No reply."}
            ] * 2


def test_scores_from_elsewhere_join_local_scores(others):
    others.may_answer.set()
    recipe = Recipe.model_validate(
        {
            "rules": [
                {"name": "asked", "kind": "length"},
                {"name": "here", "kind": "tag_count"},
            ],
            "combine": "product",
        }
    )
    with closing(Scorer(0)) as scorer:
        found = scorer.submit(recipe, texts("<answer>"), name="row 0")()

    assert found.scores[0].rules == {"asked": 8.0, "here": 0.25}
    assert found.scores[0].total == 2.0


def test_closing_cancels_what_still_waits(others):
    scorer = Scorer(0)
    results: list[Callable[[], Any]] = []
    for text in ("under way", "waiting"):
        results.append(scorer.submit(recipe_of("length"), texts(text), name="row"))
        wait_until(lambda: bool(others.asked))

    scorer.close()
    others.may_answer.set()

    assert results[0]().scores[0].total == 9.0
    with pytest.raises(BaseException, match=r"^$"):
        results[1]()


def agreeing(*completions: str, **params: Any) -> list[float | None]:
    samples = [Sample("p", text) for text in completions]
    return [
        score.total for score in score_all(recipe_of("majority", **params), samples)
    ]


def test_the_most_frequent_answer_scores_however_it_is_written():
    found = agreeing("It is 0.5", "so 1/2", "no, 3", "$0.50", "I do not know")

    assert found == [1.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "settings", "completions"),
    [
        ("numeric_answer", {"source": "boxed"}, [r"\boxed{4}", r"\boxed{4.0} or 5"]),
        ("numeric_answer", {"source": "marker"}, ["#### 4\n5", "so #### $4"]),
        ("multiple_choice", {}, ["<answer>(B)</answer>", "<answer>b.</answer>"]),
        ("exact_answer", {"source": "boxed"}, [r"\boxed{Paris}", r"\boxed{ paris.}"]),
        ("marker_answer", {}, ["#### 1,000", "#### 1000"]),
    ],
)
def test_answers_are_read_as_their_rule_reads_them(kind, settings, completions):
    found = agreeing(*completions, "C", answer_kind=kind, answer_params=settings)

    assert found == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(("ties", "expected"), [("none", 0.0), ("all", 1.0)])
def test_a_tie_is_nobodys_or_everybodys(ties, expected):
    assert agreeing("1", "2", "1", "2", "3", ties=ties) == [*[expected] * 4, 0.0]


def test_an_answer_of_one_completion_is_not_a_majority():
    assert agreeing("1", "none", ties="all") == [0.0, 0.0]
    assert agreeing("none", "neither") == [0.0, 0.0]


def test_a_share_may_be_requested():
    assert agreeing("1", "1", "2", "3", minimum_share=0.5) == [1.0, 1.0, 0.0, 0.0]
    assert agreeing("1", "1", "2", "3", minimum_share=0.51) == [0.0] * 4


def test_a_single_completion_has_no_majority_and_no_error():
    (score,) = score_all(recipe_of("majority"), [Sample("p", "4")])

    assert score.total is None
    assert score.not_applicable == ["it"]
