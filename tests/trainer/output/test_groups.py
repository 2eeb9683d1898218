"""What a group teaches, and the numbers logged of it."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.trainer.scored import make_group
from trainer.events import Warned, parse_event
from trainer.output.journal import Journal
from trainer.output.log import EventLog
from trainer.output.metrics import completion_metrics, reward_metrics, signal_metrics
from trainer.rewards.scoring import Score, signal_of
from trainer.rewards.spec import Recipe
from trainer.types import Group, reward_std

RECIPE = Recipe.model_validate({"rules": [{"name": "rule", "kind": "length"}]})


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ((0.0, 1.0), "mixed"),
        ((0.0, None, 0.5), "mixed"),
        ((0.1 + 0.2 + 0.7, 1.0), "all_right"),  # rounding is no difference to learn
        ((1.0, 1.0, None), "all_right"),
        ((0.0, 0.0), "all_wrong"),
        ((0.5, 0.5), "tied"),
        ((None, None), "unscorable"),
    ],
)
def test_signals(rewards, signal):
    assert signal_of(make_group(*rewards).scores, RECIPE, step=1) == signal


def test_equal_rewards_of_correct_answers_are_all_right_below_the_highest():
    kinds = ("numeric_answer", "format_tags", "length")
    rules = [{"name": kind, "kind": kind} for kind in kinds]
    recipe = Recipe.model_validate({"rules": rules})
    right = Score(2.0, {"numeric_answer": 1, "format_tags": 1, "length": 0}, {})
    wrong = Score(2.0, {"numeric_answer": 0, "format_tags": 1, "length": 1}, {})

    assert signal_of([right, right], recipe, step=1) == "all_right"
    assert signal_of([right, wrong], recipe, step=1) == "tied"


def test_shares_of_groups_add_up():
    signals = ["mixed", "all_right", "all_wrong", "tied"]

    metrics = signal_metrics(signals)

    assert metrics["group/frac_zero_std"] == 0.75
    assert metrics["group/frac_all_max"] == metrics["group/frac_all_min"] == 0.25
    assert metrics["group/frac_tied"] == 0.25
    assert metrics["group/num_effective"] == 1


def test_spread_within_groups_is_not_that_of_the_batch():
    metrics = reward_metrics(
        [make_group(0.0, 0.0), make_group(5.0, 5.0)],
        RECIPE,
        ddof=0,
    )

    assert metrics["reward/mean"] == 2.5
    assert metrics["reward/std"] == 2.5
    # between the values of rank 0.3 and 2.7 of 0, 0, 5, 5
    assert (metrics["reward/p10"], metrics["reward/p90"]) == (0.0, 5.0)
    assert metrics["group/std_mean"] == 0.0
    assert metrics["reward/rule/mean"] == 2.5


def test_a_tenth_of_the_rewards_is_below_the_10th_percentile():
    rewards = [float(reward) for reward in range(10)]
    groups = [make_group(*rewards[:5]), make_group(*rewards[5:], None)]

    metrics = reward_metrics(groups, RECIPE, ddof=0)

    assert metrics["reward/p10"] == pytest.approx(0.9)
    assert metrics["reward/p90"] == pytest.approx(8.1)


def test_nothing_scored_gives_no_numbers():
    metrics = reward_metrics([make_group(None, None)], RECIPE, ddof=1)

    assert set(metrics.values()) == {None}
    assert reward_std(make_group(None, None), ddof=1) is None


def test_cut_completions_are_counted():
    metrics = completion_metrics([make_group(1.0, 1.0, lengths=(4, 2))])

    assert metrics["completion/mean_length"] == 3
    assert metrics["completion/frac_truncated"] == 0.5


def test_a_run_keeps_the_first_1_000_metrics_that_functions_name(tmp_path):
    """And warns once of the rule that gives most."""

    def groups(*names: str) -> list[Group]:
        metrics = {"f": dict.fromkeys(names, 1.0), "g": {"a": 2.0}}
        group = make_group(1.0)
        return [replace(group, scores=(replace(group.scores[0], metrics=metrics),))]

    path = tmp_path / "events.jsonl"
    with EventLog(path, attempt=1) as log:
        unused = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
        journal = Journal(log, unused)
        first = journal.own_metrics(groups(*(f"{n}" for n in range(700))))
        second = journal.own_metrics(groups(*(f"{n}" for n in range(600, 1_400))))
        third = journal.own_metrics(groups("0", "new"))

    assert len(first) == 701
    assert len(first | second) == 1_000
    assert first.keys() | second.keys() >= {"reward/f/600/mean", "reward/g/a/mean"}
    assert third == {"reward/f/0/mean": 1.0, "reward/g/a/mean": 2.0}
    [warned] = map(parse_event, path.read_bytes().splitlines())
    assert isinstance(warned, Warned)
    assert (warned.value, warned.threshold) == (1_400, 1_000)
    assert '"f"' in warned.message
