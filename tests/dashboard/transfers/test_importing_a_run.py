"""Other tools' files become runs like any other: what is read, shown and made."""

import gzip
import io
import json
import zipfile
from typing import Any

import pyarrow as pa
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from dashboard.alerts.models import Alert
from dashboard.completions.models import GroupCompletions, StepRollup
from dashboard.jobs.kinds import Context
from dashboard.jobs.models import Job
from dashboard.jobs.queue import reap
from dashboard.runs.models import Run, Step
from dashboard.transfers import jobs
from dashboard.transfers.models import RunImport
from tests.dashboard.completions.stored import completions_of
from tests.dashboard.jobs.working import do, do_all, take
from tests.dashboard.supervision.test_pages_of_an_external_run import PAGES
from tests.dashboard.transfers.tools import (
    PROMPTS,
    WANDB_HISTORY,
    WANDB_PANEL,
    event_file,
    parquet,
    tensor_record,
    text_record,
    trl_parquet,
    trl_rows,
    verl_jsonl,
)

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("parquet_in_process"),
]


def send(client: Client, files: dict[str, bytes]) -> RunImport:
    sent = [SimpleUploadedFile(name, data) for name, data in files.items()]
    answer = client.post(reverse("run_imports", args=["alpha"]), {"files": sent})
    assert answer.status_code == 302, answer.content
    return RunImport.objects.latest("pk")


def page_of(client: Client, run_import: RunImport) -> Any:
    return client.get(reverse("run_import", args=["alpha", run_import.pk]))


def make(client: Client, run_import: RunImport, **changes: Any) -> Run:
    """Press the button, with what the page proposes but for `changes`."""
    form = page_of(client, run_import).context["form"]
    given = {field.name: field.value() for field in form}
    given = {
        n: v for n, v in (given | changes).items() if v is not None and v is not False
    }
    answer = client.post(
        reverse("run_import", args=["alpha", run_import.pk]), given | {"make": "1"}
    )
    assert answer.status_code == 302, answer.context["form"].errors
    run_import.refresh_from_db()
    assert run_import.error == ""
    assert run_import.run
    return run_import.run


def values(run: Run, name: str) -> dict[int, float | None]:
    place = run.metric_names.index(name)
    steps = Step.objects.filter(run=run).order_by("step")
    return {
        step: row[place] if place < len(row) else None
        for step, row in steps.values_list("step", "values")
    }


def test_trls_completions_become_groups_with_their_advantages(alice_client):
    files = {f"completions_{s:05d}.parquet": trl_parquet(s) for s in (20, 10)}
    run_import = send(alice_client, files)
    found = page_of(alice_client, run_import).context["found"]

    run = make(alice_client, run_import, model="Qwen3-0.6B")

    assert found["tools"] == ["TRL"]
    assert (found["num_samples"], found["num_groups"], found["num_prompts"]) == (
        8,
        4,
        2,
    )
    assert run.state == "finished"
    assert run.imported_from == "TRL"
    assert run.model_label == "Qwen3-0.6B"
    first, second = run.groups.filter(step=10).order_by("prompt_index")
    assert (first.prompt, second.prompt) == (PROMPTS[0], PROMPTS[1])
    assert first.rule_names == ["accuracy_reward", "format_reward"]
    rows = first.completions
    assert [c.text for c in rows] == ["10: answer 0", "10: answer 1"]
    assert [c.reward for c in rows] == [1.5, 0.5]
    assert [c.advantage for c in rows] == [0.7, -0.7]
    assert [(c.num_tokens, c.end_reason) for c in rows] == [(None, "unknown")] * 2
    assert first.signal == "mixed"
    # Of 1.5 and 1.0: what has no score is left out of the sum.
    assert [c.reward for c in second.completions] == [1.0, 1.5]
    assert values(run, "reward/mean") == {10: 1.125, 20: 1.125}
    assert values(run, "reward/format_reward/mean") == {10: 0.5, 20: 0.5}
    assert values(run, "sampling/num_completions") == {10: 4.0, 20: 4.0}
    assert "completion/mean_length" not in run.metric_names


def test_its_prompts_become_a_dataset(alice_client):
    run = make(alice_client, send(alice_client, {"1.jsonl": verl_jsonl(1)}))

    version = run.dataset_version
    assert version
    rows = version.rows.order_by("position")
    assert [row.prompt_value for row in rows] == PROMPTS
    assert [row.answer for row in rows] == ["2", "5"]
    assert version.dataset.name == f"Prompts of {run.name}"


def test_verls_dumps_are_grouped_by_prompt_and_lack_advantages(alice_client):
    files = {f"{step}.jsonl": verl_jsonl(step) for step in (10, 2)}

    run = make(alice_client, send(alice_client, files))

    first, second = run.groups.filter(step=2).order_by("prompt_index")
    rows = first.completions
    assert [c.text for c in rows] == ["out 2.0", "out 2.2"]
    assert [c.reward for c in rows] == [1.0, 0.0]
    assert [c.advantage for c in rows] == [None, None]
    assert first.answer == "2"
    assert first.rule_names == ["score", "acc"]
    assert (first.signal, second.signal) == ("mixed", "all_wrong")
    assert "advantage/abs_mean" not in run.metric_names
    rollup = StepRollup.objects.get(run=run, step=2)
    assert rollup.advantage_quantiles == b""
    assert run.config["reward"]["recipe"]["rules"] == [
        {"name": "score", "weight": 1.0},
        {"name": "acc", "weight": 0.0},
    ]


def test_advantages_are_computed_if_that_is_chosen(alice_client):
    run_import = send(alice_client, {"2.jsonl": verl_jsonl(2)})

    run = make(alice_client, run_import, computes_advantages="on")

    group = run.groups.get(prompt_index=0)
    found = [each.advantage for each in group.completions]
    std = 0.5**0.5  # of 1 and 0, ddof 1
    assert found == pytest.approx([0.5 / (std + 1e-4), -0.5 / (std + 1e-4)])
    assert run.source["advantages"] == "computed"


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct({"answer": pa.float64(), "format": pa.float64()}),
        pa.map_(pa.string(), pa.float64()),  # of earlier versions
    ],
)
def test_an_exported_parquet_file_becomes_a_run_again(kind, alice_client):
    scores: list[Any] = [
        {"answer": 1.0, "format": 0.5},
        {"answer": 0.0, "format": None},
    ]
    if pa.types.is_map(kind):
        scores = [list(rules.items()) for rules in scores]
    columns = {
        "step": [3, 3],
        "prompt_index": [0, 0],
        "position": [0, 1],
        "prompt": ["1 + 1 =", "1 + 1 ="],
        "completion": ["2", "3"],
        "rules": pa.array(scores, kind),
    }

    run = make(alice_client, send(alice_client, {"mine.parquet": parquet(columns)}))

    group = run.groups.get(step=3)
    assert group.rule_names == ["answer", "format"]
    assert [c.rule_scores for c in group.completions] == [(1.0, 0.5), (0.0, None)]


def test_older_tables_and_chats_are_understood(alice_client):
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"}]
    data = {
        "step": [3, 3],
        "prompt": [chat, chat],
        "completion": [[{"role": "assistant", "content": c}] for c in ("2", "3")],
        "reward": [1.0, 0.0],
    }
    files = {
        "completions_00007.parquet": trl_parquet(7, old=True),
        "completions_00003.parquet": parquet(data),
    }

    run = make(alice_client, send(alice_client, files))

    old = run.groups.get(step=7, prompt=PROMPTS[0])
    assert {c.advantage for c in old.completions} == {None}
    group = run.groups.get(step=3)
    assert group.prompt == "system: Add.\n\nuser: 1 + 1"
    assert [c.text for c in group.completions] == ["2", "3"]
    assert run.dataset_version
    assert chat in [row.prompt_value for row in run.dataset_version.rows.all()]


def test_a_zip_of_many_files_is_unpacked(alice_client):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for step in range(1, 6):
            archive.writestr(f"rollouts/{step}.jsonl", verl_jsonl(step))
        archive.writestr("__MACOSX/rollouts/._1.jsonl", b"x")
    files = {"dump.zip": packed.getvalue(), "6.jsonl.gz": gzip.compress(verl_jsonl(6))}

    sent = send(alice_client, files)
    do_all("run_import.read")
    run = make(alice_client, sent)

    assert sorted(run.groups.values_list("step", flat=True).distinct()) == [
        *range(1, 7)
    ]
    assert not list(RunImport.objects.get().folder.glob("*"))


def test_event_files_become_metrics_at_their_times(alice_client):
    data = event_file(
        [
            (5, 1772366400.5, {"train/reward": 0.25, "train/reward_std": 0.125}),
            (10, 1772366410.5, {"train/reward": 0.5, "train/kl": float("nan")}),
        ]
    )
    data += tensor_record(10, 1772366411.0, "train/loss", -0.5)
    data += text_record(10, 1772366411.0, "notes")
    data += event_file([(10, 1772366412.0, {"train/reward": 0.75})])[:-3]  # cut short

    run = make(alice_client, send(alice_client, {"events.out.tfevents.1.x": data}))

    assert run.source["num_rows"] == 5  # nor the text, nor what was cut, nor versions
    assert values(run, "reward/mean") == {5: 0.25, 10: 0.5}
    assert values(run, "reward_std") == {5: 0.125, 10: None}
    assert values(run, "loss") == {5: None, 10: -0.5}
    times = Step.objects.filter(run=run).order_by("step").values_list("time", flat=True)
    assert [time.timestamp() for time in times] == [1772366400.5, 1772366411.0]
    assert run.dataset_version is None
    assert run.imported_from == "TensorBoard"


def test_a_run_is_chosen_from_a_panel_of_two(alice_client):
    run_import = send(alice_client, {"wandb_export.csv": WANDB_PANEL.encode()})
    form = page_of(alice_client, run_import).context["form"]
    assert [value for value, _ in form.fields["wandb_run"].choices] == [
        "qwen - a",
        "llama",
    ]

    run = make(alice_client, run_import, wandb_run="llama")

    assert values(run, "reward/mean") == {1: 0.1}
    assert run.metric_names == ["reward/mean"]


def test_a_history_is_read_by_the_trainers_own_steps(alice_client):
    run_import = send(alice_client, {"history.csv": WANDB_HISTORY.encode()})

    run = make(alice_client, run_import)

    assert values(run, "loss") == {10: 0.5, 20: -0.25}
    assert values(run, "kl/mean") == {10: None, 20: 0.01}
    first = Step.objects.filter(run=run).earliest("step")
    assert first.time.timestamp() == 1772366400.5


@pytest.mark.parametrize(
    ("name", "lines", "metric", "series"),
    [
        (
            "mlflow.csv",
            "run_uuid,key,value,timestamp,step\na,loss,0.5,17,1\na,kl,0.1,17,1\n"
            "a,loss,0.25,18,2\n",
            "loss",
            {1: 0.5, 2: 0.25},
        ),
        (
            "verl.jsonl",
            '{"step": 1, "data": {"critic/score/mean": 0.5}}\n'
            '{"step": 2, "data": {"critic/score/mean": 0.25}}\n',
            "reward/mean",
            {1: 0.5, 2: 0.25},
        ),
        (
            "trackio.csv",
            "id,timestamp,run_name,step,reward\n1,17,a,1,0.5\n2,18,a,2,0.75\n",
            "reward/mean",
            {1: 0.5, 2: 0.75},
        ),
    ],
)
def test_metrics_of_other_loggers_are_read(name, lines, metric, series, alice_client):
    run = make(alice_client, send(alice_client, {name: lines.encode()}))

    assert values(run, metric) == series
    assert not {"timestamp", "value", "id"} & set(run.metric_names)


def test_a_table_of_two_runs_is_refused(alice_client):
    table = b"id,timestamp,run_name,step,reward\n1,17,a,1,0.5\n2,18,b,1,0.75\n"
    run_import = send(alice_client, {"trackio.csv": table})

    found = page_of(alice_client, run_import).context["found"]

    assert found["num_refused"] == 1
    assert found["refusals"][0]["value"] == '["a", "b"]'


def test_two_columns_that_name_the_run_are_one_run(alice_client):
    table = b"run_uuid,run_name,step,reward\nab12,a,1,0.5\nab12,a,2,0.75\n"
    run_import = send(alice_client, {"trackio.csv": table})

    assert page_of(alice_client, run_import).context["found"]["num_refused"] == 0
    assert values(make(alice_client, run_import), "reward/mean") == {1: 0.5, 2: 0.75}


def test_a_line_of_a_steps_completions_is_a_row_each(alice_client):
    line = {
        "step": [3, 3],
        "prompt": ["2+2?", "2+2?"],
        "completion": ["4", "5"],
        "Correct": [1.0, 0.0],
    }
    run_import = send(alice_client, {"completions.jsonl": json.dumps(line).encode()})

    run = make(alice_client, run_import)

    assert values(run, "reward/Correct/mean") == {3: 0.5}
    assert [each.text for each in completions_of(run)] == ["4", "5"]


def test_completions_and_metrics_of_one_run_come_together(alice_client):
    events = event_file([(10, 1772366410.0, {"train/reward": 9.0, "train/kl": 0.5})])
    files = {"events.out.tfevents.1": events, "completions_10.parquet": trl_parquet(10)}

    run = make(alice_client, send(alice_client, files))

    assert run.imported_from == "TensorBoard and TRL"
    assert values(run, "kl/mean") == {10: 0.5}
    assert values(run, "reward/mean") == {10: 1.125}  # TRL logs means over steps
    assert values(run, "group/num_effective") == {10: 2.0}
    assert Step.objects.get(run=run).time.timestamp() == 1772366410.0


def test_invalid_rows_are_listed_and_left_out_on_request(alice_client):
    text = verl_jsonl(3).decode().splitlines()
    lines = [text[0], '{"input": 5, "output": "x", "score": 1, "step": 3}', text[1]]
    lines += [text[2].replace('"step": 3', '"step": -1'), text[3][:20]]
    run_import = send(alice_client, {"3.jsonl": "\n".join(lines).encode()})

    found = page_of(alice_client, run_import).context["found"]
    refused = alice_client.post(
        reverse("run_import", args=["alpha", run_import.pk]),
        {"make": "1", "name": "x"},
    )
    run = make(alice_client, run_import, leave_out="on")

    assert [(one["place"], one["column"]) for one in found["refusals"]] == [
        ('Line 2, column "input"', "input"),
        ('Line 4, column "step"', "step"),
        ("Line 5", None),
    ]
    assert refused.status_code == 422
    assert len(completions_of(run)) == 2
    assert run.source["num_left_out"] == 3


def test_unsupported_files_are_refused_with_a_reason(alice_client):
    twice = {"1.jsonl": verl_jsonl(1), "v/1.jsonl.gz": gzip.compress(verl_jsonl(1))}
    for files, expected in (
        ({"a.csv": b"x,y\n1,2\n"}, "The columns"),
        ({"a.bin": b"\x00\x01\x02"}, "a.bin"),
        ({"a.zip": b"PK\x03\x04broken"}, "zip archive"),
        (twice, "1.jsonl already"),
    ):
        run_import = send(alice_client, files)

        assert expected in page_of(alice_client, run_import).content.decode()
    assert not Run.objects.exists()


def test_a_damaged_event_file_is_named_by_record(alice_client):
    data = bytearray(event_file([(1, 1.0, {"a": 1.0}), (2, 2.0, {"a": 2.0})]))
    data[-6] ^= 1

    run_import = send(alice_client, {"events.out.tfevents.1": bytes(data)})

    found = page_of(alice_client, run_import).context["found"]
    assert found["num_values"] == 1
    assert "Record 3 is damaged" in found["refusals"][0]["problem"]


def test_all_of_it_or_nothing(alice_client, monkeypatch):
    run_import = send(alice_client, {"1.jsonl": verl_jsonl(1)})
    given = {"make": "1", "name": "x", "weight:score": "1"}
    monkeypatch.setattr(
        "dashboard.transfers.import_runs.record",
        lambda *_, **__: (_ for _ in ()).throw(ValueError("The disk burns.")),
    )

    alice_client.post(reverse("run_import", args=["alpha", run_import.pk]), given)

    page = page_of(alice_client, run_import)
    assert "The disk burns." in page.content.decode()
    assert not Run.objects.exists()
    assert not GroupCompletions.objects.exists()
    assert not run_import.team.datasets.exists()
    assert page.context["form"] is not None  # it can be tried again


def test_a_stop_in_the_middle_undoes_it(alice_client, monkeypatch):
    run_import = send(alice_client, {f"{s}.jsonl": verl_jsonl(s) for s in (1, 2)})
    monkeypatch.setattr(jobs, "is_quick", lambda _: False)
    given = {"make": "1", "name": "x", "weight:score": "1"}
    address = reverse("run_import", args=["alpha", run_import.pk])
    alice_client.post(address, given)
    claim = take("run_import.make")
    stored: list[int] = []

    def note(context: Context) -> None:
        if context.noted["unit"] == "steps":
            stored.append(context.noted["done"])

    alice_client.post(address, {"stop": "1"})
    do(claim, on_progress=note)

    assert stored == [0, 1, 2]
    run_import.refresh_from_db()
    assert run_import.state == "cancelled"
    assert not Run.objects.exists()
    assert not GroupCompletions.objects.exists()


def test_the_import_of_a_lost_worker_restarts(alice_client, monkeypatch):
    run_import = send(alice_client, {"1.jsonl": verl_jsonl(1)})
    monkeypatch.setattr(jobs, "is_quick", lambda _: False)
    address = reverse("run_import", args=["alpha", run_import.pk])
    alice_client.post(address, {"make": "1", "name": "x", "weight:score": "1"})
    lost = take("run_import.make")
    Job.objects.update(lease_until="2026-01-01T00:00Z")

    reap()
    do(take("run_import.make"))
    do(lost)  # it comes back, and writes nothing

    assert Run.objects.count() == 1
    assert RunImport.objects.get().state == "done"


def test_imports_raise_no_alerts(alice_client):
    kl = [(step, float(step), {"train/kl": 1e6}) for step in range(1, 200)]

    make(alice_client, send(alice_client, {"events.out.tfevents.1": event_file(kl)}))

    assert not Alert.objects.exists()


@pytest.fixture
def imported(alice_client) -> Run:
    files = {f"{step}.jsonl": verl_jsonl(step) for step in (0, 1, 2)}
    return make(alice_client, send(alice_client, files))


@pytest.mark.parametrize(
    "with_completions", [pytest.param(True, marks=pytest.mark.slow), False]
)
def test_every_page_of_an_imported_run_opens(alice_client, *, with_completions):
    data = {"1.jsonl": verl_jsonl(1), "2.jsonl": verl_jsonl(2)}
    if not with_completions:
        data = {"events.out.tfevents.1": event_file([(1, 5.0, {"train/loss": 1.0})])}
    run = make(alice_client, send(alice_client, data))

    addresses = [
        reverse(name, args=["alpha", run.pk]) for name in (*PAGES, "run_stream")
    ]
    addresses += [
        reverse(f"run_{tab}", args=["alpha", run.pk])
        for tab in ("config", "checkpoints")
    ]
    addresses += [reverse("run_signals", args=["alpha", run.pk, "map"])]
    addresses += [
        "/alpha/runs/",
        "/alpha/runs/prompts/",
        f"/alpha/compare?runs={run.pk}",
    ]
    addresses += [
        f"/alpha/compare?runs={run.pk}&x=samples",
        f"/alpha/sweep?runs={run.pk}",
    ]
    if with_completions:
        addresses += [reverse("group", args=["alpha", run.pk, 1, 0])]
        addresses += [reverse("group", args=["alpha", run.pk, 1, 0]) + "?view=tokens"]
        addresses += [reverse("run_prompt", args=["alpha", run.pk, 1])]
        sorts = ("-advantage", "advantage", "-length", "length")
        found = reverse("completions", args=["alpha", run.pk])
        addresses += [f"{found}?sort={sort}" for sort in sorts]
        addresses += [
            f"{reverse('reward_new', args=['alpha'])}?source=run&run={run.pk}"
        ]
    addresses += [f"{reverse('rescoring_new', args=['alpha'])}?run={run.pk}"]
    answers = {at: alice_client.get(at, follow=True).status_code for at in addresses}
    wrong = {at: status for at, status in answers.items() if status != 200}
    assert wrong == {}


def test_imported_runs_are_compared_each_by_itself(alice_client, imported):
    kl = event_file([(1, 5.0, {"reward": 1.0}), (2, 6.0, {"reward": 0.5})])
    runs = [imported] + [
        make(alice_client, send(alice_client, {f"events.out.tfevents.{i}": kl}))
        for i in range(2)
    ]
    numbers = ",".join(str(run.pk) for run in runs)

    for axis in ("step", "time", "tokens", "samples"):
        page = alice_client.get(f"/alpha/compare?runs={numbers}&x={axis}")

        assert page.status_code == 200
        assert [one.num_found for one in page.context["arrangement"].sets] == [1, 1, 1]
    pair = f"runs={runs[0].pk},{runs[1].pk}"
    assert alice_client.get(f"/alpha/compare/prompt?{pair}").status_code == 200


def test_missing_values_are_not_zero(alice_client, imported):
    page = alice_client.get(reverse("group", args=["alpha", imported.pk, 1, 0]))

    text = " ".join(page.content.decode().split())
    assert "length unknown" in text
    assert "end unknown" in text
    assert 'data-label="Advantage"><span class="number">–</span>' in text
    assert "imported from verl" in text
    prompts = alice_client.get(reverse("run_prompts", args=["alpha", imported.pk]))
    lines = {line.position: line for line in prompts.context["lines"]}
    assert (lines[0].num_right, lines[0].num_scored) == (3, 6)
    assert (lines[1].num_right, lines[1].num_scored) == (0, 6)


def test_it_cannot_be_cloned_extended_or_queued(alice_client, imported):
    clone = alice_client.get(reverse("run_new", args=["alpha"]), {"clone": imported.pk})
    at = ["alpha", imported.pk]
    change = alice_client.get(reverse("run_change", args=at), follow=True)
    extend = alice_client.post(
        reverse("run_change", args=at), {"num_steps": "50"}, follow=True
    )
    resume = alice_client.post(reverse("run_resume", args=at), follow=True)
    config = alice_client.get(reverse("run_config_file", args=[*at, "toml"]))
    tried = alice_client.get(reverse("run_try", args=at))

    assert "from verl" in clone.content.decode()
    for page in (change, extend, resume):
        (*_, message) = page.context["messages"]
        assert message.level_tag in ("error", "info")
    assert config.status_code == 404
    assert tried.status_code == 404
    before = imported.num_steps
    imported.refresh_from_db()
    assert (imported.state, imported.num_steps) == ("finished", before)


def test_an_export_can_be_imported_again(alice_client, imported):
    at = reverse("run_export_file", args=["alpha", imported.pk, "completions.parquet"])
    data = alice_client.get(at).getvalue()  # type: ignore[attr-defined]  # a stream has it

    again = make(alice_client, send(alice_client, {"completions.parquet": data}))

    def stored(run: Run) -> list[Any]:
        return sorted(
            (each.group.step, each.text, each.reward, each.num_tokens, each.end_reason)
            for each in completions_of(run)
        )

    assert stored(again) == stored(imported)
    # Why these completions ended is not known, so no share of them was truncated.
    assert "completion/frac_truncated" not in again.metric_names
    assert values(again, "reward/mean") == values(imported, "reward/mean")


def test_uploads_in_parts_can_be_resumed(alice_client, monkeypatch):
    begun = alice_client.post(reverse("run_imports", args=["alpha"]), {"begin": "1"})
    files, data = begun["Location"] + "files", verl_jsonl(1)
    body = {"filename": "1.jsonl", "num_bytes": len(data), "fingerprint": "f"}
    file = alice_client.post(files, body).json()
    parts = f"{files}/{file['id']}/parts"

    def put(offset: int, part: bytes) -> Any:
        return alice_client.post(
            f"{parts}?offset={offset}", part, content_type="application/octet-stream"
        )

    assert put(0, data[:100]).json()["received"] == 100
    early = alice_client.post(begun["Location"], {"read": "1"}, follow=True)
    assert "are incomplete" in early.content.decode()
    assert put(0, data[:100]).status_code == 409
    assert alice_client.post(files, body).json()["received"] == 100
    assert put(100, data[100:] + b"more").status_code == 422
    assert put(100, data[100:]).json()["received"] == len(data)
    alice_client.post(begun["Location"], {"read": "1"})

    assert RunImport.objects.get().findings["num_samples"] == 4


def test_a_zip_bomb_is_refused(alice_client):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.jsonl", b"\0" * 70_000_000)

    run_import = send(alice_client, {"a.zip": packed.getvalue()})

    (job,) = do_all("run_import.read")
    assert "unpacks to 70,000,000 bytes" in job.error
    assert RunImport.objects.get() == run_import


def test_verls_validation_dumps_are_runs_too(alice_client):
    rows = trl_rows(1)
    run_import = send(
        alice_client,
        {"0.jsonl": verl_jsonl(0), "5.jsonl": verl_jsonl(5, output=rows["completion"])},
    )

    run = make(alice_client, run_import, right_from="")

    assert sorted(values(run, "reward/mean")) == [0, 5]
    page = alice_client.get(reverse("run_prompts", args=["alpha", run.pk]))
    assert {line.num_right for line in page.context["lines"]} <= {None, 0}
