from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.runs.directory import EpochDirectory, run_directory
from dashboard.runs.models import Run
from dashboard.training.lease import claim_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def first_life(run: Run) -> EpochDirectory:
    claim_run(run.id, "training@gpu-1")
    files = run_directory(run.id).epoch(1)
    files.path.mkdir(parents=True)
    return files


def page(client: Client, run: Run, **query: object) -> str:
    response = client.get(reverse("run_logs", args=["alpha", run.id]), query)
    assert response.status_code == 200
    return response.content.decode()


def test_before_a_worker_takes_the_run_there_is_nothing_to_read(
    alice_client: Client, run: Run
) -> None:
    assert "No worker has taken this run yet" in page(alice_client, run)


def test_the_last_lines_of_the_trainer_are_shown(
    alice_client: Client, run: Run, first_life: EpochDirectory
) -> None:
    first_life.trainer_log.write_text("".join(f"step {n}\n" for n in range(1, 501)))

    html = page(alice_client, run)

    assert "Last 200 of 500 lines" in html
    assert "step 301\n" in html
    assert "step 300\n" not in html


def test_the_workers_own_messages_are_shown(
    alice_client: Client, run: Run, first_life: EpochDirectory
) -> None:
    first_life.supervisor_log.write_text("Started the trainer as process 7.\n")

    assert "process 7" in page(alice_client, run, source="supervisor")


def test_what_a_model_prints_is_text_never_markup(
    alice_client: Client, run: Run, first_life: EpochDirectory
) -> None:
    first_life.trainer_log.write_text("<script>alert(1)</script>\n")

    html = page(alice_client, run)

    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_a_progress_bar_shows_its_last_state(
    alice_client: Client, run: Run, first_life: EpochDirectory
) -> None:
    first_life.trainer_log.write_bytes(b"load 10%\rload 90%\n\xff\n")

    html = page(alice_client, run)

    assert "load 90%" in html
    assert "load 10%" not in html


@pytest.mark.parametrize(
    "query",
    [
        {"epoch": "../../.."},
        {"epoch": "99"},
        {"epoch": "²"},
        {"lines": "1e9"},
        {"lines": "-1"},
        {"source": "../../etc/passwd"},
    ],
)
def test_odd_questions_get_the_default_answer(
    alice_client: Client, run: Run, first_life: EpochDirectory, query: dict[str, str]
) -> None:
    first_life.trainer_log.write_text("hello\n")

    assert "hello" in page(alice_client, run, **query)


def test_the_whole_log_can_be_downloaded(
    alice_client: Client, run: Run, first_life: EpochDirectory
) -> None:
    first_life.trainer_log.write_text("all of it\n")

    response = alice_client.get(reverse("run_log_download", args=["alpha", run.id]))

    assert b"".join(response.streaming_content) == b"all of it\n"
    assert "attachment" in response["Content-Disposition"]
    response.close()


@pytest.mark.parametrize("name", ["run_logs", "run_log_download"])
def test_a_stranger_finds_no_log(
    charlie_client: Client, run: Run, first_life: EpochDirectory, name: str
) -> None:
    first_life.trainer_log.write_text("secret\n")

    for slug in ("alpha", "other"):
        url = reverse(name, args=[slug, run.id])
        assert charlie_client.get(url).status_code == 404
