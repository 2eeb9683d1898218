"""Whether a run can learn, judged by a probe of its starting model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dashboard.runs.launch.launching import Launch
from trainer.config import RunConfig

Answer = Literal["can", "hardly", "cannot"]
WORDS: dict[Answer, str] = {
    "can": "This run can learn",
    "hardly": "This run may learn little",
    "cannot": "This run cannot learn",
}
# At 5% of groups with a signal a step of 32 prompts learns from one or two.
LITTLE_SIGNAL = 0.05
MUCH_SOLVED = 0.95
MANY_TRUNCATED = 0.5
SOME_TRUNCATED = 0.1
MANY_UNSCORED = 0.5


# The settings that a probe samples with; others do not affect its verdict.
SAMPLED_BY = ("model", "data", "rollout", "reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    answer: Answer
    because: tuple[str, ...]
    remedies: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return f"{WORDS[self.answer]}, because {'; '.join(self.because)}."


@dataclass(frozen=True, slots=True)
class _Reason:
    answer: Answer
    because: str
    remedy: str = ""


def give_verdict(
    metrics: Mapping[str, Any], *, group_size: int, max_new_tokens: int
) -> Verdict | None:
    """Give the worst answer, with its reasons; None without metrics.

    Args:
        metrics: as `Probing.metrics` names them.
        group_size: completions of a group of the run.
        max_new_tokens: where the run truncates a completion.
    """
    if "signal/share" not in metrics or not metrics.get("num_prompts"):
        return None
    reasons = list(_find_reasons(metrics, group_size, max_new_tokens))
    answers = {reason.answer for reason in reasons}
    order: tuple[Answer, ...] = ("cannot", "hardly", "can")
    answer: Answer = next((answer for answer in order if answer in answers), "can")
    deciding = [reason for reason in reasons if reason.answer == answer]
    return Verdict(
        answer=answer,
        because=tuple(reason.because for reason in deciding),
        remedies=tuple(
            dict.fromkeys(reason.remedy for reason in reasons if reason.remedy)
        ),
    )


def verdict_of(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> Verdict | None:
    """Judge a probe of this run, by the run's first phase."""
    rollout = RunConfig.model_validate(config).phase_configs[0].config.rollout
    return give_verdict(
        metrics, group_size=rollout.group_size, max_new_tokens=rollout.max_new_tokens
    )


def _find_reasons(
    metrics: Mapping[str, Any], group_size: int, max_new_tokens: int
) -> Iterator[_Reason]:
    total = metrics["num_prompts"] * metrics["num_samples"]
    if (share := metrics["num_unscored"] / total) >= MANY_UNSCORED:
        yield _Reason(
            "cannot",
            f"no rule can score {share:.0%} of the completions",
            "Check the errors in the reward editor: the rows lack data that the rules "
            "need.",
        )
    yield _of_signal(metrics, group_size)
    if (share := metrics["frac_truncated"]) >= SOME_TRUNCATED:
        yield _Reason(
            "hardly" if share >= MANY_TRUNCATED else "can",
            f"{share:.0%} of completions are truncated at {max_new_tokens:,} tokens",
            "Raise rollout.max_new_tokens, or prompt the model to be brief.",
        )
    if problem := metrics.get("update_problem"):
        yield _Reason("cannot", f"an update failed: {str(problem).rstrip('.')}")


def _of_signal(metrics: Mapping[str, Any], group_size: int) -> _Reason:
    share, high = metrics["signal/share"], metrics["signal/high"]
    solved = metrics.get("pass@1") or 0.0
    seen = (
        f"{share:.0%} of groups of {group_size} are expected to have different rewards"
    )
    if solved >= MUCH_SOLVED:
        return _Reason(
            "hardly",
            f"{solved:.0%} of completions are already correct, and {seen}",
            "Use harder rows, or a smaller model.",
        )
    if share == 0:
        return _Reason(
            "cannot",
            f"rewards differed in none of {metrics['num_prompts']:,} groups (95% "
            f"upper bound: {high:.0%} of groups)",
            _more_signal(solved),
        )
    answer: Answer = "hardly" if share < LITTLE_SIGNAL else "can"
    remedy = _more_signal(solved) if answer == "hardly" else ""
    if not metrics.get(f"pass@{metrics['num_samples']}"):
        seen += ", but no completion is correct: only partial credit differs"
    return _Reason(answer, seen, remedy)


def _more_signal(solved: float) -> str:
    if solved > 0.5:
        return "Use harder rows: a group of correct completions has no signal."
    return (
        "Use easier rows, larger groups, a rule with partial credit, or a stronger "
        "model."
    )


def warn_of_probe(launch: Launch) -> str:
    """Quote the newest probe of this run if it found that it cannot learn; else ""."""
    version = launch.dataset_version
    probe = (
        version.dataset.team.probes.filter(
            job__state="done",
            is_sample=False,
            dataset_version=version,
            recipe_version=launch.recipe_version,
        )
        .order_by("-id")
        .first()
    )
    tree = launch.config.model_dump(mode="json")
    if probe is None or any(tree[p] != probe.config.get(p) for p in SAMPLED_BY):
        return ""
    verdict = verdict_of(probe.config, probe.metrics)
    if verdict is None or verdict.answer != "cannot":
        return ""
    return f"{probe}: {' '.join([verdict.sentence, *verdict.remedies])}"
