"""The charts of a long run in a real browser: zoom, settings, tails, all metrics."""

import base64
import csv
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page, expect

from dashboard.runs.charts.figures import (
    features_of_run,
    read_settings,
    shown_metrics,
)
from dashboard.runs.models import Run, Step
from dashboard.supervision.lease import claim_run
from dashboard.supervision.takeover import cut_history
from tests.browser.tabs import hide, show
from tests.dashboard.completions.factories import make_run
from tests.dashboard.runs.stories import Story, make_history, queue_run

pytestmark = pytest.mark.browser
NUM_STEPS = 2_000
REWARD = "document.querySelector('[data-chart=\"reward-mean\"]')"
SVG = "{http://www.w3.org/2000/svg}"
# Number of pixels of about a colour, given [a PNG in base64, a CSS colour].
COUNT_PIXELS = """async ([encoded, colour]) => {
  const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt());
  const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const { width, height } = picture;
  const canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(picture, 0, 0);
  const { data } = canvas.getImageData(0, 0, width, height);
  const wanted = colour.match(/\\d+/g).slice(0, 3).map(Number);
  let count = 0;
  for (let at = 0; at < data.length; at += 4)
    if (wanted.every((value, i) => Math.abs(data[at + i] - value) < 8)) count += 1;
  return [width, height, count];
}"""
DRAWN = f"({REWARD}.data?.at(-1).customdata ?? [])"


@pytest.fixture
def long_run(team) -> Run:
    run = make_run(team)
    shown = sorted(shown_metrics(features_of_run(run)) | {"group/std_mean"})
    make_history(run, num_steps=NUM_STEPS, num_metrics=40, names=shown)
    return run


def wait_until(page: Page, expression: str, is_so: Callable[[Any], bool]) -> None:
    # wait_for_function needs eval, which the content security policy refuses.
    deadline = time.monotonic() + 15
    while not is_so(value := page.evaluate(expression)):
        assert time.monotonic() < deadline, f"{expression} is {value!r}"
        page.wait_for_timeout(50)


def test_a_zoom_shows_every_step_in_all_charts_and_is_in_the_url(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/?smooth=0")
    wait_until(page, f"{REWARD}.data?.length ?? 0", bool)
    assert page.evaluate(f"{DRAWN}.length") <= 1_000
    box = page.locator('[data-chart="reward-mean"] .nsewdrag').bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 12, y, steps=4)
    page.mouse.up()

    page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    first, last = (int(n) for n in re.findall(r"(?:from|to)=(\d+)", page.url))
    expect(page.get_by_label("First step shown")).to_have_value(str(first))
    every = list(range(first - 1, last + 2))
    wait_until(page, DRAWN, lambda steps: steps == every)
    other = "document.querySelector('[data-chart=\"group-frac\"]').layout.xaxis"
    assert page.evaluate(f"{other}.range") == [first, last]
    page.reload()
    wait_until(page, DRAWN, lambda steps: steps == every)
    # On the run page a double click zooms out and opens no group.
    page.mouse.dblclick(x, y)
    whole = [0, long_run.last_step]
    wait_until(page, f"{REWARD}.layout.xaxis.range", lambda range_: range_ == whole)
    page.wait_for_timeout(400)  # a single click would open a group after 300 ms
    assert "from=" not in page.url
    assert "/groups/" not in page.url


@pytest.mark.slow
def test_hover_is_synchronized_between_charts(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/")
    plot = page.locator('[data-chart="reward-mean"] .nsewdrag')
    box = plot.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    own = page.locator('[data-chart="reward-mean"] .hoverlayer .legendtitletext')
    other = page.locator('[data-chart="kl-mean"] .hoverlayer .legendtitletext')
    expect(own).to_have_text(re.compile(r"step [\d,]+"))
    expect(other).to_have_text(re.compile(r"step [\d,]+"))


@pytest.mark.slow
def test_a_chart_is_drawn_when_visible_or_printed(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/metrics/")
    wait_until(page, f"{REWARD}.data?.length ?? 0", bool)
    page.wait_for_timeout(500)
    speed = page.locator("#chart-metric-9")
    drawn = speed.locator(".js-plotly-plot")
    expect(drawn).to_have_count(0)

    speed.scroll_into_view_if_needed()
    expect(drawn).to_have_count(1)

    kl = page.locator("#chart-kl-mean .js-plotly-plot")
    page.evaluate("scrollTo(0, 0)")
    page.reload()
    wait_until(page, f"{REWARD}.data?.length ?? 0", bool)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    expect(kl).to_have_count(1)


@pytest.mark.slow
def test_settings_are_saved_and_reset(page, long_run, alice):
    page.goto(f"/alpha/runs/{long_run.id}/")
    page.locator(".chart-gear").click()
    with page.expect_response("**/runs/charts"):
        page.locator("[name=log]").check()
    assert "log=all" in page.url

    page.goto(f"/alpha/runs/{long_run.id}/metrics/")
    expect(page.locator("[name=log]")).to_be_checked()

    page.locator(".chart-gear").click()
    with page.expect_response("**/runs/charts"):
        page.get_by_role("button", name="Defaults").click()
    expect(page.locator("[name=log]")).not_to_be_checked()
    assert read_settings(alice) == ""


@pytest.mark.slow
def test_a_chart_has_full_screen_a_link_and_downloads(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/metrics/")
    card = page.locator("#chart-group-std_mean")
    card.scroll_into_view_if_needed()
    card.locator("[data-chart-action=full]").click()
    dialog = page.locator("[data-chart-full]")
    expect(dialog.locator("#chart-group-std_mean")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(page.locator("[data-charts] #chart-group-std_mean")).to_be_visible()


def save(page: Page, kind: str) -> Path:
    card = page.locator("#chart-group-std_mean")
    card.scroll_into_view_if_needed()
    card.locator("summary").click()
    with page.expect_download() as download:
        card.get_by_role("button", name=f"Save as {kind}").click()
    assert download.value.suggested_filename.endswith(f".{kind.lower()}")
    return Path(download.value.path())


@pytest.mark.slow
def test_a_vector_file_has_the_title_and_the_line(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/metrics/")
    wait_until(page, f"{REWARD}.data?.length ?? 0", bool)

    text = save(page, "SVG").read_text()
    picture = ElementTree.fromstring(text)  # noqa: S314 - our own page made it

    assert (picture.get("width"), picture.get("height")) == ("960", "480")
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert any("Reward spread" in (text or "") for text in texts)
    lines = [p for p in picture.iter(f"{SVG}path") if p.get("class") == "js-line"]
    assert max(line.get("d", "").count("L") for line in lines) > 100


@pytest.mark.slow
def test_a_picture_has_the_line_in_its_colour(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/metrics/")
    wait_until(page, f"{REWARD}.data?.length ?? 0", bool)
    page.locator("#chart-group-std_mean").scroll_into_view_if_needed()
    line = page.locator("#chart-group-std_mean .js-line").last
    line.scroll_into_view_if_needed()
    colour = line.evaluate("line => getComputedStyle(line).stroke")

    encoded = base64.b64encode(save(page, "PNG").read_bytes()).decode()
    width, height, num_pixels = page.evaluate(COUNT_PIXELS, [encoded, colour])

    assert (width, height) == (1920, 960)
    # The line crosses the picture and is thin.
    assert 1_000 < num_pixels < width * height / 4


@pytest.mark.slow
def test_a_file_has_the_value_of_every_step(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/metrics/?smooth=0.5")
    wait_until(page, f"{REWARD}.data?.length ?? 0", bool)
    assert page.evaluate(f"{DRAWN}.length") <= 1_000
    card = page.locator("#chart-group-std_mean")
    card.scroll_into_view_if_needed()

    card.locator("summary").click()
    with page.expect_download() as download:
        card.get_by_role("button", name="Save as CSV").click()

    with Path(download.value.path()).open(newline="") as file:
        head, *rows = csv.reader(file)
    place = long_run.metric_names.index("group/std_mean")
    stored = Step.objects.filter(run=long_run).order_by("step")
    expected = [(s.step, s.values[place]) for s in stored]
    assert head == ["step", "group/std_mean", "group/std_mean (smoothed 0.5)"]
    assert [(int(row[0]), float(row[1])) for row in rows] == expected
    assert len(rows) == NUM_STEPS


@pytest.mark.slow
def test_a_failed_download_is_reported_on_its_button(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/metrics/")
    wait_until(page, f"{REWARD}.data?.length ?? 0", bool)
    card = page.locator("#chart-group-std_mean")
    card.scroll_into_view_if_needed()
    expect(card.locator(".js-plotly-plot")).to_be_visible()
    page.route("**/curves.json*", lambda route: route.fulfill(status=503))

    card.locator("summary").click()
    card.get_by_role("button", name="Save as CSV").click()

    expect(card.get_by_text("HTTP 503")).to_be_visible()
    save = card.get_by_role("button", name="Save as CSV")
    expect(save).to_be_enabled(timeout=20_000)  # the message stays for a while


@pytest.mark.slow
def test_the_link_of_a_chart_shows_the_same_to_another_user(page, long_run):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"/alpha/runs/{long_run.id}/metrics/?smooth=0.3&from=100&to=300")
    wait_until(page, f"{REWARD}.data?.length ?? 0", bool)
    card = page.locator("#chart-group-std_mean")
    card.scroll_into_view_if_needed()
    card.locator("summary").click()

    card.get_by_role("button", name="Copy link").click()

    expect(card.get_by_role("button", name="Link copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.endswith("#chart-group-std_mean")
    # Independent of saved settings, since each one is in the link.
    for part in ("smooth=0.3", "x=step", "tails=on", "from=100", "to=300"):
        assert part in link


@pytest.mark.slow
def test_a_hidden_tab_draws_nothing_and_catches_up_when_visible(page, team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(3)
    page.goto(f"/alpha/runs/{story.run.id}/?smooth=0")
    points = f"{REWARD}.data?.at(-1).x.length"
    wait_until(page, points, lambda count: count == 3)

    hide(page)
    story.take_steps(4)
    expect(page.locator("[data-run-step]")).to_have_text("7")  # the frames have arrived
    page.wait_for_timeout(500)
    assert page.evaluate(points) == 3

    show(page)
    wait_until(page, points, lambda count: count == 7)


@pytest.mark.slow
def test_a_search_finds_metrics_and_loads_their_history_when_visible(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/metrics/?q=metric/1")
    expect(page.locator("[data-metric-status]")).to_contain_text("of 38 metrics")
    plot = "document.querySelector('[data-chart=\"metric-1\"]').data"

    wait_until(page, f"{plot}?.at(-1).x.length ?? 0", lambda count: count > 500)
    page.get_by_label("Find metrics").fill("^metric/.7$")

    expect(page.locator("[data-metric]:visible")).to_have_count(2)
    assert page.url.endswith("?q=%5Emetric%2F.7%24")
    drawn = "document.querySelectorAll('.js-plotly-plot').length"
    assert page.evaluate(drawn) < 40


@pytest.mark.slow
def test_superseded_steps_turn_grey_on_an_open_page(page, team):
    story = Story(queue_run(team))
    story.start()
    story.take_steps(6, **{"reward/mean": 0.25})
    page.goto(f"/alpha/runs/{story.run.id}/?smooth=0")
    wait_until(page, f"{REWARD}.data?.at(-1).x.length", lambda count: count == 6)

    Run.objects.filter(id=story.run.id).update(state="queued", lease_until=None)
    claim = claim_run(story.run.id, "worker-2")
    assert claim is not None
    cut_history(claim, after=4, checkpoint=None)
    story.claim, story.line, story.step = claim, 0, 4
    story.start()
    story.take_steps(1, **{"reward/mean": 0.5})

    lines = (
        f"{REWARD}.data.filter((trace) => trace.line.width).map((t) => t.customdata)"
    )
    wait_until(page, lines, lambda steps: steps == [[1, 2, 3, 4, 5], [5, 6]])
    dashes = f"{REWARD}.data.at(-1).line.dash"
    assert page.evaluate(dashes) == "dash"
    page.locator(".chart-gear").click()
    page.get_by_label("Superseded").uncheck()
    wait_until(page, lines, lambda steps: steps == [[1, 2, 3, 4, 5]])


@pytest.mark.slow
def test_charts_are_chosen_in_the_list_and_pinned_for_the_team(page, long_run):
    page.goto(f"/alpha/runs/{long_run.id}/metrics/")
    items = page.locator("[data-listed]")
    expect(items.first).to_be_hidden()
    page.locator('[data-list-group="metric"] summary').click()
    items.filter(has_text="metric/3").locator("input").first.check()
    expect(page.locator("[data-charts] .chart:visible")).to_have_count(1)
    assert page.url.endswith("?show=metric-3")

    card = page.locator("#chart-metric-3")
    card.get_by_label("More of metric/3").click()
    with page.expect_response("**/pin-metric"):
        card.get_by_role("button", name="Pin for the team").click()
    expect(page.locator("[data-pinned] #chart-metric-3")).to_be_visible()

    page.reload()
    expect(page.locator("[data-pinned] #chart-metric-3")).to_be_visible()
    expect(page.locator("[data-listed='metric/3'][data-is-pinned]")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#chart-reward-mean")).to_be_visible()
    assert "show=" not in page.url
    card.get_by_label("More of metric/3").click()
    with page.expect_response("**/pin-metric"):
        card.get_by_role("button", name="Unpin").click()
    expect(page.locator("[data-pinned]")).to_be_hidden()
    expect(page.locator("[data-group=metric] #chart-metric-3")).to_be_attached()

    page.get_by_role("button", name="All values").click()
    expect(page.locator("[data-values] tr").first).to_be_visible()
    assert page.url.endswith("?view=values")
