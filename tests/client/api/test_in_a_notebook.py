"""The client in an environment of a user's, with the real libraries."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dashboard.runs.models import Run, Step
from tests.client.api.processes import ROOT, Cohort
from tests.client.api.test_frames import NAME, Tags
from tests.dashboard.completions.blocks import make_blocks
from tests.dashboard.completions.factories import make_group, make_run, make_steps
from tests.dashboard.completions.stored import completions_of

PYTHON = ROOT / ".venv-notebook" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="`make test-slow` installs it"),
]
CELLS = [
    "from cohort import Client\nclient = Client()\nclient.runs.list()",
    "run = client.runs.get(client.runs.list()[0].id)\nrun",
    "metrics = run.to_pandas()\nmetrics.tail(3)",
    "%matplotlib inline\n"
    'metrics.plot(x="step", y=["reward/mean", "kl/mean"], figsize=(7, 3));',
    'frame = run.to_polars("completions")\n'
    'frame.select("step", "reward", frame["rules"].struct.field("answer")).head(3)',
    "dataset = run.to_dataset()\ndataset",
    'dataset.filter(lambda row: row["reward"] > 1).num_rows',
    "run.groups(1)",
    'found = list(run.completions(text="i think", limit=3))\n'
    "[completion.text for completion in found]",
]
WRITE_PROJECT = """
import trackio
for name, rewards in (("first", [0.1, 0.5]), ("second", [0.3])):
    trackio.init(
        project="sums", name=name, config={"model_name_or_path": "Qwen3-0.6B"},
        auto_log_cpu=False, auto_log_gpu=False, embed=False,
    )
    for step, reward in enumerate(rewards, start=1):
        trackio.log({"train/reward": reward, "train/global_step": step})
        columns = ["step", "prompt", "completion", "accuracy", "advantage"]
        chat = [{"role": "user", "content": "1 + 1 ="}]
        rows = [[str(step), chat, f"It is {n}.", n - 1.0, n - 1.5] for n in (1, 2)]
        trackio.log({"completions": trackio.Table(columns=columns, data=rows)})
    trackio.finish()
"""
READ_PROJECT = """
import json, trackio
[run] = trackio.Api().runs("ours")
rows = trackio.SQLiteStorage.get_logs("ours", run=run.name, run_id=run.id)
print(json.dumps([run.name, run.config["optim"], rows]))
"""
READ_WANDB = """
import json, pathlib, struct
from wandb.proto.wandb_internal_pb2 import Record
[file] = pathlib.Path("wandb").glob("offline-run-*/*.wandb")
data, at, rows = file.read_bytes(), 7, []
assert len(data) < 2**15  # one block of its log
while at < len(data):
    size = struct.unpack_from("<H", data, at + 4)[0]
    record = Record.FromString(data[at + 7 : at + 7 + size])
    at += 7 + size
    history = record.history.item
    items = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in history}
    if items:
        rows.append(items)
    if record.stats.item:
        raise SystemExit("figures of this machine")
print(json.dumps(rows))
"""


@pytest.fixture
def cohort(live_app, token, tmp_path) -> Cohort:
    cohort = Cohort(
        live_app,
        token,
        tmp_path,
        HOME=str(tmp_path),
        TRACKIO_DIR=str(tmp_path / "trackio"),
        WANDB_MODE="offline",
        HF_HUB_OFFLINE="1",
    )
    cohort.python = PYTHON
    return cohort


@pytest.fixture
def python(cohort, tmp_path) -> Any:
    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [str(PYTHON), *arguments],
            env=cohort.environment,
            cwd=tmp_path,
            input=stdin,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def stored(team) -> Run:
    run = make_run(team, name=NAME, last_step=40)
    rewards = [0.1 + 0.02 * step for step in range(40)]
    make_steps(run, {"reward/mean": rewards, "kl/mean": [r / 5 for r in rewards]})
    for step in (1, 2, 40):
        texts = ["I think it is 2.", "No."]
        make_group(run, step, rewards=(1.2, 0.0), texts=texts)
    make_blocks(run)
    return run


def test_a_notebook_shows_and_plots_a_run(stored, python, tmp_path):
    path = tmp_path / "tour.ipynb"

    python(
        str(Path(__file__).with_name("execute_notebook.py")),
        str(path),
        stdin=json.dumps(CELLS),
    )

    outputs = [
        {kind: "".join(text) for kind, text in output["data"].items()}
        for cell in json.loads(path.read_text())["cells"]
        for output in cell["outputs"]
        if "data" in output
    ]
    listed, run, pandas, plot, polars, dataset, num, groups, texts = outputs
    for shown in (listed, run, groups):
        tags = Tags(shown["text/html"]).tags
        assert "table" in tags
        assert "script" not in tags
    assert "reward/mean" in pandas["text/html"]
    picture = base64.b64decode(plot["image/png"])
    width, height = struct.unpack(">II", picture[16:24])
    assert width > height > 100
    assert "shape: (3, 3)" in polars["text/html"]
    assert "num_rows: 6" in dataset["text/plain"]
    assert num["text/plain"] == "3"
    assert texts["text/plain"] == str(["I think it is 2."] * 3)


def test_a_project_of_trackio_becomes_runs(cohort, python, team):
    python("-c", WRITE_PROJECT)

    made = cohort.json("import", "trackio", "sums")
    none = cohort("import", "trackio", "other")

    assert [one["name"] for one in made] == ["first", "second"]
    first = Run.objects.get(pk=made[0]["run"])
    assert (first.name, first.model_label) == ("first", "Qwen3-0.6B")
    steps = Step.objects.filter(run=first).order_by("step")
    place = first.metric_names.index("reward/mean")
    assert len(steps) == 2
    assert steps[1].values[place] == 0.5
    group = first.groups.get(step=2)
    assert (group.prompt, group.rule_names) == ("user: 1 + 1 =", ["accuracy"])
    texts = [completion.text for completion in completions_of(first)]
    assert texts == ["It is 1.", "It is 2."] * 2
    assert none.returncode == 2
    assert "other" in none.stderr


def test_a_run_is_logged_to_trackio(cohort, python, stored):
    stored.config = stored.config | {"optim": {"learning_rate": 1e-6}}
    stored.save()

    done = cohort("export", stored.pk, "--to", "trackio", "--project", "ours")

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    name, optim, rows = json.loads(python("-c", READ_PROJECT).splitlines()[-1])
    assert name == NAME
    assert optim["learning_rate"] == 1e-6
    assert [row["step"] for row in rows] == [*range(1, 41)]
    assert rows[0]["reward/mean"] == 0.1


def test_a_run_is_logged_to_wandb_without_a_server(cohort, python, stored):
    done = cohort("export", stored.pk, "--to", "wandb", "--project", "ours")

    assert done.returncode == 0, done.stderr
    rows = json.loads(python("-c", READ_WANDB).splitlines()[-1])
    assert [row["_step"] for row in rows] == [*range(1, 41)]
    assert rows[0]["reward/mean"] == 0.1
    assert rows[0]["kl/mean"] == 0.02
