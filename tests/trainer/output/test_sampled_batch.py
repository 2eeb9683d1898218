"""A batch that was sampled ahead comes out of a checkpoint as it went in."""

import json
from dataclasses import replace

import pytest

from trainer.config import DataConfig
from trainer.curriculum import Draw
from trainer.data import Prompt, PromptRenderer, Row
from trainer.gathering import Gathered, SampledBatch, load_batch, save_batch
from trainer.rewards.scoring import Score
from trainer.types import Group, Rollout, StepScore, Turn


@pytest.fixture
def prompts(policy) -> list[Prompt]:
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))
    rows = [Row(index=n, prompt=f"{n}+1=", answer=None, columns={}) for n in (3, 7, 9)]
    return [renderer.render(row) for row in rows]


def group_of(prompt: Prompt, *, reward: float | None) -> Group:
    texts = ("5 \ud83d\n", "", "ä")  # half of a surrogate pair is no UTF-8
    return Group(
        prompt=prompt,
        completions=tuple(
            Rollout.of_one_turn(
                text=text,
                token_ids=tuple(range(2, 4 + index)),
                logprobs=tuple(-0.1 / (3 + index + k) for k in range(2 + index)),
                end_reason="length" if index else "stop",
            )
            for index, text in enumerate(texts)
        ),
        scores=tuple(
            Score(reward, {"answer": reward, "tags": 0.1 + 0.2}, {"answer": "no"})
            for _ in texts
        ),
    )


@pytest.fixture
def batch(prompts) -> SampledBatch:
    kept = group_of(prompts[1], reward=1 / 3)
    steps = ((StepScore(1, 0.5), StepScore(2, None)), (), (StepScore(3, 1.0),))
    return SampledBatch(
        step=8,
        own_prompts=frozenset({7, 9}),
        num_updates=28,
        drawn=Draw(
            places=[],
            pools={"unseen": 1, "hard": 1, "normal": 0, "easy": 0},
            num_out=1,
            num_rows=3,
            rows=[7, 9],
            chances=[1 / 3, 1.0],
            expected=[0.1, 0.2],
            mean_expected=0.3,
        ),
        gathered=Gathered(
            groups=[kept, replace(group_of(prompts[0], reward=0.0), step_scores=steps)],
            dropped=[group_of(prompts[2], reward=None)],
            num_rounds=2,
            num_sampled_tokens=27,
            has_signal=True,
            scoring_seconds=0.5,
        ),
    )


def test_it_comes_back_as_it_was(batch, prompts, tmp_path):
    save_batch(tmp_path / "ahead", batch)

    assert load_batch(tmp_path / "ahead", prompts) == batch


def test_numbers_are_stored_separately_from_texts(batch, tmp_path):
    """As JSON they would take several times as much."""
    save_batch(tmp_path / "ahead", batch)

    groups = json.loads((tmp_path / "ahead" / "groups.json").read_bytes())["groups"]
    assert "token_ids" not in groups[0]["completions"][0]
    assert "logprobs" not in groups[0]["completions"][0]


def test_rows_that_are_no_longer_there_are_reported(batch, prompts, tmp_path):
    save_batch(tmp_path / "ahead", batch)

    with pytest.raises(ValueError, match=r"row 9 \(line 10\)"):
        load_batch(tmp_path / "ahead", prompts[:2])


def test_turns_come_out_as_they_went_in(batch, tmp_path):
    turns = (
        Turn(text="a", token_ids=(7, 8), logprobs=(-0.1, -0.2)),
        Turn(author="environment", text="b", token_ids=(5,), logprobs=None),
        Turn(text="c", token_ids=(), logprobs=()),
    )
    group = batch.gathered.groups[0]
    completions = (Rollout(turns=turns, end_reason="stop"), *group.completions[1:])
    gathered = replace(
        batch.gathered, groups=[replace(group, completions=completions)], dropped=[]
    )
    save_batch(tmp_path / "saved", replace(batch, gathered=gathered))

    (found,) = load_batch(tmp_path / "saved", [group.prompt]).gathered.sampled

    assert found.completions == completions
