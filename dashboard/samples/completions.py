from __future__ import annotations

from django.db.models import F, FloatField, Func, OrderBy, QuerySet, Value

from dashboard.accounts.models import User
from dashboard.runs.models import Run
from dashboard.samples.annotations.queries import with_marks
from dashboard.samples.forms import CompletionFilterForm
from dashboard.samples.models import Completion

PLACE: list[str | OrderBy] = ["-group__step", "-group__prompt_index", "position"]
ORDERS: dict[str, list[str | OrderBy]] = {
    "-step": PLACE,
    "step": ["group__step", "group__prompt_index", "position"],
    "-reward": [F("reward").desc(nulls_last=True), "id"],
    "reward": [F("reward").asc(nulls_last=True), "id"],
    "-advantage": ["-advantage", "id"],
    "advantage": ["advantage", "id"],
    "-length": ["-num_tokens", "id"],
    "length": ["num_tokens", "id"],
}


def find_completions(
    run: Run, form: CompletionFilterForm, reader: User | None = None
) -> QuerySet[Completion]:
    found = Completion.objects.filter(group__run=run, group__superseded_by__isnull=True)
    lookups = {
        "text": "text__icontains",
        "first_step": "group__step__gte",
        "last_step": "group__step__lte",
        "min_reward": "reward__gte",
        "max_reward": "reward__lte",
        "end": "end_reason",
        "prompt": "group__prompt_index",
        "min_advantage": "advantage__gte",
        "max_advantage": "advantage__lte",
        "min_length": "num_tokens__gte",
        "max_length": "num_tokens__lte",
    }
    given = {lookup: form.value(name) for name, lookup in lookups.items()}
    found = found.filter(**{k: v for k, v in given.items() if v not in (None, "")})
    if rule := form.value("rule"):
        found = with_scores(
            found, rule, low=form.value("min_score"), high=form.value("max_score")
        )
    tag, mark = (form.value(name) or "" for name in ("tag", "mark"))
    by_reader = form.value("by") == "me"
    if by_reader and not (tag or mark):
        mark = "any"
    found = with_marks(found, run, tag=tag, kind=mark, by=reader if by_reader else None)
    return found.order_by(*ORDERS[form.value("sort")])


def with_scores(
    found: QuerySet[Completion], rule: str, *, low: float | None, high: float | None
) -> QuerySet[Completion]:
    """Those that the rule scored, within these bounds."""
    place = Func(F("group__rule_names"), Value(rule), function="array_position")
    score = Func(
        F("rule_scores"),
        place,
        template="(%(expressions)s])",
        arg_joiner="[",
        output_field=FloatField(),
    )
    found = found.alias(score=score).filter(score__isnull=False)
    if low is not None:
        found = found.filter(score__gte=low)
    return found if high is None else found.filter(score__lte=high)


def read_completions(ids: list[int]) -> list[Completion]:
    """One query."""
    rows = Completion.objects.select_related("group").in_bulk(ids)
    return [rows[i] for i in ids if i in rows]
