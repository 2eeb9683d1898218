"""The gap between sampler and trainer in reports and the API."""

import numpy as np
import pytest

from dashboard.analysis.reports.document import show_report
from tests.dashboard.analysis.mismatch.seeded import store_gaps
from tests.dashboard.analysis.reports.stories import make_report
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.completions.factories import make_run


@pytest.fixture
def run(team):
    run = make_run(team)
    for step in (1, 2):
        store_gaps(run, step, np.full((4, 300), 0.0001 * step))
    return run


def test_a_report_has_the_table_or_the_chart(run, team, alice, alice_client):
    text = f"::mismatch run={run.pk} step=1\n::mismatch run={run.pk} show=chart"
    report = make_report(team, alice, text)

    table, chart = show_report(report)

    assert (table.data["step"], chart.data["step"]) == (1, 2)
    assert table.data["numbers"][0]["value"] == pytest.approx(1e-4, rel=1e-3)
    rows = {row["key"]: row for row in table.data["rows"]}
    assert rows["sequence-mask"]["shares"]["masked"] == 0.0
    assert rows["sequence-mask"]["num_sequences"] == 4
    [line] = chart.data["chart"]["lines"]
    assert line["values"] == pytest.approx([1e-4, 2e-4], rel=1e-3)
    page = alice_client.get(f"/alpha/reports/{report.pk}/").content.decode()
    assert page.count("<svg") >= 1
    assert f"/alpha/runs/{run.pk}/health/mismatch/?step=1" in page


def test_a_pinned_block_outlives_its_run(run, team, alice, alice_client):
    report = make_report(team, alice, f"::mismatch run={run.pk} pin")
    [before] = show_report(report)
    run.delete()

    report.refresh_from_db()
    [after] = show_report(report)

    assert after.data == before.data
    assert after.deleted_runs == ["calm-otter-1"]
    assert alice_client.get(f"/alpha/reports/{report.pk}/").status_code == 200


def test_a_run_that_measured_nothing_has_no_block(team, alice):
    run = make_run(team)
    [shown] = show_report(make_report(team, alice, f"::mismatch run={run.pk}"))

    assert not shown.has_content
    assert len(shown.data["gone"]) == 1


def test_the_api_has_advice_and_corrections_of_a_step(run, alice):
    program = Program(make_token(alice, "read"))

    body = program.get(f"/runs/{run.pk}/mismatch?step=1").json()

    assert (body["step"], body["advice"]) == (1, "rounding")
    assert body["evidence"]["num_tokens"] == 1200
    assert body["series"]["step"] == [1, 2]
    assert body["series"]["mean"] == pytest.approx([1e-4, 2e-4], rel=1e-3)
    corrections = {row["key"]: row for row in body["corrections"]}
    assert corrections["geometric-0.01"]["shares"]["masked_sequences"] == 0.0
    assert corrections["tis-2"]["outside"] == [0.0, 0.0]
    assert program.get(f"/runs/{run.pk + 1}/mismatch").status_code == 404
