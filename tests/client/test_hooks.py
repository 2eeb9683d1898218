"""Hooks of SkyRL and slime, called as these trainers do.

The stand-ins have the fields and signatures of SkyRL 0.3.0 (commit a9564572) and
slime 0.3.1 (commit 624b824a).
"""

import importlib.util
import inspect
import logging
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from cohort import slime
from cohort.skyrl import CohortReports, Reports
from trainer.events import Evaluated, GroupScored, StepFinished


class Tokenizer:
    """A token is a character."""

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(map(chr, ids))


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def groups_of(fake: Any) -> list[GroupScored]:
    return [event for event in fake.events if isinstance(event, GroupScored)]


def steps_of(fake: Any) -> dict[int, Any]:
    return {e.step: e.metrics for e in fake.events if isinstance(e, StepFinished)}


def turns(completion: Any) -> list[tuple[str, str]]:
    return [(t.author, completion.text[t.start : t.end]) for t in completion.turns]


@pytest.fixture(autouse=True)
def login(server, monkeypatch):
    monkeypatch.setenv("COHORT_URL", server.url)
    monkeypatch.setenv("COHORT_TOKEN", server.token)
    monkeypatch.setattr(slime, "_opened", [])


@dataclass
class Model:
    path: str = "Qwen/Qwen3-0.6B"


@dataclass
class Policy:
    model: Model = field(default_factory=Model)


@dataclass
class Trainer:
    ckpt_path: str
    run_name: str = "gsm8k"
    hub_token: str = "hf_"
    policy: Policy = field(default_factory=Policy)


@dataclass
class Config:
    trainer: Trainer


class TrainerOfSkyrl:
    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.callbacks: list[Any] = []

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def fire(self, event: str, **fields: Any) -> None:
        values = {"global_step": 1, "total_steps": 9, "logs": None} | fields
        for callback in self.callbacks:
            getattr(callback, event)(self, SimpleNamespace(**values), None)


class BasePPOExp:
    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.logged: list[dict[str, Any]] = []

    def get_trainer(self, *, cfg: Config) -> TrainerOfSkyrl:
        return TrainerOfSkyrl(cfg)

    def get_trajectory_logger(self) -> Any:
        return SimpleNamespace(log=lambda **kwargs: self.logged.append(kwargs))


class Exp(CohortReports, BasePPOExp):
    pass


def trained(**fields: Any) -> dict[str, Any]:
    """Arguments of TrajectoryLogger.log in RayPPOTrainer.train."""
    output = {
        "prompt_token_ids": [ids("1 + 1"), ids("1 + 1")],
        "response_ids": [ids("add>2<ok"), ids("3")],
        "rewards": [[0.0] * 7 + [1.0], 0.0],
        "loss_masks": [[1, 1, 1, 0, 0, 0, 1, 1], [1]],
        "stop_reasons": ["stop", "length"],
        "trajectory_ids": [
            SimpleNamespace(instance_id="7", repetition_id=n) for n in range(2)
        ],
    }
    prompt = [{"role": "user", "content": "1 + 1"}]
    return {
        "tracker": None,
        "num_samples": 0,
        "prompts": [prompt, prompt],
        "generator_output": output | fields,
        "tokenizer": Tokenizer(),
        "global_step": 1,
        "wandb_key": "trajectories/train",
        "include_idx": False,
    }


def test_skyrls_completions_are_reported_beside_its_own_logger(fake, tmp_path):
    exp = Exp(Config(Trainer(str(tmp_path))))
    trainer = exp.get_trainer(cfg=exp.cfg)
    logger = exp.get_trajectory_logger()

    trainer.fire("on_train_start")
    trainer.fire("on_log", logs={"eval/all/avg_score": 0.1})
    logger.log(**trained() | {"wandb_key": "trajectories/eval"})
    logger.log(**trained())
    trainer.fire("on_step_end", metrics={"policy_loss": 1.0})
    trainer.fire("on_log", logs={"policy/policy_loss": 0.5})
    trainer.fire("on_train_end")

    assert len(exp.logged) == 2
    (opening,) = fake.openings
    assert (opening["name"], opening["tool"]) == ("gsm8k", "SkyRL")
    assert (opening["num_steps"], opening["model"]) == (9, "Qwen/Qwen3-0.6B")
    assert opening["settings"]["trainer.run_name"] == "gsm8k"
    assert "trainer.hub_token" not in opening["settings"]
    (group,) = groups_of(fake)
    episode, single = group.completions
    assert group.prompt == "1 + 1"
    assert turns(episode) == [
        ("policy", "add"),
        ("environment", ">2<"),
        ("policy", "ok"),
    ]
    assert (episode.reward, episode.num_tokens) == (1.0, 5)
    assert (episode.end_reason, single.end_reason) == ("stop", "length")
    assert (single.text, single.turns) == ("3", [])
    assert steps_of(fake)[1]["policy/policy_loss"] == 0.5
    assert fake.events[-1].type == "run_finished"


def test_of_skyrls_step_wise_trajectories_the_last_step_counts(fake, tmp_path):
    reports = Reports(Config(Trainer(str(tmp_path))))
    reports.inner = SimpleNamespace(log=lambda **_: None)

    arguments = trained(is_last_step=[False, True])
    reports.log(**arguments | {"prompts": arguments["prompts"][:1]})
    reports.on_train_end(None, None, None)

    (group,) = groups_of(fake)
    assert group.prompt == "1 + 1"
    assert [completion.text for completion in group.completions] == ["3"]


def test_a_resumed_run_of_skyrl_goes_on_in_its_folder(fake, tmp_path):
    for step in (1, 2, 1):
        reports = Reports(Config(Trainer(str(tmp_path))))
        reports.inner = SimpleNamespace(log=lambda **_: None)
        reports.log(**trained() | {"global_step": step})
        reports.on_log(None, SimpleNamespace(logs={"lr": 1}), None)
        reports.on_train_end(None, None, None)

    # Step 1 begins a run, and again a new one.
    assert len(fake.openings) == 2
    assert fake.from_steps == [0, 1]


def test_an_error_of_reporting_reaches_no_trainer(tmp_path, caplog):
    reports = Reports(Config(Trainer(str(tmp_path))))
    reports.inner = SimpleNamespace(log=lambda **_: None)
    with caplog.at_level(logging.ERROR):
        reports.log(wandb_key="trajectories/train", global_step=1)
        reports.log(**trained(loss_masks=None))
        skips_own_log = slime.log_rollout(0, None, [object()], None, 1.0)

    assert skips_own_log is False
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 3
    reports.on_train_end(None, None, None)


class Status(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


def sample(response: str, **fields: Any) -> SimpleNamespace:
    values = {
        "group_index": 0,
        "prompt": "1 + 1",
        "tokens": ids("1 + 1" + response),
        "response": response,
        "response_length": len(response),
        "label": "2",
        "reward": 1.0,
        "loss_mask": None,
        "status": Status.COMPLETED,
    }
    return SimpleNamespace(**(values | fields))


def arguments_of(tmp_path: Any, **fields: Any) -> SimpleNamespace:
    values = {"hf_checkpoint": "/models/Qwen3", "num_rollout": 2, "save": str(tmp_path)}
    return SimpleNamespace(**(values | fields))


def test_slimes_samples_are_groups_with_turns(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(slime, "_tokenizer", lambda _: Tokenizer())
    args = arguments_of(tmp_path, reward_key="score")
    masked = sample(
        "add>2<ok",
        loss_mask=[1, 1, 1, 0, 0, 0, 1, 1],
        reward={"score": 0.5, "format": 1},
    )
    others = [
        sample("3", status=Status.TRUNCATED, reward={"score": 0.0}),
        sample("b", group_index=1, prompt=[{"role": "user", "content": "2 + 2"}]),
    ]

    nested = [[masked, others[0]], others[1]]
    assert slime.log_rollout(0, args, nested, {"rollout/x": 3}, 2.5) is False
    slime.log_eval(0, args, {"aime": {"rewards": [1.0, None, 0.0]}}, None)
    slime.log_rollout(1, args, [sample("c", status=Status.ABORTED)], None, 1.0)
    slime._opened[0].close()

    (opening,) = fake.openings
    assert (opening["name"], opening["tool"]) == ("Qwen3", "slime")
    assert opening["num_steps"] == 2
    first, second, third = groups_of(fake)
    episode, single = first.completions
    assert turns(episode) == [
        ("policy", "add"),
        ("environment", ">2<"),
        ("policy", "ok"),
    ]
    assert (episode.reward, episode.num_tokens) == (0.5, 5)
    assert episode.rules == {"score": 0.5, "format": 1.0}
    assert (first.answer, second.prompt) == ("2", "2 + 2")
    assert (single.text, single.end_reason) == ("3", "length")
    assert third.completions[0].end_reason == "unknown"
    assert (
        steps_of(fake)[1] | {"time/generate": 2.5, "rollout/x": 3.0}
        == steps_of(fake)[1]
    )
    (held_out,) = (e for e in fake.events if isinstance(e, Evaluated))
    assert held_out.metrics == {"eval/aime/mean": 0.5}
    assert fake.events[-1].type == "run_finished"


def test_a_resumed_run_of_slime_goes_on_in_its_folder(fake, tmp_path):
    for rollout in (0, 1):
        slime._opened.clear()
        args = arguments_of(tmp_path, num_rollout=9)
        slime.log_rollout(rollout, args, [sample("2")], None, 1.0)
        slime._opened[0].close()

    assert len(fake.openings) == 1
    assert fake.from_steps == [0, 1]


@pytest.mark.skipif(
    importlib.util.find_spec("skyrl") is None, reason="SkyRL is not installed"
)
def test_the_installed_skyrl_has_the_hooks():
    from skyrl.train.entrypoints.main_base import BasePPOExp
    from skyrl.train.utils.callbacks import TrainingCallback
    from skyrl.train.utils.trajectory_logging import (
        TrajectoryLogger,
    )

    names = set(inspect.signature(TrajectoryLogger.log).parameters)
    assert {"prompts", "generator_output", "tokenizer", "global_step"} <= names
    assert hasattr(BasePPOExp, "get_trajectory_logger")
    assert {"on_train_start", "on_log", "on_train_end"} <= set(dir(TrainingCallback))
