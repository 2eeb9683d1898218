"""Runs of W&B and Trackio, through stand-ins of their libraries.

The stand-in of W&B has the documented fields of its public API; it was not run against
wandb.ai. test_in_a_notebook.py runs the real libraries.
"""

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cohort import trackers
from cohort.__main__ import main
from dashboard.runs.models import Run, Step
from tests.client.api.scripted import Scripted
from tests.dashboard.completions.factories import make_run, make_steps
from tests.dashboard.completions.stored import completions_of

TABLE = {
    "columns": ["step", "prompt", "completion", "accuracy", "advantage"],
    "data": [
        ["1", "1 + 1 =", "2", 1.0, 0.7],
        ["1", "1 + 1 =", "3", float("nan"), -0.7],
    ],
}
HISTORY = [
    {"_step": 0, "_timestamp": 17.5, "train/global_step": 1, "train/reward": 0.5},
    {"_step": 1, "completions": {"_type": "table-file", "path": "media/a.table.json"}},
    {"_step": 2, "examples": {"_type": "table-file", "path": "media/b.table.json"}},
    {"_step": 3, "note": "x"},
    {"_step": 4, "odd": 1.0},  # has not the trainer's step
    {"_step": 5, "train/global_step": 2, "train/reward": 0.75, "train/kl": "NaN"},
    {"_step": 6, "train/global_step": 3, "train/kl": float("nan"), "is_new": True},
]


class WandbRun:
    """`wandb.apis.public.Run`."""

    def __init__(self, name: str, history: list[dict[str, Any]]) -> None:
        self.name = name
        self.config = {"model_name_or_path": "Qwen3-0.6B"}
        self._history = history

    def scan_history(self) -> list[dict[str, Any]]:
        return self._history

    def file(self, name: str) -> Any:
        other = {"columns": ["step", "image"], "data": [[1, "x.png"]]}
        table = TABLE if "a.table" in name else other
        return SimpleNamespace(
            download=lambda root, replace: io.StringIO(json.dumps(table))
        )


@pytest.fixture
def wandb(monkeypatch) -> Any:
    runs = [WandbRun("mine", HISTORY), WandbRun("empty", [{"_step": 0, "x": "y"}])]
    api = SimpleNamespace(run=lambda path: runs[0], runs=lambda path: runs)
    library = SimpleNamespace(Api=lambda: api)
    monkeypatch.setitem(sys.modules, "wandb", library)
    return library


@pytest.fixture(autouse=True)
def login(live_app, token, monkeypatch) -> None:
    monkeypatch.setenv("COHORT_URL", live_app)
    monkeypatch.setenv("COHORT_TOKEN", token)


def test_runs_of_wandb_are_imported(wandb, team, capsys):
    assert main(["import", "wandb", "alice/sums"]) == 0

    run = Run.objects.get()
    assert (run.name, run.model_label, run.last_step) == ("mine", "Qwen3-0.6B", 2)
    rows = Step.objects.filter(run=run).order_by("step")
    place = run.metric_names.index("reward/mean")
    # That of step 1 is computed from its completions.
    assert [(row.step, row.values[place]) for row in rows] == [(1, 1.0), (2, 0.75)]
    assert not {"odd", "is_new", "kl/mean"} & set(run.metric_names)
    assert rows[0].time.timestamp() == 17.5
    group = run.groups.get()
    assert (group.prompt, group.rule_names) == ("1 + 1 =", ["accuracy"])
    assert [(c.text, c.reward, c.advantage) for c in completions_of(run)] == [
        ("2", 1.0, 0.7),
        ("3", None, -0.7),
    ]
    output = capsys.readouterr()
    assert f"/alpha/runs/{run.pk}/" in output.out
    assert "empty" in output.err

    assert main(["--json", "import", "wandb", "alice/sums/ab12"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == Run.objects.latest("pk").pk


def test_invalid_rows_are_left_out_if_that_is_asked_for(
    wandb, team, monkeypatch, capsys
):
    bad = ["1", "1 + 1 =", 7, 1.0, 0.7]
    monkeypatch.setitem(TABLE, "data", [*TABLE["data"], bad])

    assert main(["import", "wandb", "alice/sums/ab12"]) == 1
    assert "HTTP 422" in capsys.readouterr().err
    assert not Run.objects.exists()

    assert main(["import", "wandb", "alice/sums/ab12", "--leave-out"]) == 0
    assert len(completions_of(Run.objects.get())) == 2


@pytest.mark.parametrize("path", ["../../.bashrc", "/tmp/x", "media/../../x"])
def test_a_table_is_written_into_no_other_folder(path, wandb, monkeypatch, capsys):
    tables = {"completions": {"_type": "table-file", "path": path}}
    rows = [HISTORY[0], tables | {"_step": 1}]
    wandb.Api().run("")._history = rows
    monkeypatch.setattr(WandbRun, "file", lambda *_: pytest.fail("It was loaded."))

    assert main(["import", "wandb", "alice/sums/ab12"]) == 2
    assert path in capsys.readouterr().err


def test_an_error_of_the_library_is_shown(wandb, monkeypatch, capsys):
    class CommError(Exception):
        pass

    def refuse() -> None:
        raise CommError("No API key.")

    monkeypatch.setattr(wandb, "Api", refuse)

    assert main(["import", "wandb", "alice/sums"]) == 2
    assert capsys.readouterr().err == "wandb: No API key.\n"


def test_a_library_that_is_missing_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trackio", None)

    assert main(["import", "trackio", "sums"]) == 2
    assert "pip install trackio" in capsys.readouterr().err


@pytest.mark.parametrize("tool", ["wandb", "trackio"])
def test_metrics_are_logged_under_their_steps(tool, team, monkeypatch, capsys):
    run = make_run(team, name="mine")
    make_steps(run, {"reward/mean": [0.1, None, 0.3], "loss": [1.0, 2.0, 3.0]})
    begun: list[dict[str, Any]] = []
    logged: list[Any] = []

    def init(**options: Any) -> Any:
        begun.append(options)
        print("Hello.")  # noqa: T201 - both libraries do
        return SimpleNamespace(log=lambda values, step: logged.append((step, values)))

    library = SimpleNamespace(init=init, finish=lambda: logged.append("finished"))
    monkeypatch.setitem(sys.modules, tool, library)
    code = main(["--json", "export", str(run.pk), "--to", tool, "--project", "sums"])

    assert code == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
    assert (begun[0]["project"], begun[0]["name"]) == ("sums", "mine")
    assert logged == [
        (1, {"reward/mean": 0.1, "loss": 1.0}),
        (2, {"loss": 2.0}),
        (3, {"reward/mean": 0.3, "loss": 3.0}),
        "finished",
    ]


def test_a_large_import_is_waited_for(monkeypatch, tmp_path):
    waits: list[float] = []
    monkeypatch.setattr(trackers.time, "sleep", waits.append)
    file = tmp_path / "history.jsonl"
    file.write_text("{}\n")
    job = {"state": "running", "error": "", "unfinished": [], "run_id": None}
    job |= {
        "id": 3,
        "num_received": 3,
        "is_whole": True,
        "findings": {"num_refused": 0},
    }

    def responses(*states: str) -> list[Any]:
        return [(200, {}, job | {"state": state, "run_id": 9}) for state in states]

    source = trackers.Source(name="mine", config={}, rows=[], read_table=lambda _: [])
    lost = (409, {}, {"detail": "Offset."})
    read = responses("running", "running", "done")
    answers = [*responses("open"), lost, *responses("open"), *read]
    with Scripted(*answers, *responses("done")) as server:
        made = trackers._make_run(server.client(), file, source, leaves_out=False)
        assert made == 9
    assert len(waits) == 2

    with (
        Scripted(*responses("open", "open", "failed")) as server,
        pytest.raises(ValueError, match="failed"),
    ):
        trackers._make_run(server.client(), file, source, leaves_out=False)
