"""Text of models and users is displayed and never executed."""

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect

from dashboard.accounts.models import Team, User
from dashboard.completions.models import Group
from dashboard.datasets.models import Dataset
from dashboard.rewards.models import RewardRecipe
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import make_group, make_run, make_steps
from tests.dashboard.completions.stored import change_completions

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Each sets `window.evil` if it is interpreted as markup, a link or a template.
EVIL = (
    "<script>window.evil=1</script><img src=x onerror=window.evil=2>"
    "<svg onload=window.evil=3></svg></script></textarea>"
    '<a href="javascript:window.evil=4">x</a>[y](javascript:window.evil=5)'
)
# The same in Plotly's subset of HTML for labels.
LABEL = '<a href="javascript:window.evil=6">l</a><b onclick="window.evil=7">'


@pytest.fixture
def run(team, alice) -> Run:
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.1, 0.5], LABEL: [0.2, 0.4], "kl/mean": [0, 0]})
    for step in (1, 2):
        make_group(run, step=step, prompt_index=0, texts=[EVIL] * 4, prompt=EVIL)
    Run.objects.update(name=LABEL[:80], model_label=EVIL[:150], notes=EVIL)
    Group.objects.update(answer=EVIL)
    change_completions(text=EVIL)
    Dataset.objects.update(name=EVIL[:80])
    RewardRecipe.objects.update(name=EVIL[:80], description=EVIL)
    Team.objects.filter(pk=team.pk).update(name=EVIL[:80])
    User.objects.filter(pk=alice.pk).update(display_name=EVIL[:80])
    return run


@pytest.fixture
def watched(alice, open_browser) -> tuple[Page, list[str]]:
    """A page, and the violations of its content security policy."""
    page = open_browser(alice).new_page()
    refused: list[str] = []

    def collect(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            refused.append(message.text)

    page.on("console", collect)
    page.on("dialog", lambda dialog: refused.append(dialog.message))
    return page, refused


def addresses(run: Run) -> list[str]:
    base = f"/alpha/runs/{run.pk}"
    tail = ["", "/groups/", "/groups/1/0/", "/groups/1/0/?view=rendered"]
    tail += ["/completions/", "/prompts/", "/prompts/0/", "/config/"]
    tail += ["/metrics/", "/export/", "/reward-log/"]
    others = ["/alpha/runs/", f"/alpha/compare?runs={run.pk}", "/alpha/datasets/"]
    return [base + "/" + path.lstrip("/") for path in tail] + others


def test_no_page_executes_injected_markup(run, watched):
    page, refused = watched
    num_shown = 0

    for address in addresses(run):
        response = page.goto(address)
        assert response is not None
        assert response.status == 200, address
        page.wait_for_load_state("networkidle")
        for link in page.locator("a[href^='javascript:'], svg a").all():
            raise AssertionError((address, link.evaluate("link => link.outerHTML")))
        num_shown += "window.evil" in page.content()
        assert page.evaluate("window.evil") is None, address
        assert refused == [], address

    assert num_shown > 8


def test_a_charts_labels_are_text(run, watched):
    page, refused = watched
    page.goto(f"/alpha/runs/{run.pk}/metrics/")

    chart = page.locator(".js-plotly-plot").last
    chart.scroll_into_view_if_needed()
    expect(chart).to_be_visible()
    chart.hover()

    expect(page.locator("svg a")).to_have_count(0)
    expect(page.locator("[onclick]")).to_have_count(0)
    assert page.evaluate("window.evil") is None
    assert refused == []


def test_executed_markup_would_be_noticed(run, watched):
    page, refused = watched
    page.goto("/alpha/runs/")

    with page.expect_console_message(lambda m: "Content Security" in m.text):
        page.evaluate(
            "document.body.insertAdjacentHTML('beforeend',"
            " '<img src=x onerror=window.evil=2>')"
        )

    assert page.evaluate("window.evil") is None
    assert refused
