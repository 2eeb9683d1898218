"""Groups are scored while others are sampled, and come to the same as afterwards."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.rewards.scores import BY_THEMSELVES, recipe_of
from tests.trainer.run.test_resume import story
from tests.trainer.scored import make_prompt, run_config
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.config import DataConfig, RewardConfig, RunConfig
from trainer.data import Prompt, PromptRenderer, Row
from trainer.evaluation import evaluate
from trainer.gathering import Gathered, gather
from trainer.model.policy import Policy
from trainer.output.metrics import Stopwatch
from trainer.rewards import workers
from trainer.rewards.rule import Sample
from trainer.rewards.rules import RULES
from trainer.rewards.spec import RuleSpec
from trainer.rewards.workers import Scored
from trainer.rollout.engine import OnGroup, Request, SamplingParams, ignore
from trainer.scoring import Scorer, spare_workers
from trainer.types import Rollout

STEPS = {
    "step_recipe": {
        "rules": [{"name": "s", "kind": "length", "params": {"minimum": 2}}]
    },
    "step_pattern": r"\\.",
}
# Every second letter ends a step.
LETTERS = ["a.b", "abcdef", "", "ab.cd.", "<answer>7</answer>", "."]


class Letters:
    """A source that writes the same each time, and tells of it in another order."""

    idle_seconds = 0.0

    def __init__(self, policy: Policy) -> None:
        self.tokenizer = policy.tokenizer
        self.reported: list[int] = []

    def complete(
        self, prompts: Sequence[Prompt], step: int, *, on_group: OnGroup = ignore
    ) -> list[tuple[Rollout, ...]]:
        groups = [
            tuple(self._write(LETTERS[(prompt.index + k) % 6]) for k in range(3))
            for prompt in prompts
        ]
        for index in self._order(len(groups)):
            on_group(index, groups[index])
            self.reported.append(index)
        return groups

    def sync_weights(self) -> None:
        """Nothing to do."""

    def _order(self, count: int) -> Iterable[int]:
        return list(range(count))[::-2]  # no one reports each second one

    def _write(self, text: str) -> Rollout:
        ids = tuple(self.tokenizer.convert_tokens_to_ids(list(text)))
        return Rollout.of_one_turn(
            text=text,
            token_ids=(*ids, 1),
            logprobs=(-0.5,) * (len(ids) + 1),
            end_reason="stop",
        )


def gathered(source: Any, scorer: Scorer, config: RunConfig) -> Gathered:
    prompts = [make_prompt(index, n=index) for index in range(7)]
    return gather(
        source, lambda _: prompts, config, step=1, watch=Stopwatch(), scorer=scorer
    )


@pytest.fixture
def scorer() -> Iterator[Scorer]:
    with closing(Scorer(2)) as scorer:
        yield scorer


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"reward": {"overlong_buffer_tokens": 4}, "rollout": {"max_new_tokens": 6}},
        {"reward": STEPS, "advantage": {"credit": "process"}},
        {"reward": STEPS},  # without use for them
    ],
)
def test_scores_do_not_depend_on_where_groups_are_scored(parts, policy, scorer):
    config = run_config("a", "b", weights=[0.1, -2], **parts)

    found = gathered(Letters(policy), scorer, config)

    expected = gathered(Letters(policy), Scorer(0), config)
    assert found.groups == expected.groups
    assert (found.groups[0].step_scores is None) == ("advantage" not in parts)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_special_tokens_of_the_runs_tokenizer_are_no_part_of_a_completion(
    policy, num_workers
):
    policy.tokenizer.add_special_tokens({"additional_special_tokens": ["[END]"]})
    row = Row(index=0, prompt="?", answer=["Lyon", "Paris"], columns={})
    prompt = PromptRenderer(policy.tokenizer, DataConfig(rows="-")).render(row)
    rule = {"name": "it", "kind": "exact_answer", "params": {"source": "whole"}}
    reward = RewardConfig.model_validate({"recipe": {"rules": [rule]}})
    texts = ["Paris[END]", "Paris<|im_end|>[END]\n", "Paris[END]s", "Rome[END]"]
    rollouts = [
        Rollout.of_one_turn(
            text=text, token_ids=(3,), logprobs=(0.0,), end_reason="length"
        )
        for text in texts
    ]

    with closing(Scorer(num_workers)) as scorer:
        (group,) = scorer.begin([prompt], reward).finish([rollouts])

    assert [score.total for score in group.scores] == [1.0, 1.0, 0.0, 0.0]
    assert [each.text for each in group.completions] == texts


def test_another_thread_than_the_first_may_gather(policy, scorer):
    found: list[Gathered] = []
    config = run_config()
    thread = threading.Thread(
        target=lambda: found.append(gathered(Letters(policy), scorer, config))
    )
    thread.start()
    here = gathered(Letters(policy), scorer, config)
    thread.join()

    assert found[0].groups == here.groups


@pytest.fixture
def scored(monkeypatch) -> threading.Event:
    """Set when a worker has scored a group."""
    event, submit = threading.Event(), workers.Workers.submit

    def submitted(self: workers.Workers, *args: Any, **options: Any) -> Any:
        future = submit(self, *args, **options)
        future.add_done_callback(lambda _: event.set())
        return future

    monkeypatch.setattr(workers.Workers, "submit", submitted)
    return event


class Waiting(Letters):
    """A source, and an engine, that goes on only when the first group is scored."""

    def __init__(self, policy: Policy, scored: threading.Event) -> None:
        super().__init__(policy)
        self._scored = scored

    def sample(
        self, requests: Sequence[Request], params: SamplingParams, *, on_group: OnGroup
    ) -> list[tuple[Rollout, ...]]:
        prompts = [make_prompt(index) for index in range(len(requests))]
        return self.complete(prompts, 0, on_group=on_group)

    def rest(self) -> None:
        """Nothing to give back."""

    def _order(self, count: int) -> Iterator[int]:
        yield 0
        assert self._scored.wait(60)
        yield from range(1, count)


def test_a_group_is_scored_before_the_last_one_is_sampled(policy, scored, scorer):
    source = Waiting(policy, scored)

    found = gathered(source, scorer, run_config())

    assert source.reported == list(range(7))
    assert [group.prompt.index for group in found.groups] == list(range(7))


def test_evaluation_scores_while_it_samples_too(policy, scored, scorer):
    config = run_config(evaluation={"samples_per_prompt": 3})
    prompts = [make_prompt(index) for index in range(7)]

    found = evaluate(
        Waiting(policy, scored), prompts, config, name="heldout", scorer=scorer
    )

    scored.set()
    here = evaluate(Waiting(policy, scored), prompts, config, name="heldout")
    assert found == here


def test_seconds_of_scoring_are_those_of_all_workers(policy, monkeypatch):
    submit = Scorer.submit

    def timed(self: Scorer, *args: Any, **options: Any) -> Callable[[], Scored]:
        result = submit(self, *args, **options)
        return lambda: Scored(scores=result().scores, seconds=0.25)

    monkeypatch.setattr(Scorer, "submit", timed)
    config = run_config(reward=STEPS, advantage={"credit": "process"})

    found = gathered(Letters(policy), Scorer(0), config)

    assert found.metrics["time/score_work"] == 7 * 2 * 0.25


@pytest.mark.parametrize(
    ("num_workers", "kinds"),
    [
        (
            None,
            {
                "code_tests",
                "cosine_length",
                "length_rank",
                "math_verify",
                "python_function",
                "reasoning_answer",
                "reasoning_gym",
            },
        ),
        (0, set()),
        (1, set(BY_THEMSELVES)),
    ],
)
def test_quick_rules_are_not_worth_a_process(num_workers, kinds, monkeypatch):
    sent: set[str] = set()

    class Sent:
        result = None

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def submit(self, rules: Sequence[RuleSpec], *_: Any, **__: Any) -> Any:
            sent.add(rules[0].kind)
            return self

    monkeypatch.setattr("trainer.rewards.workers.Workers", Sent)
    scorer = Scorer(num_workers)

    for kind in BY_THEMSELVES:
        recipe = recipe_of(kind, **RULES[kind].example_pass.params)
        scorer.submit(recipe, [Sample("", "")], name="row 0")

    assert sent == kinds


@pytest.mark.parametrize(
    ("cores", "processes", "expected"),
    [(1, 1, 1), (2, 1, 1), (8, 1, 7), (64, 1, 8), (64, 16, 3), (64, 64, 1)],
)
def test_cores_are_shared_out_among_the_processes_of_a_run(
    cores, processes, expected, monkeypatch
):
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: set(range(cores)), raising=False
    )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))

    assert spare_workers() == expected


def test_a_phase_cannot_change_the_number_of_workers():
    tree = config_tree(Path("model"), Path("rows.jsonl"))
    changes = {"reward": {"num_workers": 2}}
    phases = [{"name": "one", "num_steps": 6, "changes": changes}]

    with pytest.raises(ValueError, match=r"reward\.num_workers"):
        RunConfig.model_validate(tree | {"phases": phases})


@pytest.mark.parametrize(
    "credit", [pytest.param("outcome", marks=pytest.mark.slow), "process"]
)
def test_a_run_with_workers_is_the_run_without(
    credit, model_folder, rows_path, tmp_path
):
    values = []
    for num_workers in (0, 2):
        reward = STEPS | {"num_workers": num_workers}
        tree = config_tree(
            model_folder, rows_path, reward=reward, advantage={"credit": credit}
        )
        out = tmp_path / f"out-{num_workers}"
        config = write_config(tmp_path / f"{num_workers}", tree)

        assert run_trainer("run", config, "--out", out).returncode == 0

        values.append(story(out / "events.jsonl"))
        (*_, last) = only(read_events(out / "events.jsonl"), "step_finished")
        assert last["metrics"]["time/score_work"] > 0

    assert values[0] == values[1]
