"""A teacher: a reference that is another model than the run's own."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.model.test_reference import disturb, logprobs_of, made
from tests.trainer.samples import cut, make_batch
from tests.trainer.tiny import (
    CHARACTERS,
    config_tree,
    read_events,
    run_trainer,
    write_config,
    write_model,
)
from trainer.config import RunConfig, named_models, read_config
from trainer.config.run import PhaseConfig
from trainer.model.packing import Batch, TrainingSample
from trainer.model.policy import Policy, load_policy
from trainer.model.reference import FrozenReference, make_reference
from trainer.model.teacher import check_teacher, first_difference

NUM_TOKENS = 2 + len(CHARACTERS)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """A larger model, its vocabulary padded."""
    folder = tmp_path_factory.mktemp("teacher")
    return write_model(folder, seed=5, hidden_size=48, vocab_size=NUM_TOKENS + 4)


def config_of(model: Path, rows: Path, teacher: Path, /, **parts: Any) -> RunConfig:
    reference = {"model": str(teacher)} | parts.pop("reference", {})
    parts.setdefault("loss", {"kl_coef": 1.0, "kl_ratio": True})
    return RunConfig.model_validate(
        config_tree(model, rows, reference=reference, **parts)
    )


def test_a_teacher_gives_its_own_logprobs(model_folder, rows_path, teacher, policy):
    config = config_of(model_folder, rows_path, teacher)
    alone = load_policy(config.model.model_copy(update={"path": str(teacher)}))
    expected = logprobs_of(alone, policy)
    reference = made(config, policy)

    disturb(policy)
    reference.after_step(1, policy)

    assert isinstance(reference, FrozenReference)
    assert torch.equal(logprobs_of(reference, policy), expected)
    assert not reference.has_moved
    assert not reference.policy.model.training


def test_adapters_and_four_bits_are_of_the_student_alone(
    model_folder, rows_path, teacher, policy, monkeypatch
):
    asked = []

    def load(config: Any) -> Policy:
        asked.append(config)
        return load_policy(config.model_copy(update={"quantization": "none"}))

    monkeypatch.setattr("trainer.model.reference.load_policy", load)
    model = {"path": str(model_folder), "lora_rank": 4, "quantization": "4bit"}
    config = config_of(model_folder, rows_path, teacher, model=model)

    reference = made(config, policy)

    assert isinstance(reference, FrozenReference)
    assert [(c.path, c.lora_rank, c.quantization) for c in asked] == [
        (str(teacher), 0, "none")
    ]


def test_a_later_phase_keeps_the_teacher(model_folder, rows_path, teacher, policy):
    config = config_of(model_folder, rows_path, teacher)
    first = logprobs_of(made(config, policy), policy)
    disturb(policy)
    phase = PhaseConfig(name="later", first_step=3, config=config)

    reference = make_reference(phase, policy)

    assert reference is not None
    assert torch.equal(logprobs_of(reference, policy), first)


def test_a_teacher_that_is_the_student_has_no_gradient(
    model_folder, rows_path, policy, tmp_path
):
    tree = config_tree(
        model_folder,
        rows_path,
        reference={"model": str(model_folder)},
        advantage={"weight": 0},
        loss={"kl_coef": 1.0, "kl_ratio": True},
        optim={"num_steps": 1},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    (metrics,) = metrics_of(tmp_path / "out")
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert metrics["distill/kl"] == metrics["kl/mean"] == 0
    assert metrics["distill/agreement"] == 1
    assert 0 < metrics["time/reference"] <= metrics["time/logprobs"]


def metrics_of(out: Path) -> list[dict[str, float]]:
    events = read_events(out / "events.jsonl")
    return [e["metrics"] for e in events if e["type"] == "step_finished"]


@pytest.mark.parametrize("estimator", ["k3", "full"])
def test_distillation_without_rewards_halves_the_distance(
    estimator, model_folder, rows_path, policy, tmp_path
):
    teacher = shutil.copytree(model_folder, tmp_path / "teacher")
    disturb(policy)
    policy.model.save_pretrained(teacher)
    tree = config_tree(
        model_folder,
        rows_path,
        reference={"model": str(teacher)},
        advantage={"weight": 0},
        loss={
            "kl_coef": 1.0,
            "kl_estimator": estimator,
            "kl_ratio": estimator == "k3",
        },
        rollout={"prompts_per_step": 8, "group_size": 4},
        optim={"num_steps": 20, "learning_rate": 5e-3, "micro_batch_tokens": 4096},
        evaluation={"every_steps": 0},
        checkpoint={"every_steps": 0},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    distances = [metrics["distill/kl"] for metrics in metrics_of(tmp_path / "out")]
    assert sum(distances[-3:]) < sum(distances[:3]) / 2


def test_a_token_beyond_the_teachers_vocabulary_reads_as_its_last(
    model_folder, rows_path, teacher, tmp_path
):
    student = write_model(tmp_path, seed=1, vocab_size=NUM_TOKENS + 9)
    config = config_of(student, rows_path, teacher)
    policy = load_policy(config.model)
    reference = made(config, policy)

    def asked(token: int) -> torch.Tensor:
        sample = TrainingSample(
            prompt_ids=(2, 3), completion_ids=(4, token), sampling_logprobs=(0.0, 0.0)
        )
        micros = Batch((sample,)).micro_batches(max_tokens=99, device=policy.device)
        reference.add_logprobs(micros, temperature=1.0)
        return micros[0].reference_logprobs

    assert torch.equal(asked(NUM_TOKENS + 8), asked(NUM_TOKENS + 3))


@pytest.mark.parametrize(
    ("own", "other", "difference"),
    [
        ({"a": 0, "b": 1}, {"b": 1, "a": 0}, ""),
        ({"a": 0, "b": 1, "c": 2}, {"a": 0, "c": 1, "b": 2}, "token 1 is 'b'"),
        ({"a": 0}, {"a": 0, "<think>": 1}, "token 1 is missing"),
        ({"a": 0, "<think>": 1}, {"a": 0}, "and missing for the teacher"),
    ],
)
def test_tokenizers_differ_first_at_the_lowest_id(own, other, difference):
    found = first_difference(own, other)

    assert difference in found
    assert bool(difference) == bool(found)


def test_a_completion_ends_where_the_teacher_ends_its_own(
    model_folder, rows_path, tmp_path
):
    end = 2 + CHARACTERS.index("e")
    teacher = write_model(tmp_path / "teacher", seed=3, eos_token_id=[1, end])
    config = config_of(model_folder, rows_path, teacher, optim={"num_steps": 1})
    path = write_config(tmp_path, config.model_dump(mode="json"))

    done = run_trainer("run", path, "--out", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    events = read_events(tmp_path / "out" / "events.jsonl")
    groups = [event for event in events if event["type"] == "group_scored"]
    texts = [each["text"] for group in groups for each in group["completions"]]
    assert len(texts) == 16
    assert not [text for text in texts if "e" in text]
    (model,) = (tmp_path / "out" / "checkpoints").glob("*/model")
    assert load_policy(config.model, path=str(model)).eos_ids == (1, end)


def test_another_tokenizer_is_refused_before_the_first_step(
    model_folder, rows_path, tmp_path, monkeypatch
):
    monkeypatch.setattr("tests.trainer.tiny.CHARACTERS", CHARACTERS.replace("c", "ç"))
    teacher = write_model(tmp_path / "teacher")
    monkeypatch.undo()
    config = config_of(model_folder, rows_path, teacher)
    path = write_config(tmp_path, config.model_dump(mode="json"))

    done = run_trainer("run", path, "--out", tmp_path / "out")

    (event,) = read_events(tmp_path / "out" / "events.jsonl")
    assert (done.returncode, event["type"]) == (1, "run_failed")
    assert "'c' for the policy and 'ç' for the teacher" in event["error"]


def test_padding_is_refused_where_all_of_the_vocabulary_is_compared(
    model_folder, rows_path, teacher, policy
):
    check_teacher(config_of(model_folder, rows_path, teacher), policy)
    full = {"kl_coef": 1.0, "kl_estimator": "full"}

    with pytest.raises(ValueError, match=f"{NUM_TOKENS + 4}.*full"):
        check_teacher(config_of(model_folder, rows_path, teacher, loss=full), policy)


def test_a_teacher_of_shorter_texts_than_the_run_has_is_refused(
    model_folder, rows_path, policy, tmp_path
):
    teacher = write_model(tmp_path, seed=5, max_position_embeddings=20)
    data = {"rows": str(rows_path), "max_prompt_tokens": 12}

    def config(num_tokens: int) -> RunConfig:
        rollout = {"max_new_tokens": num_tokens}
        return config_of(model_folder, rows_path, teacher, data=data, rollout=rollout)

    check_teacher(config(8), policy)
    with pytest.raises(ValueError, match=r"20 tokens.*21"):
        check_teacher(config(9), policy)


def test_a_teacher_of_shorter_texts_than_its_prompts_with_context_is_refused(
    model_folder, rows_path, policy, tmp_path
):
    teacher = write_model(tmp_path, seed=5, max_position_embeddings=60)
    data = {"rows": str(rows_path), "max_prompt_tokens": 12}

    def config(num_tokens: int) -> RunConfig:
        reads = {"context": "column", "max_prompt_tokens": num_tokens}
        rollout = {"max_new_tokens": 8}
        parts = {"data": data, "rollout": rollout, "reference": reads}
        return config_of(model_folder, rows_path, teacher, **parts)

    check_teacher(config(52), policy)
    with pytest.raises(ValueError, match=r"60 tokens.*61.*reference.max_prompt_tokens"):
        check_teacher(config(53), policy)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"reference": {"kind": "none"}}, "reference.kind"),
        (
            {"reference": {"kind": "base"}, "model": {"path": "m", "lora_rank": 4}},
            "reference.kind",
        ),
        ({"reference": {"mix_every_steps": 1}}, "mix_every_steps"),
        ({"reference": {"reset_every_steps": 1}}, "reset_every_steps"),
        (
            {"advantage": {"weight": 0}, "rollout": {"dynamic_sampling": "drop"}},
            "dynamic_sampling",
        ),
    ],
)
def test_settings_that_leave_no_teacher_are_refused(parts, words, rows_path):
    with pytest.raises(ValueError, match=words):
        config_of(Path("m"), rows_path, Path("t"), **parts)


def test_one_completion_a_prompt_is_enough_for_distillation_alone(rows_path):
    one = {"rollout": {"group_size": 1}}

    config = config_of(Path("m"), rows_path, Path("t"), advantage={"weight": 0}, **one)

    assert config.rollout.group_size == 1
    with pytest.raises(ValueError, match="group_size"):
        config_of(Path("m"), rows_path, Path("t"), **one)


def test_a_teacher_without_a_weight_is_measured_at_all_tokens(rows_path):
    config = config_of(Path("m"), rows_path, Path("t"), loss={"kl_coef": 0.0})

    assert config.has_reference
    assert config.distils
    assert not config.samples_kl


def test_teachers_are_found_beside_the_configuration(tmp_path, rows_path):
    (tmp_path / "teacher").mkdir()
    changes = {"reference": {"model": "teacher"}}
    tree = config_tree(tmp_path, rows_path, optim={"num_steps": 4}, **changes)
    tree["phases"] = [
        {"name": "one", "num_steps": 2, "changes": {}},
        {"name": "two", "num_steps": 2, "changes": changes},
    ]

    config = read_config(write_config(tmp_path, tree))

    place = str(tmp_path / "teacher")
    assert config.reference.model == place
    assert config.phases[1].changes["reference"]["model"] == place
    assert named_models(config.model_dump()).count(place) == 2


def test_a_later_micro_batch_size_keeps_a_teachers_logprobs(
    model_folder, rows_path, teacher, policy
):
    reference = made(config_of(model_folder, rows_path, teacher), policy)
    (whole,) = cut(make_batch(5), policy, max_tokens=1_000)
    parts = cut(make_batch(5), policy, max_tokens=30)

    for micros in ([whole], parts):
        reference.add_logprobs(micros, temperature=1.0)

    by_member = {
        member: row
        for micro in parts
        for member, row in zip(micro.members, micro.reference_logprobs, strict=True)
    }
    for member, row in zip(whole.members, whole.reference_logprobs, strict=True):
        torch.testing.assert_close(
            by_member[member], row[: len(by_member[member])], atol=1e-5, rtol=0
        )
