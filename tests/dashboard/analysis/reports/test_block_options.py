"""Which lines of a report are blocks, and what they say."""

import re

import pytest
from django.http import QueryDict

from dashboard.analysis.reports.block_options import (
    EXAMPLES,
    Block,
    list_blocks,
    read_block,
    read_options,
    replace_blocks,
    split_text,
)
from dashboard.analysis.reports.inserting import translate_addresses
from dashboard.runs.models import Run, Sweep
from tests.dashboard.completions.factories import make_run, make_steps

HOST = "cohort.lan:8000"


def options_of(line: str) -> dict[str, object]:
    block = read_block(line)
    assert block
    return read_options(block)


def test_a_text_falls_into_prose_and_blocks():
    parts = list(split_text("One\n\n::chart runs=3\n::table runs=3,5\n\nTwo\nThree"))

    assert [p if isinstance(p, str) else p.kind for p in parts] == [
        "One\n",
        "chart",
        "table",
        "\nTwo\nThree",
    ]


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_a_block_inside_fenced_code_is_code(fence):
    text = f"{fence}\n::chart runs=3\n{fence}\n::chart runs=5"

    assert [block.options for block in list_blocks(text)] == [{"runs": "5"}]


def test_a_line_is_written_as_it_was_read():
    line = "::chart runs=3,5 metric=eval/held%20out/pass@k smooth=0.5 pin=4"
    block = read_block(line)

    assert block
    assert block.line == line
    assert block.options["metric"] == "eval/held out/pass@k"
    assert block.live.line == line.removesuffix(" pin=4")


def test_replacing_blocks_leaves_every_other_line():
    text = "A\n```\n::chart runs=1\n```\n::chart runs=2 pin\n::nothing\nB  "
    first, broken = list_blocks(text)

    written = replace_blocks(
        text, [Block(kind="chart", options=first.options, pin=7), broken]
    )

    assert written == text.replace("runs=2 pin", "runs=2 pin=7")


REFUSED_LINES = {
    "::chrt runs=3": "::chrt",
    "::chart": "requires runs",
    "::chart runs=a": "got 'a'",
    "::chart runs=1,2,3,4,5,6,7,8,9,10,11": "1 to 10",
    "::chart runs=3 smooth=2": "got '2'",
    "::chart runs=3 smooth=nan": "got 'nan'",
    "::chart runs=3 y=loud": "got 'loud'",
    "::chart runs=3 colour=red": "'colour'",
    "::chart runs=3 red": "'red'",
    "::chart runs=3 pin=0": "pin=0",
    "::chart runs=3 pin=x": "pin=x",
    "::group run=3 step=4": "requires prompt",
    "::group run=3 step=-4 prompt=1": "got '-4'",
    "::group run=3 step=4 prompt=1 completions=99": "1 to 16",
    "::table runs=3 metrics=": "1 to 6",
    "::mismatch run=3 show=all": "got 'all'",
}


def test_a_wrong_line_is_refused_with_its_value():
    for line, expected in REFUSED_LINES.items():
        with pytest.raises(ValueError, match=re.escape(expected)):
            options_of(line)
    assert all(options_of(line) for line in EXAMPLES.values())  # of refusals


@pytest.fixture(scope="module")
def run(shared_team) -> Run:
    run = make_run(shared_team)
    names = ("reward/mean", "kl/mean", "clip/frac_low", "clip/frac_high", "loss")
    make_steps(run, {name: [0.1] for name in names})
    return run


BLOCKS_OF_ADDRESSES = {
    "/alpha/runs/{run}/groups/40/3/": "::group run={run} step=40 prompt=3",
    "http://cohort.lan:8000/alpha/runs/{run}/groups/40/3/?sort=-reward&view=tokens": (
        "::group run={run} step=40 prompt=3 sort=-reward"
    ),
    "  </alpha/compare?runs={run}>  ": "::compare runs={run} metric=reward/mean",
    "/alpha/compare?runs={run}&metric=kl/mean&smooth=0.2&y=log&x=time": (
        "::compare runs={run} metric=kl/mean x=time smooth=0.2 y=log"
    ),
    "/alpha/runs/{run}/#chart-kl-mean": "::chart runs={run} metric=kl/mean",
    "/alpha/runs/{run}/metrics/#chart-kl-mean": "::chart runs={run} metric=kl/mean",
    "/alpha/runs/{run}/": "::chart runs={run} metric=reward/mean",
    "/alpha/runs/{run}/health/mismatch/?step=4": "::mismatch run={run} step=4",
    "/alpha/runs/{run}/health/mismatch/": "::mismatch run={run}",
    "/alpha/runs/{run}/#chart-clip-frac": (
        "::chart runs={run} metric=clip/frac_low\n"
        "::chart runs={run} metric=clip/frac_high"
    ),
}
OTHER_ADDRESSES = [
    "https://elsewhere.example/alpha/runs/{run}/",
    "/other/runs/{run}/",  # another team's
    "/alpha/runs/999999/",
    "/alpha/runs/{run}/#chart-entropy",  # which this run has not measured
    "/alpha/compare?runs=999999",
    "/alpha/compare",
    "/alpha/datasets/",
    "/no/such/page/",
    "http://[broken/alpha/runs/{run}/",
    "see /alpha/runs/{run}/",
    "```\n/alpha/runs/{run}/\n```",
]


def test_an_address_of_our_own_becomes_a_block_and_any_other_stays_text(team, run):
    for address, line in BLOCKS_OF_ADDRESSES.items():
        written = line.format(run=run.pk)
        text = f"See\n{address.format(run=run.pk)}\nhere"

        assert translate_addresses(text, team, {HOST}) == f"See\n{written}\nhere"
        assert all(options_of(one) for one in written.split("\n"))
    for address in OTHER_ADDRESSES:
        text = address.format(run=run.pk)

        assert translate_addresses(text, team, {HOST}) == text


def test_a_chart_of_a_run_whose_settings_are_no_longer_known_stays_text(team, run):
    run.config["loss"] = {"surrogate": "forgotten"}
    run.save()
    text = f"/alpha/runs/{run.pk}/#chart-clip-frac"

    assert translate_addresses(text, team, ()) == text


def test_the_runs_of_a_group_are_named(team):
    group = Sweep.objects.create(team=team, name="seeds")
    first, second = (make_run(team, name, sweep=group) for name in ("a", "b"))
    query = QueryDict(f"group={group.pk}").urlencode()

    line = translate_addresses(f"/alpha/compare?{query}", team, ())

    assert line.startswith(f"::compare runs={first.pk},{second.pk} ")


def test_runs_beyond_the_limit_of_a_block_are_counted(team):
    runs = [make_run(team, f"run {i}").pk for i in range(12)]
    named = ",".join(map(str, runs))

    line, expected = translate_addresses(
        f"/alpha/compare?runs={named}", team, ()
    ).split("\n")

    assert len(str(options_of(line)["runs"]).split(",")) == 10
    assert "10 of 12 runs" in expected
