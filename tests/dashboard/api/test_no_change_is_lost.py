"""Two programs change one object: PATCH writes sent fields and reports conflicts."""

from dataclasses import dataclass
from typing import Any

import pytest

from dashboard.accounts.models import Role, User
from dashboard.runs.models import Run
from tests.dashboard.alerts.factories import make_rule
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.api.test_every_operation_is_guarded import operations
from tests.dashboard.runs.stories import queue_run

pytestmark = pytest.mark.django_db
ONE_SWITCH = "a switch has two states: the second change is the same as the first"
NOT_LOST = {
    "drain_worker": ONE_SWITCH,
    "pin_checkpoint": ONE_SWITCH,
    "trash_dataset": ONE_SWITCH,
    "send_dataset_part": "bytes at an offset: 409 where the file ends elsewhere",
    "send_run_file": "as above",
    "save_report": "takes the number of a version: test_report_operations.py",
}


@dataclass(kw_only=True)
class Case:
    """A field with what it held and two values for it, and another field's value."""

    path: str
    name: str
    values: tuple[Any, Any, Any]
    other: tuple[str, Any]
    look: str = ""  # where they are read, and which of a list


CASES = {
    "change_run": [
        Case(
            path="/runs/{run}",
            name="notes",
            values=("Began", "First\nline", "Second"),
            other=("tags", ["paper"]),
        ),
        Case(
            path="/runs/{run}",
            name="tags",
            values=(["old"], ["old", "mine"], ["yours"]),
            other=("notes", "Kept"),
        ),
    ],
    "change_queued_run": [
        Case(
            path="/queue/{run}",
            look="/queue",
            name="priority",
            values=("normal", "high", "low"),
            other=("is_on_hold", True),
        )
    ],
    "change_alert_rule": [
        Case(
            path="/alert-rules/{rule}",
            look="/alert-rules",
            name="threshold",
            values=(1.0, 0.5, 0.75),
            other=("name", "Ours"),
        )
    ],
    "change_member": [
        Case(
            path="/members/{carol}",
            look="/members",
            name="role",
            values=("member", "viewer", "admin"),
            other=("is_active", False),
        )
    ],
}
ROWS = [
    pytest.param(case, id=f"{name}: {case.name}")
    for name, cases in CASES.items()
    for case in cases
]


@pytest.fixture
def program(alice) -> Program:
    return Program(make_token(alice, "write", "admin"))


@pytest.fixture
def known(team, alice) -> dict[str, int]:
    carol = User.objects.create_user("carol")
    return {
        "run": queue_run(team, notes="Began", tags=["old"]).pk,
        "rule": make_rule(team).pk,
        "carol": team.memberships.create(user=carol, role=Role.MEMBER).pk,
    }


def read(program: Program, case: Case, known: dict[str, int]) -> dict[str, Any]:
    tree: dict[str, Any] = program.get(case.look or case.path.format(**known)).json()
    if "items" not in tree:
        return tree
    number = int(case.path.format(**known).rpartition("/")[2])
    rows = tree["items"]
    return next(row for row in rows if row.get("id", row.get("run_id")) == number)


def test_every_operation_that_changes_something_is_here():
    changing = {name for name, method, *_ in operations() if method in ("PATCH", "PUT")}

    assert {*CASES, *NOT_LOST} == changing
    assert not CASES.keys() & NOT_LOST.keys()


@pytest.mark.parametrize("case", ROWS)
def test_missing_fields_are_unchanged(case, program, known):
    path = case.path.format(**known)
    began, first, _ = case.values
    assert read(program, case, known)[case.name] == began

    answers = [
        program.patch(path, {case.other[0]: case.other[1]}),
        program.patch(path, {case.name: first}),
    ]

    assert [answer.status_code for answer in answers] == [200, 200]
    now = read(program, case, known)
    assert (now[case.name], now[case.other[0]]) == (first, case.other[1])


@pytest.mark.parametrize("case", ROWS)
def test_unchanged_fields_do_not_overwrite_a_change(case, program, known):
    path = case.path.format(**known)
    began, first, _ = case.values
    program.patch(path, {case.name: first})
    whole = {case.name: began, case.other[0]: case.other[1], "was": {case.name: began}}

    assert program.patch(path, whole).status_code == 200

    now = read(program, case, known)
    assert (now[case.name], now[case.other[0]]) == (first, case.other[1])


@pytest.mark.parametrize("case", ROWS)
def test_a_conflicting_change_is_rejected_with_both_values(case, program, known):
    path, name = case.path.format(**known), case.name
    began, first, second = case.values
    program.patch(path, {name: first})
    stale = {name: second, case.other[0]: case.other[1], "was": {name: began}}

    answer = program.patch(path, stale)

    now = read(program, case, known)
    assert answer.status_code == 409
    tree = answer.json()
    assert tree["type"] == "urn:cohort:problem:conflict"
    assert tree["conflicts"] == [{"field": name, "now": first, "sent": second}]
    assert tree["errors"][0]["field"] == f"body.{name}"
    assert (now[name], now[case.other[0]] != case.other[1]) == (first, True)
    assert program.patch(path, stale | {"was": {name: first}}).status_code == 200
    assert read(program, case, known)[name] == second


@pytest.mark.parametrize("case", ROWS)
def test_changes_of_other_fields_do_not_conflict(case, program, known):
    path = case.path.format(**known)
    program.patch(path, {case.other[0]: case.other[1]})
    mine = {case.name: case.values[1], "was": {case.name: case.values[0]}}

    assert program.patch(path, mine).status_code == 200
    assert program.patch(path, mine).status_code == 200  # it is so already
    for odd in (5, None, True, "abc", {"a": 1}, [[]]):
        wrong = {case.name: case.values[0], "was": {case.name: odd}}
        assert program.patch(path, wrong).status_code in (200, 409, 422), odd
    misspelt = program.patch(path, {"was": {"no_such_field": 1}})
    assert misspelt.status_code == 422


def test_a_stale_report_is_answered_with_both_texts(program, team, alice):
    report = make_report(team, alice, "One.")
    path = f"/reports/{report.pk}"
    program.patch(path, {"number": 1, "text": "Two."})

    refused = program.patch(path, {"number": 1, "text": "Three."})

    assert refused.status_code == 409
    data = {"field": "text", "now": "Two.", "sent": "Three."}
    assert refused.json()["conflicts"] == [data]


def test_a_concurrently_changed_interval_conflicts(program, known):
    path, name = f"/runs/{known['run']}/changes", "checkpoint.every_steps"
    was = {name: Run.objects.get().config["checkpoint"]["every_steps"]}
    program.post(path, {"settings": {name: 11}})

    refused = program.post(path, {"settings": {name: 12}, "was": was})

    assert refused.status_code == 409
    data = {"field": name, "now": 11, "sent": 12}
    assert refused.json()["conflicts"] == [data]
