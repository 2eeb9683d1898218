"""A report as a file: one page of HTML that needs nothing."""

import pytest

from dashboard.analysis.reports.models import Report
from tests.dashboard.analysis.reports.stories import (
    make_measured_run,
    make_other_run,
    make_report,
    make_sampled_group,
)


@pytest.fixture(scope="module")
def report(shared_team, shared_alice) -> Report:
    run, other = make_measured_run(shared_team), make_other_run(shared_team)
    make_sampled_group(run)
    text = f"""## What we saw

It **helps**: see русский, ελληνικά. Formula $x^2$.

| rule | share |
|------|------:|
| one  |   40% |

```python
def advantage(r): return r
```

::chart runs={run.pk},{other.pk} metric=kl/mean pin
::group run={run.pk} step=40 prompt=3
::compare runs={run.pk},{other.pk} metric=reward/mean
::table runs={run.pk},{other.pk}
::chart runs=none"""
    return make_report(shared_team, shared_alice, text, "Length: “penalty”?")


def test_the_html_file_is_self_contained(bob_client, report):
    answer = bob_client.get(f"/alpha/reports/{report.pk}/export.html")
    page = answer.text

    assert '"length-penalty.html"' in answer.headers["Content-Disposition"]
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert page.count("<polyline") == 8
    assert page.count('class="block-conclusion"') == 1
    assert "KL to reference (nats per token)</text>" in page
    assert "content=\"default-src 'none'; style-src" in page
    for asks in ("href=", "src=", "action=", "srcset=", "@import", "url(", "<script"):
        assert asks not in page
    assert len(answer.content) < 200_000
