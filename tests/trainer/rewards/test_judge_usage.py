"""Calls and tokens of judges, as the endpoint tells them."""

import pytest

from tests.trainer.rewards.scores import recipe_of
from trainer.rewards.model_judge.client import Reply
from trainer.rewards.rule import Sample
from trainer.rewards.scoring import add_usage, score_all, usage_metrics
from trainer.rewards.session import open_session
from trainer.rewards.workers import GroupScorer

USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 16},
}


@pytest.fixture
def recipe(judging):
    return recipe_of("llm_judge", base_url=judging.url, model="m")


def usage_of(recipe, *texts):
    samples = [Sample("2+2?", text) for text in texts]
    return usage_metrics(add_usage(score_all(recipe, samples)))


def metrics_of(*, calls, without=0, reused=0, tokens):
    names = ("input_tokens", "cached_tokens", "output_tokens")
    return {
        "judge/it/calls": calls,
        "judge/it/calls_without_usage": without,
        "judge/it/from_file": reused,
        **{f"judge/it/{n}": v for n, v in zip(names, tokens, strict=True)},
    }


def test_input_tokens_leave_out_those_that_the_endpoint_had_cached(recipe, judging):
    judging.usage = USAGE

    assert usage_of(recipe, "4", "5") == metrics_of(calls=2, tokens=(8, 32, 20))


@pytest.mark.parametrize(
    ("usage", "tokens", "without"),
    [
        ({}, (None, None, None), 1),
        ({"prompt_tokens": 20}, (None, None, None), 1),
        ({"prompt_tokens": 20, "completion_tokens": 5}, (20, None, 5), 0),
        (USAGE | {"prompt_tokens_details": {"cached_tokens": 21}}, (20, None, 10), 0),
        (USAGE | {"prompt_tokens_details": None}, (20, None, 10), 0),
        (USAGE | {"prompt_tokens_details": [16]}, (20, None, 10), 0),
        (
            {"prompt_tokens": 20, "completion_tokens": 5, "cached_tokens": 0},
            (20, 0, 5),
            0,
        ),
    ],
)
def test_tokens_that_no_reply_tells_are_unknown(
    usage, tokens, without, recipe, judging
):
    judging.usage = usage

    assert usage_of(recipe, "4") == metrics_of(calls=1, without=without, tokens=tokens)


def test_an_equal_question_and_an_earlier_answer_cost_nothing(
    recipe, judging, tmp_path
):
    judging.usage = USAGE
    with open_session(tmp_path):
        first = usage_of(recipe, "4", "4")
    with open_session(tmp_path):
        second = usage_of(recipe, "4")

    assert first == metrics_of(calls=1, reused=1, tokens=(4, 16, 10))
    assert second == metrics_of(calls=0, reused=1, tokens=(0, 0, 0))


def test_an_unreadable_answer_is_paid_for(recipe, judging):
    judging.usage = USAGE
    judging.reply = lambda asked: "I would rather not."

    assert usage_of(recipe, "4")["judge/it/output_tokens"] == 10


def test_threads_that_call_a_judge_count_for_their_groups(recipe, judging):
    judging.usage = USAGE
    scorer = GroupScorer(0)
    groups = [[Sample("2+2?", text)] for text in ("4", "5", "6")]

    results = [scorer.submit(recipe, group, name="row 0") for group in groups]
    scores = [score for result in results for score in result().scores]
    scorer.close()

    assert add_usage(scores)["it"]["calls"] == 3


def test_a_file_keeps_what_a_reply_took():
    reply = Reply("7", 30, is_cut=False, num_tokens_in=20, num_tokens_out=10)

    assert reply.usage == {"calls": 1, "input_tokens": 20, "output_tokens": 10}
