import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dashboard.datasets import generators
from dashboard.datasets.generators import (
    LIFTED,
    SUMMARIES,
    GeneratorsMissing,
    describe_options,
    generate_rows,
    list_tasks,
)
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob
from dashboard.project.errors import UserError
from tests.dashboard.jobs.working import do_all

# A library of theirs leaves the file of its boards to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
FORM = {"name": "Sums", "size": "5", "seed": "3"}
IN_SUBPROCESS = generators._run_child  # takes seconds to load


def run_here(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries it imports are out of date
        from dashboard.datasets import generator_process
    rows = question.get("rows")
    for reply in (
        generator_process._generate(**rows) if rows else generator_process._describe()
    ):
        yield json.loads(json.dumps(reply, default=str))


@pytest.fixture(autouse=True)
def here(monkeypatch) -> None:
    monkeypatch.setattr(generators, "_run_child", run_here)


def test_tasks_have_summaries_and_none_runs_code():
    tasks = {task.name: task for task in list_tasks()}

    assert len(tasks) > 90
    assert "arithmetic" in tasks["chain_sum"].summary
    assert not {"composite", "codeio"} & set(tasks)


def test_every_task_has_a_summary():
    tasks = {task.name: task.summary for task in list_tasks()}

    assert [name for name, summary in tasks.items() if len(summary.split()) < 3] == []
    assert set(SUMMARIES) <= set(tasks)


def test_options_have_help_and_bounds():
    tasks = {task.name: task for task in list_tasks()}
    options = {option.path: option for option in tasks["countdown"].options}

    option = options["min_numbers"]
    assert (option.title, option.kind, option.default) == ("min_numbers", "whole", 4)
    assert option.help.endswith(". min_numbers > 1, max_numbers ≥ min_numbers.")
    assert options["shuffle"].kind == "switch"


def test_an_option_is_described_by_its_comment_and_assertions():
    options = describe_options(Configured)

    assert options["side"]["description"] == (
        "Cells, both ways. 2 ≤ side ≤ 9, share < side."
    )
    assert options["share"] == {
        "type": "number",
        "title": "share",
        "default": 0.5,
        "description": "share < side.",
    }
    assert len(options) == 2


@dataclass
class Configured:
    side: int = 3  # cells, both ways.
    share: float = 0.5
    words: tuple = ("a",)
    seed: int | None = None

    def validate(self) -> None:
        assert 2 <= self.side <= 9, "side must be between 2 and 9"
        assert self.share < self.side and len(self.words) > 0, "no"  # noqa: PT018 - as tasks have it


def test_the_same_seed_gives_the_same_rows(monkeypatch):
    first = list(generate_rows("chain_sum", size=4, seed=7))

    assert first != list(generate_rows("chain_sum", size=4, seed=8))
    monkeypatch.setattr(generators, "_run_child", IN_SUBPROCESS)
    assert first == list(generate_rows("chain_sum", size=4, seed=7))


def test_a_row_carries_its_task_and_its_entry():
    (row,) = generate_rows("chain_sum", size=1, seed=0)

    assert row.columns["task"] == "chain_sum"
    assert row.columns["entry"]["question"] == row.prompt
    assert row.columns["entry"]["answer"] == row.answer
    json.dumps(row.columns, allow_nan=False)


def test_countdown_rows_carry_what_the_countdown_rule_reads():
    (row,) = generate_rows("countdown", size=1, seed=0)

    for name in LIFTED["countdown"]:
        assert row.columns[name] == row.columns["entry"]["metadata"][name]


def test_options_change_the_prompts():
    easy = generate_rows(
        "chain_sum", size=3, seed=0, options={"max_terms": 2, "max_digits": 1}
    )

    assert all(len(row.columns["entry"]["metadata"]["expression"]) <= 6 for row in easy)


def test_invalid_options_fail():
    with pytest.raises(UserError) as refused:
        list(generate_rows("chain_sum", size=3, seed=0, options={"max_terms": -1}))
    assert refused.value.code == "datasets.invalid_options"


def test_a_task_times_out(monkeypatch):
    monkeypatch.setattr(generators, "_run_child", IN_SUBPROCESS)
    monkeypatch.setattr(generators, "MAX_SECONDS", 1)
    options = {"min_terms": 50_000_000, "max_terms": 50_000_000}

    with pytest.raises(UserError) as stopped:
        list(generate_rows("chain_sum", size=1, seed=0, options=options))
    assert stopped.value.code == "datasets.generation_timed_out"


def test_the_page_shows_examples_and_stores_a_version(alice_client):
    url = "/alpha/datasets/generate?task=chain_sum"

    page = alice_client.get(url).content.decode()
    assert page.count('class="example-answer ') == 3
    assert "max_terms ≥ min_terms" in page
    answer = alice_client.post(url, {**FORM, "option-max_terms": "3"})
    own = ImportJob.objects.get()
    assert answer["Location"] == f"/alpha/datasets/imports/{own.pk}"
    (job,) = do_all("dataset.generate")
    assert (job.state, job.error) == ("done", "")
    answer = alice_client.get(answer["Location"], headers={"HX-Request": "true"})

    version = DatasetVersion.objects.get()
    assert answer["HX-Redirect"] == f"/alpha/datasets/{version.dataset_id}/"
    assert version.num_rows == 5
    assert version.source == {
        "kind": "generator",
        "task": "chain_sum",
        "size": 5,
        "seed": 3,
        "options": {"max_terms": 3},
    }
    assert alice_client.get(answer["HX-Redirect"]).status_code == 200


def test_a_refused_task_can_be_filled_in_again(alice_client):
    url = "/alpha/datasets/generate?task=chain_sum"
    page = alice_client.post(url, {**FORM, "option-max_terms": "1"})["Location"]

    (job,) = do_all("dataset.generate")

    assert (job.state, Dataset.objects.count()) == ("failed", 0)
    answer = alice_client.get(page)
    assert "options" in answer.content.decode()
    again = alice_client.get(f"{url}&job={ImportJob.objects.get().pk}")
    assert f"{url}&amp;job=" in answer.content.decode()
    filled = again.context["form"]
    assert [str(filled[name].value()) for name in FORM] == list(FORM.values())
    assert again.context["options"].texts["max_terms"] == "1"
    alice_client.post(page, {"again": "1"})
    assert [job.state for job in do_all("dataset.generate")] == ["failed"]


def test_a_job_of_another_task_fills_in_nothing(alice_client):
    for task in ("chain_sum", "basic_arithmetic"):
        alice_client.post(f"/alpha/datasets/generate?task={task}", FORM)
    own, other = ImportJob.objects.order_by("pk")
    own.source["kind"] = "taskset"
    own.save()
    url = "/alpha/datasets/generate?task=chain_sum&job="

    for job in (own.pk, other.pk, 99_999, 10**30, "x"):
        page = alice_client.get(f"{url}{job}")

        assert page.status_code == 200
        assert page.context["form"]["name"].value() == "chain sum"


def test_an_invalid_field_stores_nothing(alice_client):
    for change, field, code in (
        ({"size": "0"}, "size", "min_value"),
        ({"size": "1000000"}, "size", "max_value"),
        ({"seed": "x"}, "seed", "invalid"),
        ({"name": ""}, "name", "required"),
    ):
        answer = alice_client.post(
            "/alpha/datasets/generate?task=chain_sum", {**FORM, **change}
        )

        assert answer.status_code == 422
        assert answer.context["form"].has_error(field, code)
    answer = alice_client.post(
        "/alpha/datasets/generate?task=chain_sum", {**FORM, "option-max_terms": "many"}
    )
    assert answer.status_code == 422
    assert set(answer.context["options"].errors) == {"max_terms"}
    assert Dataset.objects.count() == 0


def test_an_unknown_task_is_not_found(alice_client):
    answer = alice_client.get("/alpha/datasets/generate?task=rm")

    assert answer.status_code == 404


def test_a_missing_package_is_shown_on_the_page(alice_client, monkeypatch):
    def missing() -> None:
        raise GeneratorsMissing("no such package")

    monkeypatch.setattr("dashboard.pages.dataset_making.list_tasks", missing)

    page = alice_client.get("/alpha/datasets/generate").content.decode()

    assert "no such package" in page
