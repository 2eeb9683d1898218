"""`cohort push`, with the library of Hugging Face and a hub that speaks its API."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow.parquet as pq
import pytest
import yaml

from dashboard.runs.models import Run
from tests.client.api.processes import Cohort
from tests.dashboard.completions.factories import make_group, make_run, make_steps

API = "/api/datasets/alice/sums"


class Hub:
    """One dataset of alice. `commits`: the files of each, by path."""

    def __init__(self) -> None:
        self.created: list[dict[str, object]] = []
        self.commits: list[dict[str, bytes]] = []
        self.is_private = True
        self.tokens: set[str | None] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                hub.tokens.add(self.headers["Authorization"])
                status, tree = hub.respond(self.path.partition("?")[0], body)
                data = json.dumps(tree).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def respond(self, path: str, body: bytes) -> tuple[int, object]:
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            status = 200 if len(self.created) == 1 else 409
            return status, {"url": f"{self.url}/datasets/alice/sums"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == f"{API}/preupload/main":
            files = json.loads(body)["files"]
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            return 200, {"files": [{"path": file["path"], **mode} for file in files]}
        if path == f"{API}/commit/main":
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            self.commits.append(
                {file["path"]: base64.b64decode(file["content"]) for file in files}
            )
            url = f"{self.url}/datasets/alice/sums/commit/{'0' * 40}"
            return 200, {"commitUrl": url, "commitOid": "0" * 40, "success": True}
        if path in (API, f"{API}/revision/main"):
            stored = {name for files in self.commits for name in files}
            return 200, {
                "id": "alice/sums",
                "private": self.is_private,
                "siblings": [{"rfilename": name} for name in stored],
            }
        return 404, {"error": f"No {path}."}


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.http.serve_forever, args=(0.01,))
    thread.start()
    yield hub
    hub.http.shutdown()
    hub.http.server_close()
    thread.join()


@pytest.fixture
def run(team) -> Run:
    run = make_run(team, name="a | <b>\n---", last_step=2)
    make_steps(run, {"reward/mean": [0.1, 0.5]})
    make_group(run, 1)
    make_group(run, 2)
    return run


@pytest.fixture
def cohort(live_app, token, tmp_path, hub) -> Cohort:
    home = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_x", "HF_HOME": str(tmp_path)}
    return Cohort(live_app, token, tmp_path, **home)


def test_a_run_is_pushed_as_a_private_dataset(cohort, hub, run):
    [tried] = cohort.json("push", run.pk, "alice/sums", "--dry-run")
    assert hub.created == hub.commits == []

    pushed = cohort("push", run.pk, "alice/sums", "--first-step", 2)
    [again] = cohort.json("push", run.pk, "alice/sums")

    assert set(tried["files"]) == {
        "README.md",
        "completions.parquet",
        "metrics.parquet",
    }
    assert tried["url"] == ""
    assert pushed.returncode == 0, pushed.stderr
    assert f"{hub.url}/datasets/alice/sums" in pushed.stdout
    created = hub.created[0]
    assert (created["name"], created["visibility"]) == ("sums", "private")
    first, second = hub.commits
    table = pq.read_table(io.BytesIO(first["completions.parquet"]))
    assert table["step"].to_pylist() == [2] * 4
    _, front, text = first["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(front)["configs"] == [
        {"config_name": name, "data_files": f"{name}.parquet"}
        for name in ("completions", "metrics")
    ]
    assert "| Run | a &#124; &lt;b> --- |" in text
    assert "| Steps | 2 to 2 |" in text
    # People may have chosen a licence in the card.
    assert set(second) == {"completions.parquet", "metrics.parquet"}
    assert set(again["files"]) == set(second)
    assert hub.tokens - {None} == {"Bearer hf_x"}


def test_a_public_dataset_is_refused_unless_asked_for(cohort, hub, run):
    hub.is_private = False

    refused = cohort("push", run.pk, "alice/sums")
    assert (refused.returncode, hub.commits) == (1, [])
    assert "--public" in refused.stderr

    pushed = cohort("push", run.pk, "alice/sums", "--public")
    assert pushed.returncode == 0, pushed.stderr
    assert hub.created[-1]["visibility"] == "public"
    assert len(hub.commits) == 1


def test_a_refusal_of_the_hub_is_shown(cohort, run):
    refused = cohort("push", run.pk, "alice/other")

    assert refused.returncode == 1
    assert "alice/other" in refused.stderr
    assert "Traceback" not in refused.stderr
