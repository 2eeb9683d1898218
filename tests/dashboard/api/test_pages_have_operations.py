"""What pages can do, programs can do: a new page without a row here fails."""

from __future__ import annotations

from tests.dashboard.api import pages_of_runs, pages_of_teams
from tests.dashboard.api.rows_of_operations import SCOPES
from tests.dashboard.test_every_route_is_guarded import POST_ONLY, VIEWERS_POST, routes

# By a page's route: the operations that do what it does, or why there is none.
OPERATIONS = pages_of_runs.OPERATIONS | pages_of_teams.OPERATIONS
NONE = pages_of_runs.NONE | pages_of_teams.NONE


def test_every_page_has_one_row_and_every_row_a_page() -> None:
    rows = [*pages_of_runs.OPERATIONS, *pages_of_runs.NONE]
    rows += [*pages_of_teams.OPERATIONS, *pages_of_teams.NONE]

    assert sorted(rows) == sorted({str(route.name) for route in routes()})


def test_every_named_operation_is_there() -> None:
    for route, names in OPERATIONS.items():
        assert names, route
        assert set(names.split()) <= set(SCOPES), route


def test_what_changes_something_is_done_by_what_may_change_it() -> None:
    """A viewer's POST is refused where something of the team changes."""
    for route, names in OPERATIONS.items():
        if VIEWERS_POST.get(route) == 403 and route in POST_ONLY:
            scopes = {SCOPES[name] for name in names.split()}
            assert scopes & {"write", "admin"}, route


def test_every_reason_is_a_sentence() -> None:
    assert {route for route, reason in NONE.items() if len(reason.split()) < 3} == set()
