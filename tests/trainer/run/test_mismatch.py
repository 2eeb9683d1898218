"""What a run stores of the gap between sampler and trainer."""

import json
import math
from itertools import accumulate, pairwise

import numpy as np
import pytest

from cohort.mismatch import GAP_EDGES
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)

ALL_TOKENS = {"token_groups": 64, "tokens_every_steps": 1}
# The second minibatch is trained on behind an update by the first, and every batch but
# the first was sampled with older weights.
STALE = {
    "rollout": {"one_step_off": True},
    "loss": {"importance_correction": "token_truncate"},
    "optim": {"num_steps": 3, "minibatches": 2},
    "logging": ALL_TOKENS,
}


@pytest.fixture
def train(model_folder, rows_path, tmp_path):
    def train(name="run", **parts):
        tree = config_tree(model_folder, rows_path, **parts)
        folder = tmp_path / name
        done = run_trainer("run", write_config(folder, tree), "--out", folder / "out")
        assert done.returncode == 0, done.stderr
        return read_events(folder / "out" / "events.jsonl")

    return train


def gaps_of(completion, *, has_ratio=True):
    """d of each token, from the values of a completion; ln μ too."""
    old = np.array(completion["logprob"])
    if completion["old_logprob"] is not None:
        old = np.array(completion["old_logprob"])
    elif has_ratio:
        old = old - np.log(completion["ratio"])
    return old, np.array(completion["sampling_logprob"])


def assert_sums_are_of(event, groups, **options):
    """A step's sums, against those of its tokens one by one."""
    completions = [c for group in groups for c in group["completions"]]
    assert len(event["sums"]["sum"]) == len(completions) == len(event["advantages"])
    totals = np.zeros(len(GAP_EDGES) + 1)
    positions = np.zeros(12)
    for at, completion in enumerate(completions):
        old, sampling = gaps_of(completion, **options)
        gaps = old - sampling
        near = {"rel": 2e-3, "abs": 2e-4 * len(gaps)}  # ratios have 5 digits
        sums = {name: values[at] for name, values in event["sums"].items()}
        assert sums["num_tokens"] == len(gaps)
        assert sums["sum"] == pytest.approx(gaps.sum(), **near)
        assert sums["absolute"] == pytest.approx(np.abs(gaps).sum(), **near)
        assert sums["min"] == pytest.approx(gaps.min(), **near)
        assert sums["max"] == pytest.approx(gaps.max(), **near)
        assert sums["k3"] == pytest.approx((np.expm1(gaps) - gaps).sum(), **near)
        assert event["advantages"][at] == pytest.approx(
            completion["advantage"][0], rel=1e-3
        )
        totals += np.bincount(
            np.searchsorted(GAP_EDGES, gaps, side="right"), minlength=24
        )
        for t in range(len(gaps)):
            positions[int(math.log2(t + 1))] += 1
    assert event["positions"]["num_tokens"] == positions.tolist()
    # a gap next to an edge may be on its other side, and many are next to 0
    differences = np.abs(np.cumsum(totals) - np.cumsum(event["gaps"]))[:-1]
    assert differences[np.abs(GAP_EDGES) > 5e-4].max() <= 3
    assert sum(map(sum, event["differences"])) == sum(event["gaps"]) == totals.sum()


@pytest.mark.parametrize("surrogate", ["clip", "gspo"])
def test_its_sums_are_those_of_the_tokens(train, surrogate):
    loss = STALE["loss"] | {"surrogate": surrogate}
    if surrogate == "gspo":
        loss["importance_correction"] = "sequence_truncate"
    events = train(**STALE | {"loss": loss})

    measured = only(events, "mismatch_measured")

    assert [event["age"] for event in measured] == [0, 2, 2]
    assert {event["age"] for event in only(events, "group_scored")} == {0, 2}
    assert {event["against"] for event in measured} == {"old"}
    assert {event["incomparable"] for event in measured} == {None}
    assert sum(measured[1]["sums"]["absolute"]) > 1
    for event in measured:
        tokens = [
            e for e in only(events, "tokens_measured") if e["step"] == event["step"]
        ]
        assert event["prompts"] == [e["prompt_index"] for e in tokens]
        assert event["sizes"] == [4] * 4
        assert_sums_are_of(event, tokens)


def test_the_gap_does_not_depend_on_micro_batches(train):
    whole, cut = (
        only(
            train(name, **STALE | {"optim": STALE["optim"] | size}), "mismatch_measured"
        )
        for name, size in (
            ("whole", {"micro_batch_tokens": 1_024}),
            ("cut", {"micro_batch_tokens": 32}),
        )
    )

    for one, other in zip(whole, cut, strict=True):
        for part in ("sums", "positions", "probabilities"):
            for name, values in one[part].items():
                assert values == pytest.approx(other[part][name], rel=1e-2, abs=2e-4)
        for part in ("prompts", "sizes", "advantages"):
            assert one[part] == other[part]


def test_weights_of_now_and_exact_numbers_leave_no_gap(train):
    measured = only(train(optim={"num_steps": 2}), "mismatch_measured")

    for event in measured:
        assert max(event["positions"]["largest"]) < 1e-4
        assert sum(event["gaps"][11:13]) == sum(event["gaps"]) > 0
        assert max(event["sums"]["k3"]) < 1e-6


@pytest.mark.parametrize("surrogate", ["clip", "gspo"])
def test_old_log_probs_of_the_sampler_are_replaced_by_the_first_updates(
    train, surrogate
):
    events = train(
        loss={"old_logprobs": "sampling", "surrogate": surrogate},
        optim={"num_steps": 2, "minibatches": 2, "updates_per_batch": 2},
        logging=ALL_TOKENS,
    )

    for event in only(events, "mismatch_measured"):
        assert event["against"] == "current"
        ends = list(accumulate(event["sizes"], initial=0))
        # the second half of the groups is behind an update
        gaps = [
            sum(event["sums"]["absolute"][begin:end]) for begin, end in pairwise(ends)
        ]
        assert max(gaps[:2]) < 1e-3 < 1e-2 < min(gaps[2:])
        tokens = [
            e for e in only(events, "tokens_measured") if e["step"] == event["step"]
        ]
        assert_sums_are_of(event, tokens, has_ratio=False)


def test_log_probs_of_another_temperature_are_not_compared(train):
    events = train(rollout={"logprob_temperature": 0.7}, optim={"num_steps": 1})

    (event,) = only(events, "mismatch_measured")

    assert event["incomparable"] == "temperature"
    assert event["sums"]["num_tokens"] == event["prompts"] == event["advantages"] == []
    assert sum(event["gaps"]) == 0


def test_a_restricted_sampler_is_reported(train):
    events = train(rollout={"top_p": 0.9}, optim={"num_steps": 1})

    (event,) = only(events, "mismatch_measured")

    assert event["incomparable"] == "restricted"
    assert sum(event["gaps"]) == sum(event["sums"]["num_tokens"]) > 0


def test_a_frozen_start_is_older_with_each_update(train):
    events = train(
        rollout={"source": "start"},
        advantage={"credit": "indicator"},
        loss={"surrogate": "reinforce"},
        optim={"num_steps": 3, "updates_per_batch": 2},
    )

    measured = only(events, "mismatch_measured")

    assert [event["age"] for event in measured] == [0, 2, 4]
    assert max(measured[0]["positions"]["largest"]) < 1e-4
    assert max(measured[2]["positions"]["largest"]) > 1e-2


def test_tokens_outside_of_the_loss_do_not_count(train):
    events = train(
        loss={"mask_truncated": True, "mask_end_token": True, "include_prompt": True},
        optim={"num_steps": 1},
    )

    (event,) = only(events, "mismatch_measured")
    counts = [
        0 if completion["end_reason"] == "length" else completion["num_tokens"] - 1
        for group in only(events, "group_scored")
        for completion in group["completions"]
    ]
    assert event["sums"]["num_tokens"] == counts
    assert 0 in counts
    assert max(counts) > 0


def test_none_is_stored_where_it_is_off(train):
    events = train(logging={"mismatch": False}, optim={"num_steps": 1})

    assert only(events, "mismatch_measured") == []
    assert [event["age"] for event in only(events, "group_scored")] == [0] * 4


def test_none_is_stored_of_a_dataset_and_its_groups_have_no_age(train, tmp_path):
    rows = tmp_path / "answers.jsonl"
    row = {"prompt": "1+1=", "answer": "2", "columns": {"completion": "2"}}
    rows.write_text(f"{json.dumps(row)}\n" * 8)
    events = train(
        data={"rows": str(rows)},
        rollout={"source": "dataset", "group_size": 1},
        loss={"surrogate": "reinforce"},
        advantage={"credit": "ones"},
        optim={"num_steps": 1},
    )

    assert only(events, "mismatch_measured") == []
    assert all("age" not in event for event in only(events, "group_scored"))


def test_measuring_changes_no_bit_of_the_model(train, tmp_path):
    for name, mismatch in (("with", True), ("without", False)):
        train(name, **STALE | {"logging": {"mismatch": mismatch}})

    saved = "out/checkpoints/step-000003-attempt-1/model/model.safetensors"
    one, other = (tmp_path / name / saved for name in ("with", "without"))
    assert one.read_bytes() == other.read_bytes()
