"""The KL of a run whose loss has none, measured on a sample of its tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.model.test_reference import disturb
from tests.trainer.parallel.test_distributed import alone, together
from tests.trainer.run.test_resume import story
from tests.trainer.samples import make_batch
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.config import ReferenceConfig, RunConfig
from trainer.model import reference as kl_sample
from trainer.model.microbatches import Minibatch
from trainer.model.packing import Batch, MicroBatch, TrainingSample
from trainer.model.policy import Policy, load_policy
from trainer.model.reference import (
    BaseReference,
    FrozenReference,
    KLSample,
    ParkedReference,
    load_start,
    make_kl_sample,
)

ALL_TOKENS = {"token_groups": 64, "tokens_every_steps": 1}


@pytest.fixture
def often(monkeypatch) -> None:
    """A quarter of the tokens of each step, so that tiny batches have a sample."""
    monkeypatch.setattr(kl_sample, "_ONE_IN", 4)
    monkeypatch.setattr(kl_sample, "_FEWEST", 1)


def sampler(policy: Policy, **options: Any) -> KLSample:
    return KLSample(FrozenReference(policy, ReferenceConfig()), seed=3, **options)


def batch_of(*, prompts: int, group: int, prompt_tokens: int, new_tokens: int) -> Batch:
    return Batch(
        tuple(
            TrainingSample(
                prompt_ids=(5 + prompt,) * prompt_tokens,
                completion_ids=(7,) * new_tokens,
                sampling_logprobs=(-1.0,) * new_tokens,
            )
            for prompt in range(prompts)
            for _ in range(group)
        )
    )


def run(
    folder: Path, model: Path, rows: Path, /, *more: object, **parts: Any
) -> list[dict[str, Any]]:
    optim = {"num_steps": 4} | parts.pop("optim", {})
    config = write_config(folder, config_tree(model, rows, optim=optim, **parts))
    done = run_trainer("run", config, "--out", folder / "out", *more)
    assert done.returncode == 0, done.stderr
    return read_events(folder / "out" / "events.jsonl")


def metrics_of(events: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [event["metrics"] for event in only(events, "step_finished")]


def kl_of_completions(
    events: list[dict[str, Any]],
) -> dict[tuple[int, int, int], list[float]]:
    """The tokens' KL of each completion that has one: by step, prompt and place."""
    return {
        (event["step"], event["prompt_index"], index): each["kl"]
        for event in only(events, "tokens_measured")
        for index, each in enumerate(event["completions"])
        if each["kl"] is not None
    }


@pytest.mark.parametrize(
    ("sizes", "every", "count"),
    [
        # 211 of 10,560 tokens: 4 completions of 50
        ({"prompts": 32, "group": 8, "prompt_tokens": 10, "new_tokens": 40}, 1, 4),
        # 26 of 1,320 tokens, and 105 after 4 steps
        ({"prompts": 4, "group": 8, "prompt_tokens": 10, "new_tokens": 40}, 4, 2),
        # 32 of 1,600 tokens; a completion is 240, since its prompt is passed again
        ({"prompts": 4, "group": 5, "prompt_tokens": 200, "new_tokens": 40}, 8, 1),
    ],
)
def test_the_reference_passes_one_in_fifty_of_the_tokens(sizes, every, count, policy):
    batch, sample = batch_of(**sizes), sampler(policy)

    found = [sample.places(batch, step=step) for step in range(1, 65)]

    assert [bool(places) for places in found] == [
        (step - 1) % every == 0 for step in range(1, 65)
    ]
    assert {len(places) for places in found if places} == {count}
    alone = sizes["prompt_tokens"] + sizes["new_tokens"]
    tokens = sizes["prompts"] * (
        sizes["prompt_tokens"] + sizes["group"] * sizes["new_tokens"]
    )
    passed = alone * sum(map(len, found))
    assert 0.5 < passed / (64 * tokens / 50) <= 1
    assert found == [sampler(policy).places(batch, step=step) for step in range(1, 65)]
    assert len({tuple(places) for places in found if places}) > 1


def test_a_reference_that_is_loaded_each_time_is_asked_less_often(policy):
    sizes = {"prompts": 32, "group": 8, "prompt_tokens": 10, "new_tokens": 40}
    batch, sample = batch_of(**sizes), sampler(policy, every=16)

    counts = [len(sample.places(batch, step=step)) for step in range(1, 34)]

    assert {step for step, each in enumerate(counts, start=1) if each} == {1, 17, 33}
    assert counts[0] == 67  # 16 times 4.2


def test_tokens_outside_the_loss_are_not_sampled(policy, often):
    batch = make_batch(12)
    loss = RunConfig.model_fields["loss"].default.model_copy(
        update={"mask_truncated": True}
    )
    samples = [
        TrainingSample(
            prompt_ids=each.prompt_ids,
            completion_ids=each.completion_ids,
            sampling_logprobs=each.sampling_logprobs,
            end_reason="length" if index % 3 else "stop",
        )
        for index, each in enumerate(batch.samples)
    ]

    found = {
        index
        for step in range(1, 50)
        for index in sampler(policy).places(Batch(tuple(samples), loss), step=step)
    }

    assert found == {0, 3, 6, 9}
    masked = Batch(tuple(samples[1:3]), loss)
    assert sampler(policy).places(masked, step=1) == []


@pytest.mark.parametrize("max_tokens", [1_000, 30])
def test_chosen_completions_get_the_log_probs_that_all_would_get(
    max_tokens, policy, often
):
    sample = sampler(policy)
    minibatches = [
        Minibatch(part, max_tokens=max_tokens, device=policy.device, is_packed=True)
        for part in make_batch(12).minibatches(1)
    ]
    micros = [micro for each in minibatches for micro in each.micro_batches]
    sample.reference.add_logprobs(micros, temperature=0.7)
    expected = [micro.reference_logprobs for micro in micros]

    sample.add_logprobs(minibatches, step=1, temperature=0.7, max_tokens=max_tokens)

    chosen = sample.places(make_batch(12), step=1)
    assert 0 < len(chosen) < 12
    for micro, whole in zip(micros, expected, strict=True):
        assert micro.reference_logprobs is not None
        assert whole is not None
        for row, index in enumerate(micro.members):
            inside = micro.mask[row] > 0
            values = micro.reference_logprobs[row][inside]
            if index in chosen:
                torch.testing.assert_close(values, whole[row][inside])
            else:
                assert values.isnan().all()


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"model": {"lora_rank": 4}},
        {"loss": {"old_logprobs": "sampling", "kl_estimator": "full"}},
        {"optim": {"minibatches": 2, "updates_per_batch": 2}},
    ],
    ids=["plain", "lora", "sampled-log-probs", "minibatches-and-passes"],
)
def test_the_sample_has_the_kl_that_a_reference_measures(
    parts, model_folder, rows_path, tmp_path, often
):
    parts = parts | {"logging": ALL_TOKENS}
    k3 = {"loss": parts.get("loss", {}) | {"kl_estimator": "k3"}}
    whole = parts | k3 | {"reference": {"kind": "frozen"}}
    sampled = run(tmp_path / "sampled", model_folder, rows_path, **parts)
    events = run(tmp_path / "whole", model_folder, rows_path, **whole)

    some, every = kl_of_completions(sampled), kl_of_completions(events)
    assert {step for step, _, _ in some} == {1, 2, 3, 4}
    assert 0.1 < len(some) / len(every) < 0.4
    for key, values in some.items():
        assert values == pytest.approx(every[key], rel=1e-3, abs=1e-5)
    for step, metrics in enumerate(metrics_of(sampled), start=1):
        tokens = [kl for key, own in some.items() if key[0] == step for kl in own]
        assert metrics["kl/sampled_tokens"] == len(tokens)
        assert not {"kl/max", "kl/p99"} & metrics.keys()
        if "optim" not in parts:  # else a mean over passes, of which one is reported
            mean = sum(tokens) / len(tokens)
            assert metrics["kl/mean"] == pytest.approx(mean, rel=1e-3, abs=1e-6)
            assert (metrics["kl/mean"] > 1e-3) == (step > 1)


@pytest.mark.parametrize(
    "parts",
    [{}, {"model": {"lora_rank": 4}}, {"optim": {"micro_batch_tokens": 30}}],
    ids=["plain", "lora", "small-micro-batches"],
)
def test_a_measured_run_trains_as_one_that_is_not(
    parts, model_folder, rows_path, tmp_path, often
):
    def weights(kind: str) -> dict[str, bytes]:
        run(tmp_path / kind, model_folder, rows_path, reference={"kind": kind}, **parts)
        folder = tmp_path / kind / "out" / "checkpoints" / "step-000004-attempt-1"
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*.safetensors")
        }

    measured = weights("auto")
    assert measured == weights("none")
    assert measured


def test_a_resumed_run_measures_the_same(model_folder, rows_path, tmp_path, often):
    run(tmp_path, model_folder, rows_path, logging=ALL_TOKENS)
    checkpoint = tmp_path / "out" / "checkpoints" / "step-000002-attempt-1"

    done = run_trainer(
        *("run", tmp_path / "run.json", "--out", tmp_path / "resumed"),
        *("--attempt", 2, "--resume-from", checkpoint),
    )

    assert done.returncode == 0, done.stderr
    found = story(tmp_path / "resumed" / "events.jsonl")
    assert found == story(tmp_path / "out" / "events.jsonl", after=2)
    assert all(each["kl/sampled_tokens"] > 0 for each in metrics_of(found))


@pytest.mark.slow
def test_two_processes_measure_as_one_does(model_folder, rows_path, tmp_path):
    tree = config_tree(
        model_folder,
        rows_path,
        rollout={"prompts_per_step": 20, "group_size": 16, "max_new_tokens": 12},
        optim={"num_steps": 3, "micro_batch_tokens": 1_000, "learning_rate": 1e-3},
        evaluation={"every_steps": 0},
    )
    config = write_config(tmp_path, tree)

    one, two = (
        metrics_of(read_events(start(config, name) / "events.jsonl"))
        for start, name in ((alone, "one"), (together, "two"))
    )

    assert ["kl/mean" in metrics for metrics in one] == [True, False, True]
    for ours, theirs in zip(two, one, strict=True):
        assert ours.get("kl/sampled_tokens") == theirs.get("kl/sampled_tokens")
        assert ours.get("kl/mean", 0) == pytest.approx(
            theirs.get("kl/mean", 0), rel=1e-4, abs=1e-6
        )
    assert one[2]["kl/mean"] > 1e-4


def test_without_memory_for_it_the_run_continues_without_it(
    model_folder, rows_path, tmp_path, monkeypatch, often
):
    def fail(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(FrozenReference, "add_logprobs", fail)

    events = run(tmp_path, model_folder, rows_path)

    warned = [(each["step"], each["code"]) for each in only(events, "warned")]
    assert [each for each in warned if each[1] == "kl_not_measured"] == [
        (1, "kl_not_measured")
    ]
    assert len(metrics_of(events)) == 4
    assert not any("kl/mean" in metrics for metrics in metrics_of(events))


def test_a_pass_that_does_not_fit_is_cut(policy, monkeypatch, often):
    sizes: list[int] = []
    forward = Policy.hidden

    def hidden(self: Policy, micro: MicroBatch) -> torch.Tensor:
        sizes.append(len(micro.members))
        if sizes[-1] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return forward(self, micro)

    monkeypatch.setattr(Policy, "hidden", hidden)
    (part,) = make_batch(12).minibatches(1)
    minibatch = Minibatch(part, max_tokens=1_000, device=policy.device, is_packed=True)

    reason = sampler(policy).add_logprobs(
        [minibatch], step=1, temperature=1.0, max_tokens=1_000
    )

    assert reason == ""
    assert sizes[0] > 1
    assert sizes[-1] == 1
    (micro,) = minibatch.micro_batches
    assert micro.reference_logprobs is not None
    assert not micro.reference_logprobs.isnan().all()


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, True),
        ({"loss": {"kl_coef": 0.1}}, False),
        ({"reference": {"kind": "none"}}, False),
        ({"reference": {"kind": "frozen"}}, False),
        ({"rollout": {"source": "start"}}, False),
        (
            {
                "rollout": {"source": "dataset", "group_size": 1},
                "advantage": {"credit": "ones"},
            },
            False,
        ),
        (
            {
                "advantage": {"credit": "preference"},
                "loss": {"surrogate": "reinforce"},
            },
            False,
        ),
    ],
)
def test_it_is_for_completions_of_a_policy_without_a_reference(
    parts, expected, model_folder, rows_path, policy
):
    tree = config_tree(model_folder, rows_path, **parts)
    config = RunConfig.model_validate(tree)

    assert config.samples_kl is expected
    assert (make_kl_sample(config, policy) is not None) is expected


def test_adapters_need_no_copy_in_any_phase(model_folder, rows_path):

    tree = config_tree(model_folder, rows_path, model={"lora_rank": 4})
    config = RunConfig.model_validate(tree)
    policy = load_policy(config.model)

    sample = make_kl_sample(config, policy)

    assert sample is not None
    assert isinstance(sample.reference, BaseReference)
    assert sample.reference.policy is policy


def test_a_parked_reference_answers_as_a_frozen_one(
    model_folder, rows_path, policy, monkeypatch
):
    config = RunConfig.model_validate(config_tree(model_folder, rows_path))
    parked = ParkedReference(load_start(config, policy), home=torch.device("cpu"))
    moved: list[torch.device] = []
    move = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        moved.extend(each for each in args if isinstance(each, torch.device))
        return move(self, *args, **options).clone()

    own = [p.data_ptr() for p in parked.policy.model.parameters()]
    (micro,) = make_batch(3).micro_batches(max_tokens=1_000, device=policy.device)
    frozen = FrozenReference(load_start(config, policy), ReferenceConfig())
    frozen.add_logprobs([micro], temperature=1.0)
    expected = micro.reference_logprobs
    disturb(policy)
    monkeypatch.setattr(torch.Tensor, "to", to)

    parked.add_logprobs([micro], temperature=1.0)

    assert expected is not None
    assert micro.reference_logprobs is not None
    assert torch.equal(micro.reference_logprobs, expected)
    assert len(moved) >= len(own)
    assert [p.data_ptr() for p in parked.policy.model.parameters()] == own
