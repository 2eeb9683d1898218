"""A team's rules: those built in, which are there from the start, and its own."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet

from dashboard.alerts.built_in import BUILT_IN
from dashboard.alerts.conditions import Condition, Kind
from dashboard.alerts.models import Rule
from dashboard.runs.models import Run


def list_rules(team_id: int) -> list[Rule]:
    """Built-in ones first, in their order; two queries once they have rows."""
    rules = list(_rules(team_id))
    known = {rule.built_in for rule in rules}
    missing = [one for one in BUILT_IN if one.key not in known]
    if missing:
        Rule.objects.bulk_create(
            [
                Rule(
                    team_id=team_id,
                    built_in=one.key,
                    name=one.name,
                    metric=one.metric,
                    kind=one.kind,
                )
                for one in missing
            ],
            ignore_conflicts=True,  # another process was looking, too
        )
        rules = list(_rules(team_id))
    places = {one.key: place for place, one in enumerate(BUILT_IN)}
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


def describe(rule: Rule) -> str:
    """The condition as a sentence without its full stop."""
    return describe_condition(rule.condition, rule.metric)


def describe_condition(condition: Condition, metric: str) -> str:
    x, n = f"{condition.threshold:g}", condition.for_steps
    unit = "evaluations" if metric.startswith("eval/") else "steps"
    for_steps = f" for {n} {unit}" if n > 1 else ""
    match condition.kind:
        case Kind.ABOVE:
            return f"{metric} above {x}{for_steps}"
        case Kind.BELOW:
            return f"{metric} below {x}{for_steps}"
        case Kind.CHANGES:
            ago = f"{condition.back} {unit} before"
            if condition.back == 1:
                ago = f"the {unit[:-1]} before"
            return f"{metric} changes by more than {x} % against {ago}{for_steps}"
        case Kind.MISSING:
            return f"{metric} has no value, or none that is a number{for_steps}"
        case Kind.CONSTANT:
            return f"{metric} stays the same{for_steps}"
        case Kind.SHARE_OF_FIRST:
            return f"{metric} below {x} × its first value{for_steps}"
        case Kind.TIMES_USUAL:
            return f"{metric} above {x} × its running median{for_steps}"
        case Kind.SHARE_OF_USUAL:
            return f"{metric} below {x} × its running median{for_steps}"
        case Kind.OVERFITS:
            return (
                f"eval/<set>/mean more than {x} below its best while reward/mean is "
                f"higher{f' for {n} evaluations' if n > 1 else ''}"
            )
        case Kind.WARNED:
            return "The trainer says a warning that no other built-in rule covers"
    raise AssertionError(condition.kind)
