from typing import Any, cast

import pytest
from django.db.models.functions import Now
from django.test import AsyncClient, Client
from django.urls import reverse

from dashboard.runs.models import Run
from dashboard.runs.queries import AttemptDirectory, run_directory
from dashboard.supervision.lease import claim_run
from dashboard.supervision.models import Worker
from dashboard.supervision.workers import register
from dashboard.web.downloads import Streamed
from tests.page_client import PageClient


@pytest.fixture
def first_attempt(run) -> AttemptDirectory:
    claim_run(run.id, "training@gpu-1")
    files = run_directory(run.id).attempt(1)
    files.path.mkdir(parents=True)
    return files


def page(client: PageClient, run: Run, **query: object) -> str:
    return client.read(reverse("run_logs", args=["alpha", run.id]), query)


def part(client: Client, run: Run, **query: object) -> Any:
    response = client.get(reverse("run_log_part", args=["alpha", run.id]), query)
    assert response.status_code == 200, response.content
    return response.json()


def texts(answer: Any) -> list[str]:
    return [line["text"] for line in answer["lines"]]


def write_steps(files: AttemptDirectory, first: int, last: int) -> None:
    with files.trainer_log.open("a") as file:
        file.writelines(f"step {n}\n" for n in range(first, last + 1))


def test_before_a_worker_takes_the_run_there_is_nothing_to_read(alice_client, run):
    assert "data-source=" not in page(alice_client, run)


def test_a_page_begins_with_the_last_lines_and_their_numbers(
    alice_client, run, first_attempt
):
    write_steps(first_attempt, 1, 800)

    answer = part(alice_client, run)

    assert (answer["number"], answer["is_end"]) == (301, True)
    assert texts(answer)[0] == "step 301"
    assert texts(answer)[-1] == "step 800"


def test_later_requests_return_only_new_lines(alice_client, run, first_attempt):
    write_steps(first_attempt, 1, 600)
    known = part(alice_client, run)
    write_steps(first_attempt, 601, 603)

    answer = part(alice_client, run, after=known["next"], mark=known["mark"])

    assert answer["number"] == 601
    assert texts(answer) == ["step 601", "step 602", "step 603"]


def test_a_line_still_being_written_is_read_again(alice_client, run, first_attempt):
    first_attempt.trainer_log.write_text("one\nloa")
    known = part(alice_client, run)
    first_attempt.trainer_log.write_text("one\nloaded\n")

    answer = part(alice_client, run, after=known["next"], mark=known["mark"])

    assert texts(known) == ["one", "loa"]
    assert texts(answer) == ["loaded"]


def test_earlier_lines_end_where_the_known_ones_begin(alice_client, run, first_attempt):
    write_steps(first_attempt, 1, 1_200)
    known = part(alice_client, run)

    answer = part(alice_client, run, before=known["first"], mark=known["mark"])

    assert (answer["number"], texts(answer)[0]) == (201, "step 201")
    assert texts(answer)[-1] == "step 700"


def test_a_line_is_found_by_its_number(alice_client, run, first_attempt):
    write_steps(first_attempt, 1, 100_000)

    answer = part(alice_client, run, line=50_000)

    assert texts(answer)[50_000 - answer["number"]] == "step 50000"
    assert not answer["is_end"]


def test_a_log_that_was_cut_is_read_from_its_end(alice_client, run, first_attempt):
    write_steps(first_attempt, 1, 3_000)
    known = part(alice_client, run)
    first_attempt.trainer_log.write_text("[9000 bytes left out]\n")
    write_steps(first_attempt, 2_900, 9_000)

    answer = part(alice_client, run, after=known["next"], mark=known["mark"])

    assert answer["mark"] != known["mark"]
    assert texts(answer)[-1] == "step 9000"


def test_a_very_long_line_is_shortened_and_sent_whole_on_request(
    alice_client, run, first_attempt
):
    first_attempt.trainer_log.write_text("short\n" + "x" * 300_000 + "\nend\n")

    answer = part(alice_client, run, line=1)
    long = answer["lines"][1]
    url = reverse("run_log_line", args=["alpha", run.id])
    whole = alice_client.get(url, {"at": long["at"]}).json()

    assert (len(long["text"]), long["num_chars"]) == (2_000, 300_000)
    assert len(whole["text"]) == 300_000


def test_the_workers_own_messages_are_shown(alice_client, run, first_attempt):
    first_attempt.supervisor_log.write_text("Started process 7.\n")

    answer = part(alice_client, run, source="supervisor")

    assert texts(answer) == ["Started process 7."]


def test_an_attempt_that_ended_before_its_trainer_printed_shows_the_workers_log(
    alice_client, run, first_attempt
):
    first_attempt.trainer_log.touch()
    first_attempt.supervisor_log.write_text("Failed to start the run.\n")
    assert texts(part(alice_client, run)) == []

    run.attempts.update(ended_at=Now())

    assert texts(part(alice_client, run)) == ["Failed to start the run."]
    assert 'data-source="supervisor"' in page(alice_client, run)
    assert texts(part(alice_client, run, source="trainer")) == []


def test_a_progress_bar_shows_its_last_state(alice_client, run, first_attempt):
    first_attempt.trainer_log.write_bytes(b"load 10%\rload 90%\r\n\xff\n")

    assert texts(part(alice_client, run)) == ["load 90%", "\ufffd"]


def test_control_codes_and_hidden_characters_do_nothing(
    alice_client, run, first_attempt
):
    log = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07a\x00b\x07 \u202egpj.exe\u2066\n"
    first_attempt.trainer_log.write_text(log + "<script>alert(1)</script>\n")

    first, second = texts(part(alice_client, run))

    assert first == "red a␀b␇ \\u202egpj.exe\\u2066"
    assert second == "<script>alert(1)</script>"  # in JSON; the page sets it as text


def test_odd_questions_get_the_default_answer(alice_client, run, first_attempt):
    first_attempt.trainer_log.write_text("hello\n")

    for query in (
        {"attempt": "../../.."},
        {"attempt": "99"},
        {"attempt": "²"},
        {"source": "../../etc/passwd"},
        {"source": "both"},
        {"after": "999999999999"},
        {"before": "999999999999"},
    ):
        assert texts(part(alice_client, run, **query)) == ["hello"], query


def test_an_offset_that_is_not_a_number_is_rejected(alice_client, run, first_attempt):
    url = reverse("run_log_part", args=["alpha", run.id])

    for value in ("-1", "1e9", "²", "9" * 40):
        response = alice_client.get(url, {"after": value})

        assert response.status_code == 400, value
        assert "after" in response.json()["error"]


def test_a_log_on_another_machine_names_the_machine(alice_client, run, first_attempt):
    register("training@gpu-1", num_slots=1)
    Worker.objects.update(host="gpu-1.example", last_seen=Now())

    missing = part(alice_client, run)["missing"]

    assert "gpu-1.example" in missing


def test_the_whole_log_can_be_downloaded(alice_client, run, first_attempt):
    first_attempt.trainer_log.write_text("all of it\n")

    response = alice_client.get(reverse("run_log_download", args=["alpha", run.id]))

    assert b"".join(response.streaming_content) == b"all of it\n"
    assert "attachment" in response["Content-Disposition"]
    response.close()


@pytest.mark.django_db(transaction=True)
async def test_a_download_is_read_as_far_as_it_is_taken(alice, first_attempt, run):
    first_attempt.trainer_log.write_bytes(b"a" * 1_000_000)
    client = AsyncClient()
    await client.aforce_login(alice)

    address = reverse("run_log_download", args=["alpha", run.id])
    response = cast("Streamed", await client.get(address))
    pieces = aiter(response)
    first = await anext(pieces)
    first_attempt.trainer_log.write_bytes(b"b" * 1_000_000)
    rest = b"".join([piece async for piece in pieces])

    assert set(first) == {ord("a")}
    assert set(rest) == {ord("b")}
    assert len(first + rest) == 1_000_000


def test_non_members_get_no_log(charlie_client, run, first_attempt):
    first_attempt.trainer_log.write_text("secret\n")

    for name in ("logs", "log_part", "log_line", "log_search", "log_download"):
        for slug in ("alpha", "other"):
            url = reverse(f"run_{name}", args=[slug, run.id])
            assert charlie_client.get(url, {"q": "secret"}).status_code == 404, url


def test_each_ranks_log_is_read_searched_and_downloaded(
    alice_client, run, first_attempt
):
    write_steps(first_attempt, 1, 3)
    assert 'name="source"' not in page(alice_client, run)
    for rank in (0, 2, 10):
        path = first_attempt.path / f"rank-{rank}.log"
        path.write_text(f"loaded\nrank {rank} on node-{rank}\n")
    (first_attempt.path / "rank-x.log").write_text("no rank")

    html = page(alice_client, run, source="rank-10")

    assert html.index('"rank-2"') < html.index('"rank-10"')
    assert "rank-x" not in html
    assert 'data-source="rank-10"' in html
    answer = part(alice_client, run, source="rank-10")
    assert texts(answer) == ["loaded", "rank 10 on node-10"]
    assert [line["time"] for line in answer["lines"]] == [None, None]
    url = reverse("run_log_search", args=["alpha", run.id])
    found = alice_client.get(url, {"source": "rank-2", "q": "node"}).json()
    assert [match["line"]["text"] for match in found["matches"]] == ["rank 2 on node-2"]
    url = reverse("run_log_download", args=["alpha", run.id])
    response = alice_client.get(url, {"source": "rank-2"})
    assert "attempt-1-rank-2.log" in response["Content-Disposition"]
    # Of an attempt that has no such rank, and of no file outside its folder.
    for name in ("rank-3", "rank-../../../run"):
        assert 'data-source="trainer"' in page(alice_client, run, source=name)
