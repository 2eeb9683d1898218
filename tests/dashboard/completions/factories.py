"""Runs with groups, made as ingest leaves them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.completions.models import Group, RuleNote
from dashboard.datasets.models import Dataset, DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.rewards.models import RecipeVersion, RewardRecipe
from dashboard.runs.models import Checkpoint, Evaluation, Run, Step
from tests.dashboard.completions.stored import store_completions
from trainer.config import RunConfig

RULES = [
    {"name": "answer", "kind": "exact_answer", "weight": 1.0, "params": {}},
    {"name": "format", "kind": "format_tags", "weight": 0.2, "params": {}},
]
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def make_config(
    rules: list[dict[str, Any]] | None = None, **parts: Any
) -> dict[str, Any]:
    tree = {
        "model": {"path": "models/tiny"},
        "data": {"rows": "rows.jsonl"},
        "reward": {"recipe": {"rules": rules or RULES}},
        "rollout": {"prompts_per_step": 4, "group_size": 4},
        **parts,
    }
    return RunConfig.model_validate(tree).model_dump(mode="json")


def make_dataset(team: Team, name: str = "sums") -> DatasetVersion:
    dataset, _ = Dataset.objects.get_or_create(team=team, name=name)
    number = dataset.versions.count() + 1
    return DatasetVersion.objects.create(
        dataset=dataset,
        number=number,
        content_sha256=f"{dataset.pk:032x}{number:032x}",
        num_rows=100,
        mapping={"prompt": "prompt", "answer": "answer", "columns": []},
    )


def store_dataset(
    team: Team, rows: Iterable[Row], name: str = "Sums", **fields: Any
) -> DatasetVersion:
    defaults = {"mapping": {}, "source": {}, "user": None}
    return create_dataset_version(
        team=team, name=name, rows=rows, **{**defaults, **fields}
    )


def make_recipe(
    team: Team, name: str = "right", rules: list[dict[str, Any]] | None = None
) -> RecipeVersion:
    recipe, _ = RewardRecipe.objects.get_or_create(team=team, name=name)
    number = recipe.versions.count() + 1
    return RecipeVersion.objects.create(
        recipe=recipe,
        number=number,
        content_sha256=f"{recipe.pk:032x}{number:032x}",
        spec={"rules": rules or RULES},
    )


def make_run(team: Team, name: str = "calm-otter-1", **fields: Any) -> Run:
    rules = fields.pop("rules", None)
    given: dict[str, Any] = {
        "state": "finished",
        "num_steps": 200,
        "model_label": "tiny",
        "started_at": START,
        "finished_at": timezone.now() + timedelta(hours=1),
    }
    given.update(fields)
    given.setdefault("config", make_config(rules))
    if "dataset_version" not in given:
        given["dataset_version"] = make_dataset(team)
    if "recipe_version" not in given:
        given["recipe_version"] = make_recipe(team, rules=rules)
    return Run.objects.create(team=team, name=name, **given)


def make_group(
    run: Run,
    step: int = 1,
    prompt_index: int = 0,
    rewards: tuple[float | None, ...] = (1.2, 0.2, 0.0, 0.0),
    **fields: Any,
) -> Group:
    texts = fields.pop("texts", [f"completion {i}" for i in range(len(rewards))])
    end_reasons = fields.pop("end_reasons", ["stop"] * len(rewards))
    scored = [r for r in rewards if r is not None]
    mean = sum(scored) / len(scored) if scored else None
    std = None if mean is None else _std(scored)
    group = Group.objects.create(
        run=run,
        step=step,
        prompt_index=prompt_index,
        **{
            "attempt": 1,
            "seq": step,
            "prompt": f"What is {prompt_index} + 1?",
            "answer": str(prompt_index + 1),
            "reward_mean": mean,
            "reward_std": std,
            "signal": _signal(scored),
            "rule_names": ["answer", "format"],
            **fields,
        },
    )
    values = [
        {
            "text": text,
            "num_tokens": 10 + i,
            "end_reason": end,
            "reward": reward,
            "rule_scores": _scores(reward, len(group.rule_names)),
            "advantage": 0.0
            if reward is None or not std
            else (reward - (mean or 0)) / std,
            "mean_logprob": -0.5,
        }
        for i, (reward, text, end) in enumerate(
            zip(rewards, texts, end_reasons, strict=True)
        )
    ]
    store_completions(group, values)
    return group


def make_note(group: Group, text: str, **fields: Any) -> RuleNote:
    given = {"step": group.step, "position": 0, "rule": "answer", "is_error": False}
    return RuleNote.objects.create(
        run_id=group.run_id, group=group, text=text, **{**given, **fields}
    )


def _std(rewards: list[float]) -> float:
    if min(rewards) == max(rewards):
        return 0.0
    mean = sum(rewards) / len(rewards)
    squares = sum((r - mean) ** 2 for r in rewards)
    return float((squares / max(1, len(rewards) - 1)) ** 0.5)


def _signal(scored: list[float]) -> str:
    if not scored:
        return "unscorable"
    if min(scored) < max(scored):
        return "mixed"
    if scored[0] >= 1:  # a correct answer
        return "all_right"
    return "all_wrong" if scored[0] == 0 else "tied"


def _scores(reward: float | None, num_rules: int) -> list[float | None]:
    """Of the rules above; others have none."""
    values: list[float | None] = []
    if reward is not None:
        answer = 1.0 if reward >= 1 else 0.0
        values = [answer, (reward - answer) / 0.2]
    return [*values, *[None] * num_rules][:num_rules]


def make_steps(run: Run, curves: dict[str, list[float | None]]) -> None:
    """One Step per value, ten seconds apart; the curves have one length."""
    run.metric_names = list(curves)
    run.last_step = max(len(values) for values in curves.values())
    run.save(update_fields=["metric_names", "last_step"])
    Step.objects.bulk_create(
        Step(
            run=run,
            step=i + 1,
            attempt=1,
            seq=i + 1,
            time=START + timedelta(seconds=10 * (i + 1)),
            values=list(row),
        )
        for i, row in enumerate(zip(*curves.values(), strict=True))
    )


def make_checkpoint(run: Run, step: int = 1, **fields: Any) -> Checkpoint:
    attempt = fields.get("attempt", 1)
    defaults = {
        "name": f"step-{step:06d}-attempt-{attempt}",
        "attempt": attempt,
        "sha256": "ab" * 32,
        "num_bytes": 1,
        "saved_at": timezone.now(),
    }
    return run.checkpoints.create(step=step, **{**defaults, **fields})


def make_evaluation(
    run: Run, step: int, metrics: dict[str, Any], name: str = "heldout", **fields: Any
) -> Evaluation:
    defaults = {"attempt": 1, "seq": 1_000 + step, "time": START}
    return Evaluation.objects.create(
        run=run, step=step, name=name, metrics=metrics, **{**defaults, **fields}
    )
