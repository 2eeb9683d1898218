"""Runs as frames and tables of a notebook, and the search of completions."""

import sys
from html.parser import HTMLParser

import pytest

from cohort.api.frames import Records
from cohort.api.run import FILTERS
from dashboard.api.completions import CompletionFilters
from dashboard.runs.models import Run
from tests.client.api.processes import Cohort
from tests.client.api.scripted import Scripted, run_tree
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run, make_steps

NAME = "<script>alert(1)</script>"
COMPLETION = {
    "step": 1,
    "prompt_index": 0,
    "text": "x",
    "num_tokens": None,
    "end_reason": "stop",
    "reward": None,
    "rule_scores": {},
    "advantage": None,
    "mean_logprob": None,
}


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name == "href"]
        assert not {"style", "class", "bgcolor"} & {name for name, _ in attributes}

    def handle_data(self, data):
        self.cells.append(data)


@pytest.fixture
def stored(team) -> Run:
    """120 completions, of which every second of a group is right."""
    run = make_run(team, name=NAME, last_step=3)
    make_steps(run, {"reward/mean": [0.1, 0.5, None]})
    for step in (1, 2, 3):
        for prompt in range(20):
            texts = [f"I think it is {step}.", f"No, {prompt}"]
            make_group(run, step, prompt, rewards=(1.2, 0.0), texts=texts)
    make_blocks(run)
    return run


def test_a_run_is_read_as_frames_and_its_completions_are_searched(
    client, stored, tmp_path, monkeypatch
):
    run = client.runs.get(stored.pk)

    metrics = run.to_pandas()
    completions = run.to_pandas("completions", first_step=2)
    dataset = run.to_dataset(last_step=1)
    right = list(run.completions(outcome="right", sort="step"))
    found = list(run.completions(text="i think", limit=55))

    assert metrics["step"].tolist() == [1, 2, 3]
    assert metrics["reward/mean"].tolist()[:2] == [0.1, 0.5]
    assert len(completions) == 80
    assert completions["rules"][0]["answer"] == 1.0
    assert (dataset.num_rows, dataset.cache_files) == (40, [])
    assert dataset[0]["completion"] == "I think it is 1."
    assert [(c.step, c.prompt_index, c.position) for c in right] == [
        (step, prompt, 0) for step in (1, 2, 3) for prompt in range(20)
    ]
    assert len(found) == 55
    assert {c.text[:7] for c in found} == {"I think"}
    with pytest.raises(ValueError, match="min_rewrd"):
        run.completions(min_rewrd=1)
    with pytest.raises(ValueError, match="logs"):
        run.to_pandas("logs")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pip install polars") as missing:
        run.to_polars()
    assert missing.value.name == "polars"

    cohort = Cohort(client.server.url, client.server.token, tmp_path)
    table = cohort("completions", run.id, "--text", "think", "--limit", 2)
    lines = cohort.json("completions", run.id, "--outcome", "right", "--min-reward", 1)
    wrong = cohort("completions", run.id, "--outcome", "great")
    assert table.stdout.splitlines()[1].split()[:4] == ["3", "0", "0", "1.2"]
    assert len(table.stdout.splitlines()) == 4
    assert len(lines) == 50
    assert lines[0]["text"].startswith("I think")
    assert wrong.returncode == 1

    shown = Tags(run._repr_html_())
    assert "script" not in shown.tags
    assert f"Run {run.id}: {NAME}" in shown.cells
    assert shown.links == [run.address]
    listed = Tags(client.runs.list()._repr_html_())
    assert "script" not in listed.tags
    assert (NAME in listed.cells, listed.links) == (True, [run.address])
    groups = Tags(run.groups()._repr_html_())
    assert groups.tags.count("tr") == 51
    assert "10 more rows." in groups.cells


def test_filters_are_those_of_the_api():
    assert set(FILTERS) == set(CompletionFilters.model_fields)


def test_a_search_goes_on_behind_an_empty_page():
    def page(cursor, *positions):
        items = [COMPLETION | {"position": position} for position in positions]
        return 200, {}, {"items": items, "next_cursor": cursor}

    run = 200, {}, run_tree()
    with Scripted(run, page("a"), page("b", 0, 1), page("c", 2, 3)) as server:
        found = server.client().runs.get(7).completions(text="x", limit=3)
        assert [completion.position for completion in found] == [0, 1, 2]


def test_an_empty_list_is_shown():
    assert Tags(Records()._repr_html_()).tags == ["p"]
