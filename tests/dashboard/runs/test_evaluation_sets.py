"""Dataset versions that a run is evaluated on."""

import re
import tomllib
from html import unescape
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.test import Client
from django.urls import reverse

from dashboard.accounts.models import Team
from dashboard.datasets.analysis.leaks import find_leak
from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from dashboard.datasets.splits import split_version
from dashboard.datasets.trash import delete_dataset, trash_dataset
from dashboard.runs.launch.eval_sets import Leak
from dashboard.runs.launch.page import Amount, Summary
from dashboard.runs.models import EvaluationSet, Run
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.runs.launching import make_recipe
from tests.dashboard.runs.test_clone import _fields


def make_rows(first: int, count: int) -> list[Row]:
    return [
        Row(prompt=f"What is {n} plus {n} and a half?", answer=str(2 * n))
        for n in range(first, first + count)
    ]


def make_version(team: Team, name: str, rows: list[Row]) -> DatasetVersion:
    mapping = {"prompt": "prompt", "answer": "answer", "columns": []}
    return store_dataset(team, rows, name=name, mapping=mapping)


@pytest.fixture(scope="module")
def train(shared_team) -> DatasetVersion:
    return make_version(shared_team, "Sums", make_rows(0, 90))


@pytest.fixture(scope="module")
def hard(shared_team) -> DatasetVersion:
    return make_version(shared_team, "Hard sums", make_rows(1_000, 40))


@pytest.fixture
def filled(team, train) -> dict[str, Any]:
    return {
        "name": "brave-otter",
        "model": "",
        "model_other": "org/model",
        "dataset": train.pk,
        "recipe": make_recipe(team).pk,
    }


def one_set(version: DatasetVersion, number: int = 1, **given: Any) -> dict[str, Any]:
    texts = {"dataset": version.pk, "name": "", "max_rows": "", **given}
    return {f"eval-{number}-{part}": text for part, text in texts.items()}


def post(client: Client, form: dict[str, Any], path: str = "") -> Any:
    return client.post(f"/alpha/runs/new{path}", form)


def launched(client: Client, form: dict[str, Any]) -> Run:
    response = post(client, form)
    assert response.status_code == 302, unescape(response.text)
    return Run.objects.latest("pk")


def words(answer: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def errors(answer: Any, number: int = 1) -> list[str]:
    block = re.search(rf'<div id="eval-error-{number}">(.*?)</div>', answer.text, re.S)
    assert block
    return re.findall(r'class="field-error">(.*?)</p>', unescape(block[1]))


def test_a_run_stores_the_chosen_version(alice_client, filled, hard):
    run = launched(alice_client, filled | one_set(hard, max_rows="20"))

    held_out = run.evaluation_sets.get()
    assert held_out.dataset_version == hard
    assert (held_out.name, held_out.max_rows, held_out.num_rows) == (
        "hard_sums",
        20,
        20,
    )
    files = run.config["evaluation"]["sets"]
    assert files == {"hard_sums": f"eval-{held_out.name}.jsonl"}


def test_several_sets_have_different_names(alice_client, filled, hard, train):
    sets = one_set(hard) | one_set(hard, 2, max_rows="5") | one_set(train, 4, name="x")

    run = launched(alice_client, filled | sets)

    found = run.evaluation_sets.order_by("pk")
    assert [(one.name, one.num_rows) for one in found] == [
        ("hard_sums", 40),
        ("hard_sums_2", 5),
        ("x", 90),
    ]


def test_errors_are_shown_in_their_row(alice_client, filled, hard):
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"name": "Hard sums"}, '"Hard sums"'),
        ({"name": "heldout"}, '"heldout"'),
        ({"name": "../../x"}, "../../x"),
        ({"max_rows": "0"}, "“0”"),
        ({"max_rows": "ten"}, "“ten”"),
        ({"dataset": ""}, "dataset version"),
        ({"dataset": "999999"}, "in the trash"),
    )
    sets = dict[str, Any]()
    for number, (given, _) in enumerate(wrong, 1):
        sets |= one_set(hard, number, **given)

    answer = post(alice_client, filled | sets)

    assert answer.status_code == 422
    for number, (given, named) in enumerate(wrong, 1):
        (message,) = errors(answer, number)
        assert named in message, given
    assert not Run.objects.exists()


def test_a_duplicate_name_is_refused(alice_client, filled, hard):
    sets = one_set(hard, name="x") | one_set(hard, 2, name="x")

    answer = post(alice_client, filled | sets)

    (message,) = errors(answer, 2)
    assert "“x”" in message


def test_another_teams_version_is_refused(alice_client, filled, charlie):
    foreign = make_version(Team.objects.get(slug="other"), "Secret", make_rows(0, 10))

    answer = post(alice_client, filled | one_set(foreign))

    assert answer.status_code == 422
    assert len(errors(answer)) == 1
    answer = post(alice_client, filled | one_set(foreign), "/sets")
    assert "Secret" not in answer.text
    assert not EvaluationSet.objects.exists()


def test_a_version_in_the_trash_is_refused(alice_client, filled, hard):
    trash_dataset(hard.dataset, None)

    answer = post(alice_client, filled | one_set(hard))

    assert answer.status_code == 422
    assert "in the trash" in errors(answer)[0]


def test_a_clone_keeps_the_sets(alice_client, filled, hard):
    parent = launched(alice_client, filled | one_set(hard, name="x", max_rows="7"))

    page = alice_client.get(f"/alpha/runs/new?clone={parent.pk}").text

    fields = _fields(page)
    assert fields["eval-1-dataset"] == str(hard.pk)
    assert (fields["eval-1-name"], fields["eval-1-max_rows"]) == ("x", "7")
    assert "keeps_eval_sets" not in fields
    form = (
        filled | one_set(hard, name="x", max_rows="7") | {"preset": f"run-{parent.pk}"}
    )
    clone = launched(alice_client, form)
    assert clone.config["evaluation"] == parent.config["evaluation"]
    assert clone.evaluation_sets.get().max_rows == 7


def test_other_settings_are_loaded_and_the_sets_stay(alice_client, filled, hard):
    page = alice_client.get(
        "/alpha/runs/new", {"preset": "trl", **one_set(hard, name="x")}
    ).text

    assert _fields(page)["eval-1-name"] == "x"


def test_a_phase_may_leave_a_set_out_and_name_no_file(alice_client, filled, hard):
    phase = '[[phases]]\nname = "a"\nnum_steps = 100\nchanges.evaluation.sets = '
    sets = one_set(hard, name="x") | one_set(hard, 2, name="y")

    refused = post(alice_client, filled | sets | {"phases": phase + '{ x = "/etc/x" }'})
    run = launched(
        alice_client, filled | sets | {"phases": phase + '{ x = "eval-x.jsonl" }'}
    )

    assert refused.status_code == 422
    assert "/etc/x" not in str(run.config)
    assert run.evaluation_sets.count() == 2


def test_the_downloaded_toml_names_files_and_versions(alice_client, filled, hard):
    run = launched(alice_client, filled | one_set(hard, name="x", max_rows="7"))

    text = alice_client.get(f"/alpha/runs/{run.pk}/config.toml").text

    assert tomllib.loads(text)["evaluation"]["sets"] == {"x": "eval-x.jsonl"}
    (comment,) = [line for line in text.splitlines() if "# eval-x.jsonl" in line]
    assert "Hard sums v1, 7 of 40" in comment
    assert hard.content_sha256 in text


def test_the_runs_pages_have_its_charts_and_name_the_version(
    alice_client, filled, hard
):
    run = launched(alice_client, filled | one_set(hard, name="x", max_rows="7"))

    metrics = alice_client.get(f"/alpha/runs/{run.pk}/metrics/").text
    config = words(alice_client.get(f"/alpha/runs/{run.pk}/config/"))

    assert "eval/x/…" in metrics
    assert "eval/heldout/…" in metrics
    assert "Hard sums v1 as eval/x" in config
    assert "7 of 40 rows" in config


def test_the_dataset_says_which_runs_it_evaluates(alice_client, filled, hard):
    run = launched(alice_client, filled | one_set(hard))

    page = alice_client.get(f"/alpha/datasets/{hard.dataset_id}/")

    page = alice_client.get(f"/alpha/datasets/{hard.dataset_id}/versions")
    assert "evaluation: brave-otter" in words(page)
    assert f'href="/alpha/runs/{run.pk}/"' in page.text
    assert "1 evaluation" in words(alice_client.get("/alpha/datasets/"))
    listed = alice_client.get(f"/alpha/runs/?dataset={hard.dataset_id}")
    assert "brave-otter" in listed.text
    assert f'<option value="{hard.dataset_id}" selected>' in listed.text


def test_an_evaluation_set_is_not_deleted(alice_client, filled, hard):
    launched(alice_client, filled | one_set(hard))
    trash_dataset(hard.dataset, None)

    with pytest.raises(ValueError, match="Hard sums"):
        delete_dataset(hard.dataset, None)

    page = alice_client.get(f"/alpha/datasets/{hard.dataset_id}/")
    assert "1 run " in words(page)
    assert "Delete permanently" not in page.text
    with pytest.raises(ProtectedError), transaction.atomic():
        hard.delete()


def test_compared_runs_show_different_versions(alice_client, filled, hard, team):
    other = make_version(team, "Harder", make_rows(5_000, 9))
    runs = [
        launched(alice_client, filled | one_set(version, name="x"))
        for version in (hard, other)
    ]

    page = alice_client.get(f"/alpha/compare?runs={runs[0].pk},{runs[1].pk}")

    assert "Hard sums v1, 40 rows" in words(page)
    assert "Harder v1, 9 rows" in words(page)


def test_the_summary_counts_the_completions_of_every_set(alice_client, filled, hard):
    form = filled | one_set(hard, max_rows="10") | {"data.num_eval_rows": "5"}

    both = post(alice_client, form, "/summary").context["summary"]
    alone = form | {"data.num_eval_rows": "0"}
    alone = post(alice_client, alone, "/summary").context["summary"]
    bare = filled | {"data.num_eval_rows": "0"}
    none = post(alice_client, bare, "/summary").context["summary"]

    assert re.findall(r"\d+", _evaluations(both).how) == ["15", "2"]
    assert re.findall(r"\d+", _evaluations(alone).how) == ["10"]
    assert _evaluations(none).value == "none"
    assert len(none.hints) == len(alone.hints) + 1


def _evaluations(summary: Summary) -> Amount:
    return next(one for one in summary.amounts if one.title == "Evaluations")


def test_a_rule_that_cannot_score_a_set_is_shown_before(alice_client, filled, team):
    bare = make_version(team, "Bare", [Row(prompt="1+1=")])

    answer = post(alice_client, filled | one_set(bare), "/summary")

    (warning,) = answer.context["summary"].warnings
    assert "Rule answer " in warning
    assert "Bare v1" in warning


@pytest.fixture(scope="module")
def halves(train, shared_alice) -> tuple[DatasetVersion, DatasetVersion]:
    split = split_version(
        train,
        rule={"by": "share", "share": 30.0, "seed": 0},
        train_name="Sums train",
        eval_name="Sums eval",
        user=shared_alice,
    )
    assert split.train
    assert split.eval
    return split.train, split.eval


def test_the_other_half_of_a_split_comes_first(alice_client, filled, halves):
    train, held_out = halves
    form = filled | {"dataset": train.pk}

    offered = post(alice_client, form, "/sets").context["section"]
    added = post(alice_client, form | {"eval_action": "add"}, "/sets").text

    assert (offered.suggestion, offered.is_held_out_half) == (held_out, True)
    assert f'<option value="{held_out.pk}" selected>' in added
    assert "Evaluate on it" not in added
    assert "autofocus" in added
    leak = _leak(post(alice_client, form | one_set(held_out), "/sets"))
    assert (leak.is_known, leak.num_rows) == (True, 0)


def _leak(answer: Any) -> Leak:
    """Of the first set, whose sentence is on the page."""
    leak: Leak = answer.context["section"].rows[0].leak
    assert leak.sentence in words(answer)
    return leak


def test_a_leaked_row_has_a_warning(alice_client, filled, team, train):
    mixed = make_version(team, "Mixed", [*make_rows(85, 5), *make_rows(9_000, 5)])

    answer = post(alice_client, filled | one_set(mixed), "/sets")

    assert _leak(answer).num_rows == 5
    url = reverse("dataset_leaks", args=["alpha", mixed.dataset_id])
    assert f"{url}?version=1&amp;against={train.pk}" in answer.text
    summary = post(alice_client, filled | one_set(mixed), "/summary")
    assert f"mixed: {_leak(answer).sentence}" in summary.context["summary"].hints


def test_evaluating_on_the_training_dataset_has_a_warning(alice_client, filled, train):
    assert _leak(post(alice_client, filled | one_set(train), "/sets")).num_rows == 90


def test_a_background_leak_check_is_polled(
    alice_client, filled, hard, train, monkeypatch
):
    monkeypatch.setattr("dashboard.datasets.row_filters.MAX_ROWS_OF_PAGE", 10)

    answer = post(alice_client, filled | one_set(hard), "/sets")

    assert "<progress " in answer.text
    assert re.search('hx-trigger="load delay', answer.text)
    assert not find_leak(hard, train).is_done


def test_rows_are_added_and_removed_and_texts_stay(alice_client, filled, hard):
    sets = one_set(hard, name="a") | one_set(hard, 2, name="b", max_rows="x")

    page = post(alice_client, filled | sets | {"eval_action": "remove:1"}, "/sets").text

    typed = re.findall(r'<input[^>]* name="(eval[^"]*)" value="(\w*)"', page)
    assert typed == [("eval-1-name", "b"), ("eval-1-max_rows", "x")]


def test_a_form_has_at_most_twenty_sets(alice_client, filled, hard):
    sets = {}
    for number in range(1, 21):
        sets |= one_set(hard, number)

    page = post(alice_client, filled | sets | {"eval_action": "add"}, "/sets").text

    assert page.count("<fieldset") == 20
    assert 'hx-vals=\'{"eval_action": "add"}\'' not in page


def test_the_database_refuses_a_name_twice_and_no_rows(alice_client, filled, hard):
    run = launched(alice_client, filled)
    given = {"run": run, "dataset_version": hard}
    EvaluationSet.objects.create(**given, name="x")

    for wrong in ({"name": "x"}, {"name": "y", "max_rows": 0}):
        with pytest.raises(IntegrityError), transaction.atomic():
            EvaluationSet.objects.create(**given, **wrong)
