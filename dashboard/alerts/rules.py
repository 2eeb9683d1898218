"""A team's rules: those built in, which are there from the start, and its own."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet

from dashboard.alerts.models import BUILT_IN, Rule
from dashboard.runs.models import Run
from trainer.alert_rules import meaningless_rules
from trainer.config import RunConfig


def list_rules(team_id: int) -> list[Rule]:
    """Built-in ones first, in their order; two queries once they have rows."""
    rules = list(_rules(team_id))
    known = {rule.built_in for rule in rules}
    missing = [one for code, one in BUILT_IN.items() if code not in known]
    if missing:
        Rule.objects.bulk_create(
            [
                Rule(
                    team_id=team_id,
                    built_in=one.code,
                    name=one.name,
                    metric=one.metric,
                    kind=one.condition.kind,
                )
                for one in missing
            ],
            ignore_conflicts=True,  # another process was looking, too
        )
        rules = list(_rules(team_id))
    places = {code: place for place, code in enumerate(BUILT_IN)}
    return sorted(rules, key=lambda rule: (places.get(rule.built_in, 99), rule.pk))


def _rules(team_id: int) -> QuerySet[Rule]:
    return Rule.objects.filter(team_id=team_id).select_related("run")


def rules_of(run: Run) -> list[Rule]:
    """The rules that are on and that this run is under."""
    rules = list_rules(run.team_id)
    return [rule for rule in rules if rule.is_enabled and rule.applies_to(run)]


def signature(rules: Iterable[Rule]) -> tuple[object, ...]:
    """Changes when any of them asks for something else."""
    return tuple((rule.pk, rule.revision, rule.condition) for rule in rules)


def left_out(run: Run) -> list[tuple[int, frozenset[str]]]:
    """The first steps of the run's phases, with the built-in rules that say nothing
    of each; of settings that nobody knows none."""
    if run.is_imported:
        return []
    stages = RunConfig.model_validate(run.config).stages
    return [(stage.first_step, meaningless_rules(stage.config)) for stage in stages]


def describe(rule: Rule) -> str:
    """The condition as a sentence without its full stop."""
    return rule.condition.describe(rule.metric)
