"""Episodes behind their sampling: rewards, records, metrics, masks and credit."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tests.trainer.scored import make_group, make_prompt, run_config
from trainer.algorithm.credit import credit_groups
from trainer.config import LossConfig, RewardConfig
from trainer.errors import error_share
from trainer.events import ScoredCompletion
from trainer.gathering import (
    Gathered,
    SampledBatch,
    load_batch,
    penalise_overlong,
    save_batch,
)
from trainer.model.packing import batch_of
from trainer.output.journal import Journal, turn_records
from trainer.output.log import EventLog
from trainer.output.metrics import (
    completion_metrics,
    episode_metrics,
    own_metrics,
    share_of_waits,
)
from trainer.scoring import HERE, cut_steps
from trainer.types import Group, Rollout, StepScore, ToolCall, Turn

CPU = torch.device("cpu")
CALL = ToolCall(name="add", arguments={"a": 1}, result="2", seconds=0.5)
BAD_CALL = ToolCall(name="", arguments="{", error="The call is no JSON.", seconds=0.0)


def policy_turn(text, *, reward=None, has_end_token=True):
    ids = (7,) * len(text) + (1,) * has_end_token
    return Turn(
        text=text,
        token_ids=ids,
        logprobs=(-0.5,) * len(ids),
        reward=reward,
        has_end_token=has_end_token,
    )


def reply_turn(text, *, calls=(), shown=None, seconds=0.25):
    return Turn(
        author="environment",
        text=text,
        token_ids=(5,) * len(text),
        logprobs=None,
        calls=calls,
        shown=shown,
        seconds=seconds,
    )


def episode(*turns, **fields):
    return Rollout(turns=turns, is_episode=True, **({"end_reason": "done"} | fields))


@pytest.fixture
def played():
    """Three turns of the policy, with an answer and two calls between them."""
    return episode(
        policy_turn("ab", reward=1.0),
        reply_turn("[+]", shown=((1, 2),)),
        policy_turn("c", reward=0.0),
        reply_turn("<2><!>", calls=(CALL, BAD_CALL), shown=((1, 2), (4, 5))),
        policy_turn("17"),
        reward=0.75,
        metrics={"hits": 2.0},
    )


@pytest.fixture
def failed():
    return episode(policy_turn("d"), end_reason="failed", error="no disk")


def recipe_of(*rules):
    return RewardConfig.model_validate({"recipe": {"rules": list(rules)}})


def score(reward, *completions, **options):
    scoring = HERE.begin([make_prompt()], reward, **options)
    return scoring.finish([completions])[0]


ENVIRONMENT = {"name": "whole", "kind": "environment"}


def test_rules_read_the_environments_rewards(played):
    reward = recipe_of(
        ENVIRONMENT,
        {"name": "mean", "kind": "turn_rewards"},
        {"name": "sum", "kind": "turn_rewards", "params": {"of": "sum"}},
        {"name": "last", "kind": "turn_rewards", "params": {"of": "last"}},
    )

    [scored] = score(reward, played).scores

    # turns: 1, 0 and none
    assert scored.rules == pytest.approx(
        {"whole": 0.75, "mean": 1 / 3, "sum": 1.0, "last": 0.0}
    )
    assert scored.metrics == {"environment": {"hits": 2.0}}
    assert own_metrics([scored]) == {"reward/environment/hits/mean": 2.0}


def test_an_episode_without_a_reward_has_the_lowest():
    rule = ENVIRONMENT | {"params": {"minimum": -2.0}}
    cut = episode(policy_turn("9", has_end_token=False), end_reason="length")

    assert score(recipe_of(rule), cut).scores[0].total == -2.0


@pytest.mark.parametrize("reward", [1.5, -0.5])
def test_an_environments_reward_out_of_bounds_is_no_score(played, reward):
    [scored] = score(recipe_of(ENVIRONMENT), replace(played, reward=reward)).scores

    assert scored.total is None
    assert scored.failed == ["whole"]


def test_a_completion_of_one_turn_has_nothing_that_an_environment_gave():
    one = Rollout.of_one_turn(
        text="9", token_ids=(7, 1), logprobs=(-0.5, -0.5), end_reason="stop"
    )

    [scored] = score(recipe_of(ENVIRONMENT), one).scores

    assert (scored.total, scored.not_applicable) == (None, ["whole"])


def test_rules_judge_the_policys_words_and_not_the_environments(played):
    def contains(text):
        return {"name": "has", "kind": "contains", "params": {"phrases": [text]}}

    said = [score(recipe_of(contains(text)), played) for text in ("17", "+", "<2>")]

    assert [group.scores[0].total for group in said] == [1.0, 0.0, 0.0]


def test_an_episode_that_failed_has_no_score_and_counts_as_an_error(played, failed):
    reward = recipe_of(ENVIRONMENT, {"name": "length", "kind": "length"})

    group = score(reward, played, failed, played)

    assert [one.total for one in group.scores] == [1.75, None, 1.75]
    assert group.scores[1].errors == {"whole": "no disk", "length": "no disk"}
    assert error_share([group]) == pytest.approx(2 / 6)


def test_a_function_of_trls_form_gets_messages(played):
    source = (
        "def trl_reward(completions, **kwargs):\n"
        "    roles = [[turn['role'] for turn in turns] for turns in completions]\n"
        "    wanted = ['assistant', 'user', 'assistant', 'tool', 'tool', 'assistant']\n"
        "    names = [turn.get('name') for turn in completions[0]]\n"
        "    assert names == [None, None, None, 'add', '', None], names\n"
        "    assert completions[0][1]['content'] == '+'\n"
        "    return [float(each == wanted) for each in roles]\n"
    )
    rule = {"name": "f", "kind": "python_function", "params": {"source": source}}

    [scored] = score(recipe_of(rule), played).scores

    assert (scored.total, scored.errors) == (1.0, {})


def test_a_function_of_cohorts_form_may_ask_for_the_turns(played):
    source = (
        "def reward(turns):\n"
        "    calls = [turn['call'] for turn in turns if turn['role'] == 'tool']\n"
        "    assert calls[0]['arguments'] == {'a': 1}\n"
        "    return sum(bool(call['error']) for call in calls) / 4\n"
    )
    rule = {"name": "f", "kind": "python_function", "params": {"source": source}}

    assert score(recipe_of(rule), played).scores[0].total == 0.25


def test_records_say_where_each_message_is(played):
    records = turn_records(played)

    texts = [played.text[record.start : record.end] for record in records]
    assert texts == ["ab", "+", "c", "2", "!", "17"]
    assert [record.author for record in records] == [
        *("policy", "environment", "policy", "tool", "tool", "policy")
    ]
    assert [record.token_end for record in records] == [3, 6, 8, 14, 14, 17]
    assert [record.seconds for record in records] == [None, 0.25, None, 0.5, 0.0, None]
    assert [record.reward for record in records] == [1.0, None, 0.0, None, None, None]
    [[call], [bad]] = [records[3].calls, records[4].calls]
    assert (call.name, call.arguments, call.result) == ("add", '{"a": 1}', "2")
    assert (bad.name, bad.arguments, bad.error) == ("", "{", "The call is no JSON.")


def test_records_of_long_calls_are_cut():
    call = ToolCall(name="x" * 9_000, arguments={"a": "b" * 9_000}, result="c" * 9_000)
    [_, record] = turn_records(
        episode(policy_turn("a"), reply_turn("c", calls=(call,), shown=((0, 1),)))
    )

    assert len(record.name) == len(record.calls[0].arguments) == 2_000
    assert len(record.calls[0].result) == 2_000


def test_records_of_many_calls_are_cut_to_what_an_event_carries():
    call = ToolCall(name="x" * 9_000, arguments="b" * 9_000, result="c" * 9_000)
    turns = [policy_turn("a"), reply_turn("c", calls=(call,), shown=((0, 1),))] * 200

    records = turn_records(episode(*turns))

    sizes = [len(r.calls[0].result) for r in records if r.calls]
    assert (len(sizes), sum(sizes)) == (200, 200 * (65_536 // 200))


def test_a_completion_of_one_turn_has_no_records():
    one = Rollout.of_one_turn(
        text="9", token_ids=(7, 1), logprobs=(-0.5, -0.5), end_reason="stop"
    )

    assert turn_records(one) == []


def test_a_completion_of_one_turn_is_logged_without_turns(played):
    fields = {
        "text": "9",
        "num_tokens": 2,
        "end_reason": "stop",
        "reward": 1.0,
        "rules": {},
        "advantage": 0.0,
        "mean_logprob": -0.5,
    }

    one, several = (
        ScoredCompletion(**fields, turns=turns).model_dump(mode="json")
        for turns in ([], turn_records(played))
    )

    assert "turns" not in one
    assert len(several["turns"]) == 6


@pytest.mark.parametrize("is_chat", [True, False])
def test_only_a_group_of_conversations_is_logged_with_its_messages(
    played, tmp_path, is_chat
):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    tokenizer.chat_template = "{{ messages }}" if is_chat else None
    messages = ({"role": "user", "content": "?"},)
    single = make_group(1.0)
    group = score(recipe_of(ENVIRONMENT), played)
    with EventLog(tmp_path / "events.jsonl", attempt=1) as log:
        journal = Journal(log, tokenizer)
        for own in (group, single):
            own = replace(own, prompt=replace(own.prompt, messages=messages))
            journal._record_group(
                own, [0.0], run_config(), 2, is_trained=True, age=None
            )

    lines = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    logged = [line.get("messages") for line in lines]
    assert logged == [list(messages) if is_chat else None, None]


def test_metrics_count_turns_calls_and_ends(played, failed):
    out_of_turns = episode(policy_turn("e", reward=0.5), end_reason="turns")
    group = score(recipe_of(ENVIRONMENT), played, failed, out_of_turns, played)

    assert episode_metrics([group]) == pytest.approx(
        {
            "episode/num_turns": (3 + 1 + 1 + 3) / 4,
            "episode/num_tool_calls": 1.0,
            "episode/frac_failed": 0.25,
            "episode/frac_rewritten": 0.0,
            "episode/frac_out_of_turns": 0.25,
            "episode/reply_tokens": 2 * 9 / 4,
            "episode/frac_tool_errors": 0.5,
            "reward/turn1": (1.0 + 0.5 + 1.0) / 3,
            "reward/turn2": 0.0,
        }
    )
    # 8, 2, 2 and 8 tokens of the policy
    assert completion_metrics([group])["completion/mean_length"] == 5.0


def test_metrics_of_single_turns_have_no_episodes():
    one = Rollout.of_one_turn(
        text="9", token_ids=(7, 1), logprobs=(-0.5, -0.5), end_reason="stop"
    )
    group = score(recipe_of({"name": "length", "kind": "length"}), one)

    assert episode_metrics([group]) == {}


def test_only_the_policys_tokens_are_overlong(played):
    config = run_config(
        reward={"overlong_buffer_tokens": 8, "overlong_penalty": 1.0},
        rollout={"max_new_tokens": 16},
    )
    group = score(recipe_of(ENVIRONMENT), played)

    [penalised] = penalise_overlong([group], config)

    # 8 tokens of the policy are just outside of the buffer, all 17 would be beyond it
    assert penalised.scores[0].total == 0.75


def test_the_end_of_every_turn_is_masked(played):
    group = Group(prompt=make_prompt(), completions=(played,), scores=())

    whole, masked = (
        batch_of([group], LossConfig(mask_end_token=mask)).pack([0], device=CPU)
        for mask in (False, True)
    )

    own = [1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert whole.mask.int().tolist() == [own]
    ends = (2, 7, 16)
    assert masked.mask.int().tolist() == [
        [0 if place in ends else value for place, value in enumerate(own)]
    ]


@pytest.mark.parametrize("reason", ["length", "turns", "timeout"])
def test_an_episode_that_was_cut_off_is_left_out_where_that_is_asked(played, reason):
    cut = replace(played, end_reason=reason)
    group = Group(prompt=make_prompt(), completions=(cut,), scores=())

    micro = batch_of([group], LossConfig(mask_truncated=True)).pack([0], device=CPU)

    assert micro.mask.sum() == 0


def test_steps_of_an_episode_are_its_turns(played, policy):
    steps = cut_steps(played, pattern="b", tokenizer=policy.tokenizer)

    assert [(step.text, step.end) for step in steps] == [
        ("ab", 3),
        ("c", 8),
        ("17", 17),
    ]


def test_credit_by_turn_reaches_the_tokens_of_the_turn_and_those_before(played, policy):
    """By hand: turns 1 and 0, the last with the episode's 0.75; beside it 0 and 0."""
    config = run_config(
        advantage={"credit": "process", "baseline": "mean", "scale": "none"},
        environment={"kind": "guess", "max_tokens": 10_000},
    )
    beside = replace(
        played,
        turns=tuple(
            replace(turn, reward=None if turn.reward is None else 0.0)
            for turn in played.turns
        ),
        reward=0.0,
    )
    group = score(recipe_of(ENVIRONMENT), played, beside, tokenizer=policy.tokenizer)

    credit = credit_groups([group], config, step=1)

    assert group.step_scores == (
        (StepScore(3, 1.0), StepScore(8, 0.0), StepScore(17, None)),
        (StepScore(3, 0.0), StepScore(8, 0.0), StepScore(17, None)),
    )
    mean = (1.0 + 0.0 + 0.75 + 0.0 + 0.0 + 0.0) / 6
    first, second, third = 1.0 - mean, -mean, 0.75 - mean
    assert credit.tokens is not None
    expected = [first + second + third] * 3 + [second + third] * 5 + [third] * 9
    assert credit.tokens[0].tolist() == pytest.approx(expected)
    own = [
        value
        for value, is_own in zip(expected, played.loss_mask, strict=True)
        if is_own
    ]
    assert credit.advantages[0, 0] == pytest.approx(sum(own) / len(own))


def test_a_failed_episode_has_no_steps_that_are_compared(failed, played, policy):
    group = score(recipe_of(ENVIRONMENT), played, failed, tokenizer=policy.tokenizer)

    assert group.step_scores is not None
    assert group.step_scores[1] == (StepScore(2, None),)


def test_a_saved_batch_keeps_what_episodes_have(played, failed, tmp_path):
    group = score(recipe_of(ENVIRONMENT), played, failed)
    batch = SampledBatch(
        step=2,
        own_prompts=frozenset({0}),
        num_updates=1,
        gathered=Gathered(
            groups=[group],
            dropped=[],
            num_rounds=1,
            num_sampled_tokens=10,
            has_signal=True,
            scoring_seconds=0.5,
        ),
    )
    save_batch(tmp_path / "ahead", batch)

    assert load_batch(tmp_path / "ahead", [group.prompt]) == batch


def test_time_of_environments_is_a_metric_of_runs_with_one(played):
    group = score(recipe_of(ENVIRONMENT), played, played)
    gathered = Gathered(
        groups=[group],
        dropped=[],
        num_rounds=1,
        num_sampled_tokens=16,
        has_signal=True,
        scoring_seconds=0.0,
        idle_seconds=0.125,
    )

    metrics = gathered.metrics

    assert metrics["time/environment"] == 1.0
    assert metrics["time/environment_idle"] == 0.125


def test_waits_are_shares_of_the_time_in_which_they_fell():
    waits: dict[str, float | None] = {"time/environment_idle": 1.0}
    sampled = {"time/generate": 4.0}
    ahead = {"time/generate": 0.0, "time/ahead_generate": 2.0}

    assert share_of_waits(sampled) == {}
    assert share_of_waits(waits | sampled) == {"time/environment_share": 0.25}
    assert share_of_waits(waits | ahead) == {"time/environment_share": 0.5}
    assert share_of_waits(waits | {"time/generate": 0.5}) == {
        "time/environment_share": 1.0
    }
    assert share_of_waits(waits | {"time/generate": 0.0}) == {}
