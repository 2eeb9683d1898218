"""The real GRPOTrainer of TRL, watched: everything is reported, nothing is changed."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.http import Server
from cohort.trl import watch
from tests.client.server import FakeServer, serve
from tests.trainer.rollout.test_chat import chat_tokenizer
from tests.trainer.tiny import write_model
from trainer.events import Evaluated, GroupScored, MismatchMeasured, StepFinished

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(6)]


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture
def server(fake) -> Iterator[Server]:
    with serve(fake) as address:
        yield address


def digits(completions: list[str], **_: Any) -> list[float | None]:
    scores = [sum(map(str.isdigit, text)) / 8 for text in completions]
    return [None, *scores[1:]]


def length(completions: list[str], **_: Any) -> list[float]:
    return [len(text) / 8 for text in completions]


def make(model: Path, folder: Path, **options: Any) -> Any:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    logging.getLogger("trl").setLevel(logging.ERROR)
    given = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "reward_weights": [1.0, 0.5],
        "logging_steps": 2,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "seed": 3,
        **options,
    }
    return GRPOTrainer(
        model=str(model),
        processing_class=PreTrainedTokenizerFast.from_pretrained(model),
        reward_funcs=[digits, length],
        train_dataset=Dataset.from_list(ROWS),
        eval_dataset=Dataset.from_list(ROWS[:2]),
        args=GRPOConfig(**given),
    )


def divide(a: int, b: int) -> float:
    """Divides.

    Args:
        a: the dividend.
        b: the divisor.
    """
    return a / b


def make_with_tools(folder: Path, *turns: str) -> Any:
    """Return a trainer with a tool, whose model says these turns of each completion."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = chat_tokenizer("qwen3")
    tokenizer.eos_token = "<|im_end|>"
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 4_096}
    model = write_model(folder / "model", **sizes)
    tokenizer.save_pretrained(model)
    options: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "max_completion_length": 1_000,
        "max_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
    }
    trainer = GRPOTrainer(
        model=str(model),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [1.0, 0.0],
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": "What is 6 / 2?"}]}]
        ),
        args=GRPOConfig(output_dir=str(folder), **options),
        tools=[divide],
    )
    said = iter(turns)

    def speak(prompts: list[list[int]], *_: Any, **__: Any) -> tuple[Any, None]:
        ids = tokenizer.encode(next(said) + "<|im_end|>", add_special_tokens=False)
        return [ids for _ in prompts], None

    trainer._generate_single_turn = speak
    return trainer


def weights_of(trainer: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def groups_of(fake: FakeServer, step: int) -> list[GroupScored]:
    return [e for e in fake.events if isinstance(e, GroupScored) and e.step == step]


def steps_of(fake: FakeServer) -> dict[int, dict[str, float | None]]:
    return {e.step: e.metrics for e in fake.events if isinstance(e, StepFinished)}


def test_all_of_every_step_is_reported(model_folder, tmp_path, fake, server):
    trainer = make(model_folder, tmp_path, eval_strategy="steps", eval_steps=2)
    kept: dict[int, dict[str, list[Any]]] = {}
    theirs = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        found = theirs(inputs)
        if trainer.model.training:
            logs = trainer._logs
            kept[trainer.state.global_step + 1] = {
                "prompt": list(logs["prompt"]),
                "completion": list(logs["completion"]),
                "digits": list(logs["rewards"]["digits"]),
                "advantage": list(logs["advantages"]),
            }
        return found

    trainer._generate_and_score_completions = keep
    watch(trainer, name="theirs", server=server)

    trainer.train()

    opening = fake.openings[0]
    assert (opening["name"], opening["tool"], opening["num_steps"]) == (
        "theirs",
        "TRL",
        3,
    )
    assert opening["rules"] == {"digits": 1.0, "length": 0.5}
    assert opening["settings"]["learning_rate"] == 1e-3
    for step, logs in kept.items():
        groups = groups_of(fake, step)
        texts = [c.text for g in groups for c in g.completions]
        assert texts == logs["completion"]
        assert [g.prompt for g in groups] == logs["prompt"][::4]
        found = [c.advantage for g in groups for c in g.completions]
        assert found == pytest.approx(logs["advantage"])
        first = groups[0].completions[0]
        assert first.rules["digits"] is None  # it gave no score
        assert first.reward == pytest.approx(0.5 * len(first.text) / 8)
        assert all(c.num_tokens for g in groups for c in g.completions)
        assert {c.end_reason for g in groups for c in g.completions} <= {
            "stop",
            "length",
        }
        answers = {g.prompt: g.answer for g in groups}
        assert answers == {
            r["prompt"]: r["answer"] for r in ROWS if r["prompt"] in answers
        }
    steps = steps_of(fake)
    assert sorted(steps) == sorted(kept) == [1, 2, 3]
    assert steps[2]["grad_norm"] is not None  # as TRL logged it
    assert "grad_norm" not in steps[1]
    assert steps[1]["reward/length/mean"] is not None  # from its completions
    assert [e.step for e in fake.events if isinstance(e, Evaluated)] == [2, 3]
    assert fake.events[-1].type == "run_finished"


@pytest.mark.parametrize(("top_p", "bf16"), [(1.0, False), (0.9, True)])
def test_the_gap_between_sampler_and_trainer_is_reported(
    top_p, bf16, model_folder, tmp_path, fake, server
):
    # Old log-probs are computed, as they are for vLLM.
    options = {"num_iterations": 2, "max_steps": 2, "top_p": top_p, "bf16": bf16}
    trainer = make(model_folder, tmp_path, **options)
    sample = trainer._generate_single_turn

    def as_vllm(*args: Any) -> Any:
        ids, _ = sample(*args)
        return ids, [[-2.0 if n else None for n in range(len(own))] for own in ids]

    generate = trainer._generate_and_score_completions
    outputs = []
    trainer._generate_single_turn = as_vllm
    trainer._generate_and_score_completions = lambda inputs: (
        outputs.append(generate(inputs)) or outputs[-1]
    )
    watch(trainer, name="theirs", server=server)

    trainer.train()

    (event,) = [e for e in fake.events if isinstance(e, MismatchMeasured)]
    groups = groups_of(fake, event.step)
    lengths = [c.num_tokens for group in groups for c in group.completions]
    assert event.sums.num_tokens == [length - 1 for length in lengths]
    gaps = (outputs[0]["old_per_token_logps"] + 2)[:, 1:]
    mask = outputs[0]["completion_mask"][:, 1:]
    assert event.sums.sum == pytest.approx((gaps * mask).sum(dim=1).tolist(), rel=1e-3)
    assert event.advantages == pytest.approx(
        outputs[0]["advantages"].tolist(), rel=1e-3
    )
    assert event.age == 0
    assert event.incomparable == (None if top_p == 1 else "restricted")
    assert event.dtype == ("bfloat16" if bf16 else None)


def test_a_metric_of_a_step_is_not_the_mean_that_trl_logs(
    model_folder, tmp_path, fake, server
):
    options = {"max_steps": 4, "logging_steps": 4, "gradient_accumulation_steps": 2}
    trainer = make(model_folder, tmp_path, beta=0.1, num_iterations=2, **options)
    kept: dict[int, dict[str, list[float]]] = {}
    watch(trainer, server=server)
    trainer.add_callback(Keeping(trainer, kept))

    trainer.train()

    steps, (logged, *_) = steps_of(fake), trainer.state.log_history
    before: dict[str, list[float]] = {}
    for step, lists in kept.items():
        for name in ("kl", "completions/min_length"):
            own = lists.get(name, [])[len(before.get(name, [])) :]
            metric = steps[step].get(name.replace("kl", "kl/mean"))
            assert metric == (pytest.approx(sum(own) / len(own)) if own else None)
        rewards = [c.reward for g in groups_of(fake, step) for c in g.completions]
        lengths = [c.num_tokens for g in groups_of(fake, step) for c in g.completions]
        if rewards:
            mean = sum(r for r in rewards if r is not None) / len(rewards)
            assert steps[step]["reward/mean"] == pytest.approx(mean)
            assert steps[step]["completion/max_length"] == max(n or 0 for n in lengths)
        before = lists
    assert steps[4]["kl/mean"] != pytest.approx(logged["kl"])
    assert steps[4]["loss"] == logged["loss"]  # only the log has it
    assert "reward/mean" not in steps[4]  # it was not sampled in this step


IMPORTS = {
    "before": "import cohort\nimport transformers, trl",
    "after": "import transformers, trl\ntrl.GRPOTrainer\nimport cohort",
}


@pytest.mark.parametrize("order", IMPORTS)
def test_report_to_names_the_callback_in_any_order_of_imports(order):
    program = (
        f"{IMPORTS[order]}\n"
        "from transformers.integrations.integration_utils import (\n"
        "    get_reporting_integration_callbacks as get_callbacks\n"
        ")\n"
        "assert get_callbacks('cohort') == [cohort.trl.ReportTo]\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_report_to_reports_as_watching_does(
    model_folder, tmp_path, fake, server, monkeypatch
):
    monkeypatch.setenv("COHORT_URL", server.url)
    monkeypatch.setenv("COHORT_TOKEN", server.token)
    trainer = make(model_folder, tmp_path, report_to="cohort", run_name="theirs")

    trainer.train()

    assert [o["name"] for o in fake.openings] == ["theirs"]
    assert sorted(steps_of(fake)) == [1, 2, 3]
    assert all(len(groups_of(fake, step)) == 2 for step in (1, 2, 3))
    assert fake.events[-1].type == "run_finished"


def test_a_watched_trainer_with_report_to_is_reported_once(
    model_folder, tmp_path, fake, server, monkeypatch
):
    monkeypatch.setenv("COHORT_URL", server.url)
    monkeypatch.setenv("COHORT_TOKEN", server.token)
    trainer = make(model_folder, tmp_path, report_to="cohort", max_steps=1)
    watch(trainer, name="watched", server=server)

    trainer.train()

    assert [o["name"] for o in fake.openings] == ["watched"]


class Keeping:
    """Copies what TRL measured by the end of each step."""

    def __init__(self, trainer: Any, kept: dict[int, dict[str, list[float]]]) -> None:
        self._trainer = trainer
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        lists = self._trainer._metrics["train"].items()
        self._kept[state.global_step] = {name: list(values) for name, values in lists}


def test_watching_changes_no_weight(model_folder, tmp_path, server):
    alone = make(model_folder, tmp_path / "a")
    alone.train()
    watched = make(model_folder, tmp_path / "b")
    watch(watched, server=server)

    watched.train()

    pairs = zip(weights_of(alone), weights_of(watched), strict=True)
    assert all(torch.equal(mine, its) for mine, its in pairs)


@pytest.mark.parametrize("lacks", ["_logs", "_calculate_rewards", "_metrics"])
def test_a_trl_that_keeps_less_is_reported_as_far_as_it_goes(
    model_folder, tmp_path, fake, server, lacks
):
    trainer = make(model_folder, tmp_path)

    watch(Without(trainer, lacks), server=server)
    trainer.train()

    assert sorted(steps_of(fake)) == [1, 2, 3]
    assert bool(groups_of(fake, 1)) is (lacks != "_logs")


class Without:
    """A trainer that seems to have no such attribute."""

    def __init__(self, trainer: Any, name: str) -> None:
        object.__setattr__(self, "_of", (trainer, name))

    def __getattr__(self, name: str) -> Any:
        trainer, lacking = self._of
        if name == lacking:
            raise AttributeError(name)
        return getattr(trainer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of[0], name, value)


def test_an_error_of_the_watcher_never_reaches_the_training(
    model_folder, tmp_path, fake, server, monkeypatch, caplog
):
    from cohort import trl

    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(trl, "_completions", fails)
    trainer = make(model_folder, tmp_path)
    watch(trainer, server=server)

    trainer.train()

    assert trainer.state.global_step == 3
    assert fake.events[-1].type == "run_finished"
    assert [r.levelname for r in caplog.records if r.name == "cohort"][:1] == ["ERROR"]


def test_a_resumed_training_is_the_same_run(model_folder, tmp_path, fake, server):
    first = make(
        model_folder, tmp_path, max_steps=2, save_strategy="steps", save_steps=1
    )
    watch(first, server=server)
    first.train()
    second = make(model_folder, tmp_path, max_steps=3)
    watch(second, server=server)

    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))

    assert len(fake.openings) == 1
    assert fake.from_steps == [0, 1]
    assert [e.step for e in fake.attempts[1] if isinstance(e, StepFinished)] == [2, 3]


def test_calls_of_tools_are_turns(tmp_path, fake, server):
    call = (
        '<tool_call>\n{"name": "divide", "arguments": {"a": 6, "b": %d}}\n</tool_call>'
    )
    trainer = make_with_tools(tmp_path, call % 0, "Again." + call % 2, "It is 3.")
    watch(trainer, name="tools", server=server)

    trainer.train()

    (group,) = groups_of(fake, 1)
    first = group.completions[0]
    assert group.prompt == "What is 6 / 2?"
    read = [(t.author, t.name, first.text[t.start : t.end]) for t in first.turns]
    calls = [call for turn in first.turns for call in turn.calls]
    assert [author for author, *_ in read] == ["policy", "tool"] * 2 + ["policy"]
    assert read[1] == ("tool", "divide", "{'error': 'division by zero'}")
    assert read[3:] == [("tool", "divide", "3.0"), ("policy", "", "It is 3.")]
    assert [(c.arguments, c.result) for c in calls] == [
        ('{"a": 6, "b": 0}', ""),
        ('{"a": 6, "b": 2}', "3.0"),
    ]
    assert "division by zero" in calls[0].error
    assert first.num_tokens is None  # TRL's mask of tokens is not kept
    metrics = steps_of(fake)[1]
    assert metrics["episode/num_turns"] == 3.0
    assert metrics["episode/num_tool_calls"] == 2.0
    assert metrics["episode/frac_tool_errors"] == 0.5
    # As TRL counts them: without those of tools.
    (logged, *_) = trainer.state.log_history
    assert metrics["completion/mean_length"] == logged["completions/mean_length"]
    assert first.end_reason == "stop"
