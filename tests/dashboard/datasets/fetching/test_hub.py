"""Hub datasets: listed, chosen, pinned to a commit, verified, private."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.test import Client

from dashboard.datasets.fetching import choices, download, hub
from dashboard.datasets.models import DatasetVersion, ImportJob, Upload
from dashboard.jobs.models import JobState
from tests.dashboard.datasets.fetching.hub_site import (
    CONVERTED,
    MAIN,
    add_dataset,
    answer,
    guarded,
)
from tests.dashboard.datasets.fetching.site import (
    Site,
    page,
    redirect,
    status,
    web_site,
)
from tests.dashboard.datasets.fetching.test_fetches import fetch, give, take_up, text_of
from tests.dashboard.datasets.test_import_jobs import page_of
from tests.dashboard.datasets.test_upload import MAPPING, RECORDS, jsonl, parquet
from tests.dashboard.jobs.working import do

NAME = "maths/sums"
ROWS = jsonl(RECORDS)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(hub, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def site(settings) -> Iterator[Site]:
    with web_site() as site:
        settings.HUB_ENDPOINT = site.url("")
        yield site


def test_an_invalid_endpoint_is_shown_on_the_page(alice_client, settings):
    settings.HUB_ENDPOINT = "hub.example"

    job = give(alice_client, NAME)
    do(take_up())

    assert "HF_ENDPOINT" in text_of(alice_client, job)


def place_of(job: ImportJob) -> str:
    return f"/alpha/datasets/uploads/{job.upload_id}"


def choose(client: Client, job: ImportJob, name: str) -> ImportJob:
    """Choose it, and have a worker fetch it."""
    answer = client.post(f"{place_of(job)}/choice", {"choice": name})
    assert answer.status_code == 302, answer.content.decode()
    chosen = ImportJob.objects.latest("pk")
    assert answer["Location"] == page_of(chosen)
    do(take_up())
    chosen.refresh_from_db()
    return chosen


def imported(client: Client, job: ImportJob) -> DatasetVersion:
    assert job.state == JobState.DONE, job.error
    answer = client.post(place_of(job), MAPPING)
    assert answer.status_code == 302, answer.content.decode()
    return DatasetVersion.objects.latest("pk")


def configs(**splits: str | list[str]) -> dict[str, Any]:
    files = [{"split": name, "path": path} for name, path in splits.items()]
    return {"configs": [{"config_name": "main", "data_files": files}]}


def test_the_only_file_is_fetched_and_pinned(alice_client, site):
    add_dataset(site, NAME, {"train.jsonl": ROWS, "README.md": b"# Sums"})

    job = fetch(alice_client, NAME)
    version = imported(alice_client, job)

    source = version.source
    assert (source["kind"], source["dataset"]) == ("hub", NAME)
    assert (source["commit"], source["revision"]) == (MAIN, "main")
    assert (source["part"], source["files"]) == ("train.jsonl", ["train.jsonl"])
    assert version.dataset.name == "Sums"
    assert version.source_text.startswith(f"{NAME} train.jsonl @ {MAIN}, fetched 20")
    assert site.requests[-1][0] == f"/datasets/{NAME}/resolve/{MAIN}/train.jsonl"


def test_splits_and_files_are_listed(alice_client, site):
    files = {
        "main/train-00000-of-00001.jsonl": ROWS,
        "main/test-00000-of-00001.jsonl": jsonl(RECORDS[:1]),
        "extra/notes.csv": b"a,b\n1,2\n",
        "model.bin": b"\x00",
        "dataset_infos.json": b"{}",
    }
    card = configs(train="main/train-*", test="main/test-*")
    add_dataset(site, NAME, files, card=card, large=tuple(files)[:2])

    job = fetch(alice_client, NAME)

    assert job.state == JobState.DONE, job.error
    polled = alice_client.get(page_of(job), headers={"hx-request": "true"})
    assert polled["HX-Redirect"] == f"{place_of(job)}/choice"
    assert alice_client.get(place_of(job))["Location"] == f"{place_of(job)}/choice"
    shown = alice_client.get(f"{place_of(job)}/choice")
    text = shown.content.decode()
    listed = [one.name for _, members in shown.context["groups"] for one in members]
    assert listed == ["main/train", "main/test", *list(files)[:3]]
    assert MAIN in text

    nothing = alice_client.post(f"{place_of(job)}/choice", {"choice": "main/other"})
    assert nothing.status_code == 422
    chosen = choose(alice_client, job, "main/test")
    form = alice_client.get(place_of(chosen)).context["form"]
    assert form["name"].value() == "sums-main-test"
    assert imported(alice_client, chosen).num_rows == 1


@pytest.mark.parametrize("part", ["main/test", "test", "data/test.jsonl"])
def test_a_named_split_or_file_is_fetched(part, alice_client, site):
    files = {"data/train.jsonl": ROWS, "data/test.jsonl": jsonl(RECORDS[:1])}
    card = configs(train="data/train.jsonl", test="data/test.jsonl")
    add_dataset(site, NAME, files, card=card)

    job = fetch(alice_client, NAME, part=part)

    assert imported(alice_client, job).num_rows == 1


@pytest.mark.parametrize(
    ("train", "files"),
    [
        (["a.csv", "b.csv"], {"a.csv": b"q,a\n1,2\n", "b.csv": b"q,a\n3,4\n"}),
        ("train.*", {"train.jsonl.gz": b"x", "train.csv": b"q,a\n1,2\n"}),
        ("train.zip", {"train.zip": b"PK"}),
    ],
    ids=["CSV files", "kinds", "archive"],
)
def test_no_split_is_picked_beside_one_that_cannot_be_read(
    train, files, alice_client, site
):
    files = {**files, "holdout/test.jsonl": ROWS}
    card = configs(train=train, test="holdout/test.jsonl")
    add_dataset(site, NAME, files, card=card)

    job = fetch(alice_client, NAME)

    shown = alice_client.get(f"{place_of(job)}/choice")
    listed = [one.name for _, members in shown.context["groups"] for one in members]
    assert listed[0] == "main/test"
    assert "main/train" in shown.content.decode()
    assert imported(alice_client, choose(alice_client, job, "main/test")).num_rows == 2


@pytest.mark.usefixtures("parquet_in_process")
def test_a_split_that_cannot_be_joined_comes_from_the_parquet_branch(
    alice_client, site
):
    files = {"a.csv": b"q,a\n1,2\n", "b.csv": b"q,a\n3,4\n", "test.jsonl": ROWS}
    card = configs(train=["a.csv", "b.csv"], test="test.jsonl")
    add_dataset(site, NAME, files, card=card)
    converted = {"default/train/0000.parquet": parquet(RECORDS)}
    add_dataset(site, NAME, converted, revision="refs/convert/parquet", sha=CONVERTED)

    assert imported(alice_client, fetch(alice_client, NAME)).num_rows == len(RECORDS)


@pytest.mark.parametrize(
    ("paths", "splits"),
    [
        (["en/train.jsonl", "en/test.jsonl"], {"train": 1, "test": 1}),
        (["en/data-dev-0.jsonl", "en/data-dev-1.jsonl"], {"validation": 2}),
        (["en/training/a.jsonl", "en/eval/b.jsonl"], {"train": 1, "test": 1}),
        (["en/rows.jsonl", "de/test.jsonl"], {"train": 1}),
    ],
    ids=["names", "parts", "folders", "one file"],
)
def test_a_folder_of_a_card_is_split_by_names(paths, splits):
    files = [hub.HubFile(path=path, num_bytes=9, sha256="", blob="") for path in paths]
    config = {"config_name": "en", "data_dir": "en"}
    commit = hub.Commit(dataset=NAME, sha=MAIN, files=files, card={"configs": [config]})

    found, unread = choices.splits_of_card(commit, "main")

    assert {one.name: len(one.files) for one in found} == {
        f"en/{split}": count for split, count in splits.items()
    }
    assert unread == ""


def test_an_unknown_split_is_reported_with_the_list(alice_client, site):
    add_dataset(site, NAME, {"a.jsonl": ROWS, "b.jsonl": ROWS})

    job = fetch(alice_client, NAME, part="c.jsonl")

    text = alice_client.get(f"{place_of(job)}/choice").content.decode()
    assert "“c.jsonl”" in text
    assert "b.jsonl" in text


def test_a_revision_is_looked_up_and_pinned(alice_client, site):
    add_dataset(site, NAME, {"a.jsonl": ROWS}, revision="refs/pr/1", sha="b" * 40)

    job = fetch(alice_client, NAME, revision="refs/pr/1")
    version = imported(alice_client, job)

    assert version.source["commit"] == "b" * 40
    assert version.source["revision"] == "refs/pr/1"


@pytest.mark.usefixtures("parquet_in_process")
def test_splits_come_from_the_parquet_branch_without_a_card(alice_client, site):
    add_dataset(site, NAME, {"sums.py": b"..."})
    converted = {
        "default/train/0000.parquet": parquet(RECORDS[:1]),
        "default/train/0001.parquet": parquet(RECORDS[1:]),
    }
    add_dataset(site, NAME, converted, revision="refs/convert/parquet", sha=CONVERTED)

    version = imported(alice_client, fetch(alice_client, NAME))

    assert version.num_rows == 2
    assert [row.prompt for row in version.rows.order_by("position")] == ["2+2?", "3+3?"]
    assert version.source["commit"] == CONVERTED
    assert version.source["files"] == list(converted)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_files_of_a_split_become_one(kind, alice_client, site, monkeypatch):
    write = {"parquet": parquet, "jsonl": lambda rows: jsonl(rows).rstrip()}[kind]
    files = {f"train-{i}.{kind}": write([{**RECORDS[0], "level": i}]) for i in range(3)}
    add_dataset(site, NAME, files, card=configs(train="train-*"))

    version = imported(alice_client, fetch(alice_client, NAME, part="train"))

    rows = version.rows.order_by("position").values_list("columns", flat=True)
    assert [row["level"] for row in rows] == [0, 1, 2]
    assert Upload.objects.count() == 0


@pytest.mark.usefixtures("parquet_in_process")
def test_parts_with_other_columns_are_not_joined(alice_client, site):
    files = {"a.parquet": parquet(RECORDS), "b.parquet": parquet([{"text": "x"}])}
    add_dataset(site, NAME, files, card=configs(train=["a.parquet", "b.parquet"]))

    job = fetch(alice_client, NAME, part="train")

    assert job.state == JobState.FAILED
    assert "Cannot join" in job.error
    assert Upload.objects.get().files == []


@pytest.mark.usefixtures("parquet_in_process")
def test_a_decompression_bomb_in_a_split_is_refused(alice_client, site, monkeypatch):
    file = io.BytesIO()
    pq.write_table(pa.table({"question": ["x" * 100_000] * 1_000}), file)
    assert len(file.getvalue()) < 100_000
    files = {"a.parquet": file.getvalue(), "b.parquet": file.getvalue()}
    add_dataset(site, NAME, files, card=configs(train=list(files)))
    monkeypatch.setattr(
        "dashboard.datasets.fetching.fetches.MAX_UNPACKED_BYTES", 10_000_000
    )

    job = fetch(alice_client, NAME, part="train")

    assert job.state == JobState.FAILED
    assert "10,000,000 bytes" in job.error


@pytest.mark.parametrize("large", [(), ("a.jsonl",)])
def test_bytes_that_are_not_those_of_the_commit_are_refused(large, alice_client, site):
    add_dataset(site, NAME, {"a.jsonl": ROWS}, large=large)
    site.pages[f"/datasets/{NAME}/resolve/{MAIN}/a.jsonl"] = page(ROWS[::-1])

    job = fetch(alice_client, NAME)

    assert job.state == JobState.FAILED
    assert "Checksum mismatch" in job.error


def test_a_token_reads_a_private_dataset_and_stays_with_the_hub(
    alice_client, site, settings
):
    with web_site() as store:
        settings.HUB_TOKEN = "hf_secret_of_the_server"
        settings.DATASET_HOSTS = store.host
        add_dataset(
            site, NAME, {"a.jsonl": ROWS}, token=settings.HUB_TOKEN, large=("a.jsonl",)
        )
        where = f"/datasets/{NAME}/resolve/{MAIN}/a.jsonl"
        signed = store.url("/blobs/1?Signature=hush")
        site.pages[where] = guarded(redirect(signed), settings.HUB_TOKEN)
        store.pages["/blobs/1"] = page(ROWS)

        job = fetch(alice_client, NAME)
        version = imported(alice_client, job)

    assert [headers.get("Authorization") for _, headers in store.requests] == [None]
    kept = json.dumps([version.source, list(ImportJob.objects.values())], default=str)
    assert "hf_secret" not in kept
    assert "hush" not in kept


def test_a_link_of_a_user_carries_no_token_to_the_hub(alice_client, site, settings):
    settings.HUB_TOKEN = "hf_secret_of_the_server"
    settings.DATASET_HOSTS = site.host
    site.pages["/models/x/resolve/main/a.jsonl"] = page(ROWS)

    fetch(alice_client, site.url("/models/x/resolve/main/a.jsonl"))

    assert "Authorization" not in site.requests[-1][1]


@pytest.mark.parametrize(
    ("token", "fragment"),
    [("", "set HF_TOKEN"), ("hf_other", "Request access")],
)
def test_a_private_dataset_says_what_is_missing(
    token, fragment, alice_client, site, settings
):
    settings.HUB_TOKEN = token
    add_dataset(site, NAME, {"a.jsonl": ROWS}, token="hf_right")

    job = fetch(alice_client, NAME)

    assert fragment in job.error
    assert "hf_" not in text_of(alice_client, job)


def test_an_unknown_hub_dataset_fails(alice_client, site):
    job = fetch(alice_client, "nobody/nothing", revision="v2")

    assert job.state == JobState.FAILED
    assert "nobody/nothing" in job.error


def test_a_hub_dataset_without_supported_files_fails(alice_client, site):
    add_dataset(site, NAME, {"weights.bin": b"0", "README.md": b"# Sums"})

    job = fetch(alice_client, NAME)

    assert "has 2 files" in job.error


def test_a_dataset_that_was_renamed_is_followed(alice_client, site):
    add_dataset(site, NAME, {"a.jsonl": ROWS})
    here = f"/api/datasets/{NAME}/revision/main"
    site.pages["/api/datasets/old/sums/revision/main"] = redirect(here, 307)

    version = imported(alice_client, fetch(alice_client, "old/sums"))

    assert version.source["dataset"] == NAME


def test_a_long_list_of_files_is_read_to_its_end(alice_client, site):
    add_dataset(site, NAME, {"a.jsonl": ROWS, "b.jsonl": jsonl(RECORDS[:1])})
    tree = f"/api/datasets/{NAME}/tree/{MAIN}"
    entries = [
        {"type": "file", "path": path, "size": size}
        for path, size in (("a.jsonl", len(ROWS)), ("b.jsonl", 53))
    ]
    more = f'<{site.url(tree)}?cursor=2>; rel="next"'
    site.pages[f"{tree}?recursive=true"] = answer(entries[:1], Link=more)
    site.pages[f"{tree}?cursor=2"] = answer(entries[1:])

    job = fetch(alice_client, NAME)

    shown = alice_client.get(f"{place_of(job)}/choice")
    assert shown.context["num_shown"] == 2


def test_a_shortened_list_shows_both_counts(alice_client, site, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.fetching.choices.MAX_CHOICES", 2)
    add_dataset(site, NAME, {f"{i}.jsonl": ROWS for i in range(5)})

    job = fetch(alice_client, NAME)

    text = alice_client.get(f"{place_of(job)}/choice").content.decode()
    assert "2 of 5" in text


def test_files_that_many_splits_share_are_not_all_listed(
    alice_client, site, monkeypatch
):
    """A short README could otherwise make a page of hundreds of megabytes."""
    monkeypatch.setattr(choices, "MAX_LISTED_FILES", 7)
    splits = {f"part{i}": "*.jsonl" for i in range(3)}
    files = {f"{i}.jsonl": ROWS for i in range(3)}
    add_dataset(site, NAME, files, card=configs(**splits))

    job = fetch(alice_client, NAME)

    shown = alice_client.get(f"{place_of(job)}/choice")
    assert "2 of 6" in shown.text


def test_a_split_with_an_invalid_name_is_not_listed(alice_client, site):
    files = {"a.jsonl": ROWS, "b.jsonl": ROWS}
    odd = ["a\x00b", "a\ud800b", "\u202eb", "a" * 2**20]
    splits = dict.fromkeys(odd, "*.jsonl")
    card = configs(**splits, train="a.jsonl", test="b.jsonl")
    add_dataset(site, NAME, files, card=card)

    job = fetch(alice_client, NAME)

    shown = alice_client.get(f"{place_of(job)}/choice")
    listed = [one.name for _, members in shown.context["groups"] for one in members]
    assert listed == ["main/train", "main/test", "a.jsonl", "b.jsonl"]


def test_slow_split_patterns_time_out(alice_client, site, monkeypatch):
    monkeypatch.setattr(choices, "MATCH_SECONDS", 0.0)
    files = {"a.jsonl": ROWS, "b.jsonl": ROWS}
    add_dataset(site, NAME, files, card=configs(train="**/*"))

    job = fetch(alice_client, NAME)

    assert job.state == JobState.FAILED
    job = fetch(alice_client, NAME, part="b.jsonl")
    assert imported(alice_client, job).source["part"] == "b.jsonl"


def test_an_invalid_hub_response_is_not_quoted(alice_client, site):
    for served in (
        answer([]),
        answer({"sha": "main"}),
        answer({"sha": MAIN, "id": "../../x y"}),
        page(b"secret"),
        page(b"[" * 100_000),
    ):
        site.pages[f"/api/datasets/{NAME}/revision/main"] = served

        job = fetch(alice_client, NAME)

        assert "HF_ENDPOINT" in job.error
        assert "secret" not in job.error


def test_an_unavailable_hub_fails_after_retries(alice_client, site):
    site.pages[f"/api/datasets/{NAME}/revision/main"] = status(503)

    job = fetch(alice_client, NAME)

    assert "status 503" in job.error


def test_a_retry_keeps_the_chosen_file(alice_client, site):
    add_dataset(site, NAME, {"a.jsonl": ROWS, "b.jsonl": ROWS})
    job = fetch(alice_client, NAME)
    where = f"/datasets/{NAME}/resolve/{MAIN}/b.jsonl"
    good, site.pages[where] = site.pages[where], status(404)
    failed = choose(alice_client, job, "b.jsonl")
    assert failed.state == JobState.FAILED
    assert failed.filename == f"{NAME} b.jsonl"

    site.pages[where] = good
    alice_client.post(page_of(failed), {"again": "1"})
    do(take_up())

    again = ImportJob.objects.latest("pk")
    assert imported(alice_client, again).source["part"] == "b.jsonl"


def test_the_hub_gives_no_access_to_the_private_network(alice_client, site, settings):
    """The Hub itself may be private; its redirects and links of users may not."""
    with web_site() as inside:
        add_dataset(site, NAME, {"a.jsonl": ROWS})
        where = f"/datasets/{NAME}/resolve/{MAIN}/a.jsonl"
        site.pages[where] = redirect(inside.url("/"))

        job = fetch(alice_client, NAME)

        assert "COHORT_DATASET_HOSTS" in job.error
        assert inside.requests == []
    answer = alice_client.post(
        "/alpha/datasets/upload", {"link": site.url("/api/whoami")}
    )
    assert answer.status_code == 422
    assert "link" in answer.context["link"].errors


def test_patterns_of_a_card_match_as_the_hubs_do():
    for pattern, path, is_match in (
        ("data/*.jsonl", "data/a.jsonl", True),
        ("data/*.jsonl", "data/more/a.jsonl", False),
        ("**/*.jsonl", "data/more/a.jsonl", True),
        ("**", "a/b/c", True),
        ("train-?.csv", "train-1.csv", True),
        ("train-[12].csv", "train-3.csv", False),
        ("data/**", "other/a", False),
    ):
        found = choices._matches(tuple(path.split("/")), tuple(pattern.split("/")))

        assert found is is_match, (pattern, path)


def test_a_link_to_a_file_of_the_hub_is_pinned_as_well(alice_client, site):
    add_dataset(site, NAME, {"a.jsonl": ROWS, "b.jsonl": ROWS})

    job = give(alice_client, site.url(f"/datasets/{NAME}/blob/main/b.jsonl"))
    do(take_up())
    job.refresh_from_db()

    assert imported(alice_client, job).source["commit"] == MAIN


def test_a_gated_dataset_needs_a_token(alice_client, site):
    add_dataset(site, NAME, {"a.jsonl": ROWS})
    site.pages[f"/datasets/{NAME}/resolve/{MAIN}/a.jsonl"] = status(403)

    job = fetch(alice_client, NAME)

    assert "set HF_TOKEN" in job.error


def test_an_invalid_token_is_not_shown(alice_client, site, settings):
    settings.HUB_TOKEN = "hf_secret\nof the server"
    add_dataset(site, NAME, {"a.jsonl": ROWS})

    job = fetch(alice_client, NAME)

    assert "HF_TOKEN" in job.error
    assert "hf_secret" not in job.error
