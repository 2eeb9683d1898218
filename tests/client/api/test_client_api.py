"""`Client` against a real web process."""

import csv
import tarfile

import pytest

from cohort import Client, Refused
from dashboard.runs.models import Run
from tests.dashboard.api.asking import make_token
from tests.dashboard.completions.factories import make_recipe
from tests.dashboard.runs.checkpoints.saved import Saving
from tests.dashboard.runs.stories import queue_run
from tests.dashboard.supervision.logs import LogBuilder
from tests.dashboard.supervision.sending import send
from trainer.events import Evaluated

# The rows of these tests lack the column that it needs, so a launch warns.
COUNTDOWN = {"name": "equation", "kind": "countdown", "weight": 1.0}


def test_push_makes_versions_and_launch_starts_a_run_on_one(client, team, rows):
    recipe = make_recipe(team, rules=[COUNTDOWN]).recipe.name
    sent: list[tuple[int, int | None]] = []

    first = client.datasets.push(rows, key="p", on_upload=lambda *at: sent.append(at))
    assert client.datasets.push(rows, key="p") == first
    team.uploads.all().delete()  # as Cohort does after an import
    assert client.datasets.push(rows, key="p") == first
    size = rows.stat().st_size
    rows.write_text(rows.read_text() * 2)
    second = client.datasets.push(rows, dataset="sums", prompt="answer", answer="")

    assert sent[-1] == (size, size)
    assert (first.dataset, first.number, first.num_rows) == ("sums", 1, 40)
    assert (second.dataset_id, second.number) == (first.dataset_id, 2)
    assert second.mapping["prompt"] == "answer"
    assert client.datasets.version("sums") == second
    assert client.datasets.version("sums@1") == client.datasets.version(first.id)
    with pytest.raises(ValueError, match="'sums'"):
        client.datasets.version("sum")
    with pytest.raises(ValueError, match="3"):
        client.datasets.version("sums@3")

    def launch(*, confirm: bool) -> Run:
        launched = client.runs.launch(
            "dr-grpo",
            model="models/tiny",
            dataset=first,
            recipe=recipe,
            settings={"optim.num_steps": 7},
            confirm=confirm,
            key="k",
        )
        return Run.objects.get(pk=launched.id)

    with pytest.raises(Refused) as refused:
        launch(confirm=False)
    assert refused.value.code == "runs.launch_warnings"
    run, again = launch(confirm=True), launch(confirm=True)
    assert (run, run.state, run.num_steps) == (again, "queued", 7)
    assert run.dataset_version_id == first.id
    assert run.config["loss"]["aggregation"] == "constant"  # Dr. GRPO's
    seen = client.runs.get(run.pk)
    assert seen.address == f"{client.server.url}/alpha/runs/{run.pk}/"
    seen.cancel()
    assert "alice" in seen.refresh().reason


def test_a_run_is_listed_watched_and_read(
    client, live_app, charlie, open_external, tmp_path
):
    shown, other = open_external(name="run 1"), open_external(name="run 2")
    log = LogBuilder().stepped(1)
    send(shown, log)

    newest, named = client.runs.list(limit=1), client.runs.list('name = "run 1"')

    assert [run.id for run in newest] == [other.pk]
    assert [one["id"] for one in client.iterate("/runs")] == [other.pk, shown.pk]
    run = named[0]
    assert repr(run).startswith(f"<Run {shown.pk} 'run 1'")
    with pytest.raises(Refused, match="HTTP 422"):
        client.runs.list("reward >")
    other_team = Client(live_app, make_token(charlie, "read"), retries=0)
    with pytest.raises(Refused, match="HTTP 404"):
        other_team.runs.get(run.id)

    watched = run.watch(every_seconds=0.05)
    first = next(watched)
    scores = {"eval/heldout/mean": 0.5}
    counts = {"num_prompts": 2, "samples_per_prompt": 1}
    log.add(Evaluated, step=1, name="heldout", metrics=scores, **counts)
    send(shown, log, first=4)
    late = next(watched)
    send(shown, log.stepped(2).finished(2), first=5)
    rest = list(watched)

    assert (first.step, first.values["loss"]) == (1, -0.1)
    assert (late.step, late.values) == (1, scores)
    assert [point.step for point in rest] == [2]
    assert run.wait().state == "finished"
    with pytest.raises(Refused, match="finished"):
        run.stop()

    points = run.metrics("reward/mean", "eval/heldout/mean")
    assert [(point.step, point.values) for point in points] == [
        (1, {"reward/mean": 0.1, "eval/heldout/mean": 0.5}),
        (2, {"reward/mean": 0.2}),
    ]
    client.patch(f"/runs/{run.id}", {"tags": ["paper"]})
    assert run.refresh().tags == ["paper"]
    assert [one.prompt for one in run.groups(2)] == ["prompt 0", "prompt 1"]
    completions = run.group(2, 1).completions
    assert [one.text for one in completions] == ["yes", "no"]
    assert completions[1].rule_scores["answer"] == 1.0

    path = run.export(tmp_path / "mine.csv", first_step=2)
    with path.open(encoding="utf-8") as file:  # without a byte order mark
        table = list(csv.DictReader(file))
    assert [(row["step"], row["loss"]) for row in table] == [("2", "-0.2")]
    with pytest.raises(ValueError, match=r"mine\.csv"):
        run.export(path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_model_of_a_checkpoint_is_downloaded(client, team, tmp_path):
    saving = Saving(queue_run(team))
    saving.start()
    saved = saving.save(score=0.5)
    run = client.runs.get(saved.run_id)
    sent: list[int] = []

    path = run.download_checkpoint(
        saved.name, tmp_path, on_progress=lambda done, _: sent.append(done)
    )

    assert path == tmp_path / f"run-{run.id}-{saved.name}.tar"
    assert sent[-1] == path.stat().st_size
    with tarfile.open(path) as archive:
        (name,) = archive.getnames()
    assert name.endswith("-step-1/model.safetensors")
    with pytest.raises(ValueError, match=path.name):
        run.download_checkpoint(saved.name, path)
    with pytest.raises(Refused, match="HTTP 404"):
        run.download_checkpoint("../step-9", tmp_path / "other.tar")
    assert list(tmp_path.iterdir()) == [path]
