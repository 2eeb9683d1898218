"""Privileged context: what the reference reads beside a completion's prompt."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.run.test_resume import story
from tests.trainer.tiny import config_tree, read_events, run_trainer, write_config
from trainer.config import RunConfig
from trainer.data import Prompt, PromptRenderer, Row
from trainer.grpo import add_gradients
from trainer.model.microbatches import Minibatch
from trainer.model.optimizer import Optimizer
from trainer.model.packing import Batch, TrainingSample, batch_of
from trainer.model.policy import Policy
from trainer.model.reference import make_reference
from trainer.privileged import check_context, contexts_of, reference_prompts
from trainer.rewards.scoring import Score
from trainer.run.outcome import LossTerms
from trainer.types import Group, Rollout

TEMPLATE = "{context}>{prompt}"


def config_of(model: Path, rows: Path, /, **parts: Any) -> RunConfig:
    reference = {
        "context": "column",
        "context_column": "n",
        "context_template": TEMPLATE,
    } | parts.pop("reference", {})
    loss = {"kl_coef": 1.0, "kl_ratio": True} | parts.pop("loss", {})
    parts.setdefault("advantage", {"weight": 0})
    tree = config_tree(model, rows, reference=reference, loss=loss, **parts)
    return RunConfig.model_validate(tree)


@pytest.fixture
def renderer(policy) -> PromptRenderer:
    config = RunConfig.model_validate(config_tree(Path("m"), Path("r")))
    return PromptRenderer(policy.tokenizer, config.data)


def row_of(**columns: Any) -> Row:
    return Row(index=0, prompt="1+2=", answer="3", columns=columns)


def group_of(renderer: PromptRenderer, row: Row, **rewards: float | None) -> Group:
    prompt: Prompt = renderer.render(row)
    return Group(
        prompt=prompt,
        completions=tuple(
            Rollout.of_one_turn(
                text=text,
                token_ids=renderer.continuation(prompt, text),
                logprobs=(-1.0,) * len(text),
                end_reason="stop",
            )
            for text in rewards
        ),
        scores=tuple(Score(reward, {}, {}) for reward in rewards.values()),
    )


def texts_of(policy: Policy, prompts: list[tuple[int, ...] | None]) -> list[str | None]:
    return [p if p is None else policy.tokenizer.decode(p) for p in prompts]


def test_a_column_is_put_into_the_prompt(policy, renderer, rows_path):
    row = row_of(n=">", deep={"n": [7]})
    group = group_of(renderer, row, a=0.0, b=1.0)

    def read(column: str) -> list[str | None]:
        config = config_of(Path("m"), rows_path, reference={"context_column": column})
        return texts_of(policy, reference_prompts([group], renderer, config))

    assert read("n") == [">>1+2="] * 2
    assert read("deep.n.0") == ["7>1+2="] * 2
    assert read("answer") == ["3>1+2="] * 2
    assert read("none") == ["", ""]


def test_without_a_context_the_reference_reads_the_policys_prompt(renderer, rows_path):
    plain = RunConfig.model_validate(config_tree(Path("m"), rows_path))
    group = group_of(renderer, row_of(), a=0.0, b=1.0)

    assert reference_prompts([group], renderer, plain) == [None, None]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ({"a": 1.0, "b": 2.0, "c": 2.0, "d": 0.0}, ["b", "c", "b", "b"]),
        ({"a": 1.0, "b": 0.5, "c": None}, ["", "a", "a"]),
        ({"a": 0.9, "b": 0.5}, ["", ""]),
    ],
)
def test_the_best_other_completion_that_succeeded_is_the_context(
    rewards, expected, policy, renderer, rows_path
):
    config = config_of(Path("m"), rows_path, reference={"context": "best_of_group"})
    group = group_of(renderer, row_of(), **rewards)

    found = texts_of(policy, reference_prompts([group], renderer, config))

    assert found == [f"{text}>1+2=" if text else "" for text in expected]


def test_tokens_that_end_a_turn_are_no_part_of_the_context(renderer, rows_path):
    config = config_of(Path("m"), rows_path, reference={"context": "best_of_group"})
    group = group_of(renderer, row_of(), a=1.0, b=0.0)
    first, second = group.completions
    (turn,) = first.turns
    ended = replace(first, turns=(replace(turn, text="a<|im_end|>\n"),))
    group = replace(group, completions=(ended, second))

    assert contexts_of(group, config.reference) == [None, "a"]


def test_a_context_that_is_too_long_is_none(renderer, rows_path):
    config = config_of(
        Path("m"),
        rows_path,
        reference={"context": "best_of_group", "max_prompt_tokens": 6},
    )
    group = group_of(renderer, row_of(), a=1.0, bb=1.0)

    lengths = [
        len(p) for p in reference_prompts([group], renderer, config) if p is not None
    ]
    short = reference_prompts([group], renderer, config, num_positions=17)

    assert lengths == [0, 6]
    assert short == [(), ()]


def test_the_users_last_message_takes_the_context(policy, rows_path):
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"
    )
    config = config_of(Path("m"), rows_path, data={"rows": "r", "system_prompt": "be"})
    renderer = PromptRenderer(policy.tokenizer, config.data)
    turns = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    row = Row(
        index=0,
        prompt=(*turns, {"role": "user", "content": "c"}),
        answer=None,
        columns={"n": 5},
    )

    ids = renderer.token_ids(row, template=TEMPLATE, context="5")

    assert policy.tokenizer.decode(ids).endswith(":a\na:b\n:5>c\na:")


def test_a_column_that_no_row_has_is_refused_before_the_run(renderer, rows_path):
    config = config_of(Path("m"), rows_path, reference={"context_column": "solution"})

    with pytest.raises(ValueError, match="solution"):
        check_context([row_of(n=1)], renderer, config)
    check_context([row_of(n=1), row_of(solution="x")], renderer, config)
    with pytest.raises(ValueError, match=r"line 1.*5,005 tokens"):
        check_context([row_of(solution="1" * 5_000)], renderer, config)


def test_the_teachers_logprobs_are_those_behind_its_own_prompt(
    policy, model_folder, rows_path
):
    config = config_of(model_folder, rows_path)
    (phase,) = config.phase_configs
    reference = make_reference(phase, policy)
    completion, own, seen = (4, 5, 6), (2, 3), (9, 8, 7, 2, 3)

    def sample(prompt: tuple[int, ...], **more: Any) -> TrainingSample:
        return TrainingSample(
            prompt_ids=prompt,
            completion_ids=completion,
            sampling_logprobs=(0.0,) * 3,
            **more,
        )

    def asked(*samples: TrainingSample) -> torch.Tensor:
        (micro,) = Batch(samples).micro_batches(max_tokens=99, device=policy.device)
        reference.add_logprobs([micro], temperature=1.0)
        order = np.argsort(micro.members)
        return micro.reference_logprobs[order]

    expected = asked(sample(seen))[0]
    found = asked(
        sample(own, reference_prompt_ids=seen),
        sample(own),
        sample(own, reference_prompt_ids=()),
    )

    torch.testing.assert_close(found[0], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(found[1], asked(sample(own))[0], atol=1e-6, rtol=0)
    assert found[2].tolist() == [torch.inf] * 3


def test_long_contexts_do_not_go_through_the_teacher_all_at_once(
    policy, model_folder, rows_path, monkeypatch
):
    """An update's micro-batch holds many completions with short prompts."""
    config = config_of(model_folder, rows_path)
    reference = make_reference(config.phase_configs[0], policy)
    sizes = list[int]()
    plain = reference.policy.logprobs

    def logprobs(micro: Any, *, temperature: float) -> Any:
        sizes.append(sum(sample.num_tokens for sample in micro.samples))
        return plain(micro, temperature=temperature)

    monkeypatch.setattr(reference.policy, "logprobs", logprobs)
    samples = tuple(
        TrainingSample(
            prompt_ids=(2, 3),
            completion_ids=(4, number),
            sampling_logprobs=(0.0, 0.0),
            reference_prompt_ids=(5,) * (20 + number),
        )
        for number in range(10)
    )
    (micro,) = Batch(samples).micro_batches(max_tokens=99, device=policy.device)
    reference.add_logprobs([micro], temperature=1.0)

    assert len(sizes) > 1
    assert max(sizes) <= 40  # as many as the micro-batch has
    for row, member in enumerate(micro.members):
        alone = replace(samples[member], prompt_ids=(5,) * (20 + member))
        (other,) = Batch((alone,)).micro_batches(max_tokens=99, device=policy.device)
        expected, _ = plain(other, temperature=1.0)
        found = micro.reference_logprobs[row]
        torch.testing.assert_close(found, expected[0], atol=1e-5, rtol=0)


def test_completions_without_a_context_have_no_gradient_and_no_distance(
    policy, model_folder, rows_path, renderer
):
    config = config_of(model_folder, rows_path, reference={"context": "best_of_group"})
    (phase,) = config.phase_configs
    reference = make_reference(phase, policy)
    optimizer = Optimizer(policy, config.optim)

    def step(**rewards: float) -> tuple[float, dict[str, float]]:
        group = group_of(renderer, row_of(), **rewards)
        reads = reference_prompts([group], renderer, config)
        batch = batch_of([group], config.loss, reference_prompts=reads)
        minibatch = Minibatch(batch, max_tokens=99, device=policy.device)
        reference.add_logprobs(minibatch.micro_batches, temperature=1.0)
        terms = LossTerms(config, batch.totals)
        result = add_gradients(policy, optimizer, minibatch.micro_batches, terms)
        norm = optimizer.gradient_norm().item()
        optimizer.clear()
        return norm, result.statistics.metrics()

    norm, metrics = step(a=0.0, b=0.5)
    taught, measured = step(a=0.0, b=1.0)

    assert norm == 0
    assert not metrics.keys() & {"kl/mean", "distill/kl"}
    assert taught > 0
    assert measured["kl/mean"] > 0
    assert "distill/agreement" in measured


def test_a_prompt_that_leaves_no_room_for_a_completion_is_refused_before_the_run(
    renderer, rows_path
):
    def check(num_tokens: int) -> None:
        reads = {"context": "best_of_group", "max_prompt_tokens": num_tokens}
        config = config_of(Path("m"), rows_path, reference=reads)
        check_context([row_of()], renderer, config)

    check(5)  # of ">1+2="
    with pytest.raises(ValueError, match=r"line 1.*5 tokens"):
        check(4)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"reference": {"kind": "none"}}, "reference.kind"),
        ({"reference": {"context_template": "{prompt}"}}, "{context}"),
        ({"reference": {"context_template": "{context}"}}, "{prompt}"),
        ({"loss": {"kl_estimator": "full", "kl_ratio": False}}, "full"),
        (
            {"loss": {"kl_in": "reward", "kl_ratio": False}, "advantage": {}},
            "kl_in",
        ),
        (
            {"reference": {"context": "best_of_group"}, "rollout": {"group_size": 1}},
            "group_size",
        ),
    ],
)
def test_settings_that_a_second_prompt_excludes_are_refused(parts, words, rows_path):
    with pytest.raises(ValueError, match=words):
        config_of(Path("m"), rows_path, **parts)


MOVING = {
    "context": "best_of_group",
    "context_threshold": 0.0,
    "kind": "frozen",
    "mix_every_steps": 1,
    "mix_alpha": 0.05,
}


def test_a_run_with_a_moving_teacher_and_a_context_resumes_exactly(
    model_folder, rows_path, tmp_path
):
    config = config_of(model_folder, rows_path, reference=MOVING)
    path = write_config(tmp_path, config.model_dump(mode="json"))
    done = run_trainer("run", path, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    checkpoint = tmp_path / "whole" / "checkpoints" / "step-000004-attempt-1"

    done = run_trainer(
        *("run", path, "--out", tmp_path / "again", "--attempt", 2),
        *("--resume-from", checkpoint),
    )

    assert done.returncode == 0, done.stderr
    log = tmp_path / "whole" / "events.jsonl"
    assert story(tmp_path / "again" / "events.jsonl") == story(log, after=4)
    steps = [e["metrics"] for e in read_events(log) if e["type"] == "step_finished"]
    assert all(metrics["distill/kl"] != 0 for metrics in steps)
