import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
from django.test import Client
from django.urls import reverse

from dashboard.runs.models import Run, RunAttempt
from dashboard.supervision import system_metrics as readers
from dashboard.supervision import system_samples
from dashboard.supervision.lease import claim_run
from dashboard.supervision.models import SystemSample
from dashboard.supervision.process import TrainerProcess
from dashboard.supervision.system_metrics import METRICS, Gpus, Reader, chosen_gpus
from dashboard.supervision.system_samples import (
    SystemSampler,
    Window,
    halve,
    read_points,
)
from tests.dashboard.supervision.machines import START, make_samples, make_worker
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db
BUSY = "import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
CHILD = "block = b'x' * 100_000_000\nwhile True: pass"


def by_name(values: list[float | None]) -> dict[str, float | None]:
    return dict(zip(METRICS, values, strict=False))


def answer(client: Client, run: Run, **query: object) -> Any:
    response = client.get(reverse("run_system_samples", args=["alpha", run.id]), query)
    assert response.status_code == 200
    return response.json()


def page(client: PageClient, run: Run) -> str:
    return client.read(reverse("run_metrics", args=["alpha", run.id]))


def busy_trainer(folder: Path) -> TrainerProcess:
    """Its child holds 100 MB and a core, as the trainer's own children may."""
    command = [sys.executable, "-c", BUSY.format(code=CHILD)]
    return TrainerProcess(command, log=folder / "log")


def test_a_trainer_is_measured_with_what_it_started(tmp_path):
    with busy_trainer(tmp_path) as trainer:
        reader = Reader(tmp_path, pid=trainer.pid)
        values = read_until(reader, trainer_memory=100e6)
        assert (values["trainer_memory"] or 0) < 400e6
        # What it started itself has begun by now: the rest is its child's.
        values = read_until(reader, trainer_cpu=0.1)

    assert 0 < (values["cpu"] or 0) <= 100
    assert (values["memory"] or 0) > (values["trainer_memory"] or 0)
    assert (values["disk_free"] or 0) > 0


def read_until(reader: Reader, **least: float) -> dict[str, float | None]:
    """Several times, till a value is as large as that."""
    ((name, bound),) = least.items()
    deadline = time.monotonic() + 30
    while True:
        time.sleep(0.1)
        values = by_name(reader.read())
        if (values[name] or 0) > bound:
            return values
        assert time.monotonic() < deadline, values


def test_an_exited_trainer_has_no_values(tmp_path):
    with TrainerProcess([sys.executable, "-c", ""], log=tmp_path / "log") as trainer:
        while not trainer.has_exited():
            time.sleep(0.01)
        trainer.reap()
        values = by_name(Reader(tmp_path, pid=trainer.pid).read())

    assert (values["trainer_memory"], values["trainer_cpu"]) == (None, None)


@pytest.mark.django_db(transaction=True)
def test_samples_are_stored_while_a_trainer_runs(run, data_folder):
    claim = claim_run(run.id, "training@gpu-1")
    assert claim is not None
    with (
        busy_trainer(data_folder) as trainer,
        SystemSampler(claim, pid=trainer.pid, read_step=lambda: 7, every=0.1),
    ):
        deadline = time.monotonic() + 30
        while SystemSample.objects.count() < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    sample = SystemSample.objects.latest("id")
    assert (sample.run_id, sample.attempt, sample.step) == (run.id, 1, 7)
    assert by_name(sample.values)["memory"]


@pytest.mark.django_db(transaction=True)
def test_a_resumed_attempt_begins_at_its_checkpoints_step(run, data_folder):
    claim = claim_run(run.id, "training@gpu-1")
    assert claim is not None
    run.attempts.update(from_step=40)
    with (
        busy_trainer(data_folder) as trainer,
        SystemSampler(claim, pid=trainer.pid, read_step=lambda: 0, every=0.1),
    ):
        deadline = time.monotonic() + 30
        while not SystemSample.objects.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    assert SystemSample.objects.earliest("id").step == 40


@pytest.mark.django_db(transaction=True)
def test_nothing_is_stored_of_a_run_that_another_has_claimed(run, data_folder):
    claim = claim_run(run.id, "training@gpu-1")
    assert claim is not None
    Run.objects.update(attempt=2)
    with (
        busy_trainer(data_folder) as trainer,
        SystemSampler(claim, pid=trainer.pid, read_step=lambda: 7, every=0.05),
    ):
        time.sleep(0.5)

    assert not SystemSample.objects.exists()


def test_rows_are_bounded_and_peaks_of_memory_are_kept(run, monkeypatch):
    monkeypatch.setattr(system_samples, "MAX_ROWS", 100)
    make_samples(run, 101)
    peak = SystemSample.objects.order_by("time")[42]
    peak.values[METRICS.index("memory")] = 9e9
    peak.save()

    halve(run.id)

    rows = list(SystemSample.objects.order_by("time"))
    assert 45 <= len(rows) <= 55
    memory = [by_name(row.values)["memory"] for row in rows]
    cpu = [by_name(row.values)["cpu"] for row in rows]
    assert max(filter(None, memory)) == 9e9
    assert cpu[1] == 2.5  # the mean of 2 and 3


@pytest.mark.django_db(transaction=True)
def test_a_sampler_keeps_its_rows_within_their_bound(run, data_folder, monkeypatch):
    monkeypatch.setattr(system_samples, "MAX_ROWS", 5)
    monkeypatch.setattr(system_samples, "MAX_ROWS", 5)
    claim = claim_run(run.id, "training@gpu-1")
    assert claim is not None
    newest = SystemSample.objects.order_by("-id").values_list("id", flat=True)
    with (
        TrainerProcess(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            log=data_folder / "log",
        ) as trainer,
        SystemSampler(claim, pid=trainer.pid, read_step=lambda: 7, every=0.02),
    ):
        deadline = time.monotonic() + 60
        begin = None
        while begin is None or (newest.first() or 0) < begin + 15:
            begin = newest.first() if begin is None else begin
            assert time.monotonic() < deadline
            time.sleep(0.02)

    assert SystemSample.objects.count() <= 6


def test_disks_and_network_are_rates_in_both_directions(tmp_path, monkeypatch):
    fake_proc(tmp_path, monkeypatch, disk=(10, 20), network=(1_000, 2_000))
    reader = Reader(tmp_path)
    fake_proc(tmp_path, monkeypatch, disk=(40, 80), network=(8_000, 13_000))
    time.sleep(0.05)

    values = by_name(reader.read())

    # 30 and 60 sectors of 512 bytes, 7,000 and 11,000 bytes; over the same seconds.
    names = ("disk_read", "disk_written", "network_received", "network_sent")
    rates = [values[name] or 0 for name in names]
    seconds = 7_000 / rates[2]
    assert seconds >= 0.05
    moved = [rate * seconds for rate in rates]
    assert moved == pytest.approx([15_360, 30_720, 7_000, 11_000])


def fake_proc(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    disk: tuple[int, int],
    network: tuple[int, int],
) -> None:
    """As the kernel's documentation writes them, with what must not be counted."""
    (folder / "block" / "vda").mkdir(parents=True, exist_ok=True)
    (folder / "block" / "loop0").mkdir(exist_ok=True)
    rows = [("vda", disk), ("vda1", disk), ("loop0", (9_000, 9_000))]
    (folder / "diskstats").write_text(
        "".join(f" 252 0 {name} 5 0 {r} 7 3 0 {w} 4 0 9 11\n" for name, (r, w) in rows)
    )
    (folder / "net").mkdir(exist_ok=True)
    lines = [("lo", (5, 5)), ("eth0", network)]
    (folder / "net" / "dev").write_text(
        "Inter-| Receive | Transmit\n face |bytes packets |bytes packets\n"
        + "".join(f"{n}: {i} 1 0 0 0 0 0 0 {o} 1 0 0 0 0 0 0\n" for n, (i, o) in lines)
    )
    for name in ("stat", "meminfo"):
        (folder / name).write_text((Path("/proc") / name).read_text())
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(folder))
    monkeypatch.setattr(readers, "BLOCK", folder / "block")


def test_many_samples_are_sent_as_few_points(run):
    make_samples(run, 1_500)

    points = read_points(run.id, Window())
    begin = START.timestamp() + 5 * 1_000
    near = read_points(run.id, Window(first=begin, last=begin + 495))

    assert 450 <= len(points) <= 510
    assert len(near) == 100  # a closer view has all of them


def test_new_samples_come_as_they_are(alice_client, run):
    make_samples(run, 12)

    found = answer(alice_client, run, after=START.timestamp() + 5 * 9 + 0.001)

    assert found["step"] == [10, 11]
    assert found["values"]["cpu"] == [10, 11]


def test_over_steps_a_resume_shows_each_step_once(run):
    for number, from_step in ((1, 0), (2, 5)):
        RunAttempt.objects.create(
            run=run, number=number, from_step=from_step, worker="w", claimed_at=START
        )
    make_samples(run, 10, attempt=1)
    make_samples(run, 10, attempt=2, begin=6)

    points = read_points(run.id, Window(axis="step"))

    assert [(p.attempt, p.step) for p in points] == [
        *((1, step) for step in range(6)),
        *((2, step) for step in range(6, 16)),
    ]


def test_each_gpu_has_its_values(alice_client, run):
    make_samples(run, 2, gpus=2)

    found = answer(alice_client, run)

    assert set(found["values"]) == {
        *METRICS,
        *("gpu_use/0", "gpu_memory/0", "gpu_use/1", "gpu_memory/1"),
    }


def test_the_page_names_the_runs_worker_and_missing_hardware(alice_client, run):
    assert "No worker" in page(alice_client, run)
    assert answer(alice_client, run)["time"] == []
    make_worker("training@gpu-1")
    claim_run(run.id, "training@gpu-1")
    make_samples(run, 2)

    html = page(alice_client, run)

    assert "No GPU" in html
    assert "training@gpu-1" in html


def test_a_bound_that_is_not_a_number_is_rejected(alice_client, run):
    url = reverse("run_system_samples", args=["alpha", run.id])

    for bad in ("-1", "x", "nan", "1e99"):
        assert alice_client.get(url, {"first": bad}).status_code == 400, bad


def test_figures_of_the_machine_are_the_kernels(tmp_path):
    """Read at the same time as /proc, which keeps counting."""
    reader = Reader(tmp_path, pid=os.getpid())
    before = read_proc()
    while read_proc()["all"] < before["all"] + 0.5 * (os.cpu_count() or 1):
        sum(range(10_000))

    values, now = by_name(reader.read()), read_proc()

    elapsed = now["all"] - before["all"]
    assert values["cpu"] == pytest.approx(
        100 * (now["busy"] - before["busy"]) / elapsed, abs=10
    )
    assert values["trainer_cpu"] == pytest.approx(
        100 * (now["own"] - before["own"]) / elapsed, abs=10
    )
    assert values["memory"] == pytest.approx(now["memory"], rel=0.05)
    assert (values["trainer_memory"] or 0) >= 0.9 * now["resident"]


def read_proc() -> dict[str, float]:
    ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    lines = Path("/proc/meminfo").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    own = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    second = os.sysconf("SC_CLK_TCK")
    return {
        "all": sum(ticks) / second,
        "busy": (sum(ticks) - ticks[3] - ticks[4]) / second,
        "own": (int(own[11]) + int(own[12])) / second,
        "memory": (kib["MemTotal"] - kib["MemAvailable"]) * 1024,
        "resident": int(own[21]) * os.sysconf("SC_PAGE_SIZE"),
    }


@pytest.fixture
def two_gpus(monkeypatch) -> None:
    """The second GPU does not report its use."""

    def use(gpu: int) -> SimpleNamespace:
        if gpu == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=87, memory=12)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", use)
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetMemoryInfo",
        lambda gpu: SimpleNamespace(used=2**30 * (gpu + 1)),
    )


@pytest.mark.usefixtures("two_gpus")
def test_gpus_report_utilization_and_memory(monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Gpus().read() == [87, 2**30, None, 2**31]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert Gpus().read() == [None, 2**31]


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch):
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)

    assert Gpus().read() == []


def test_only_the_gpus_of_this_worker_count():
    assert chosen_gpus({}) is None
    for shown, chosen in (("", []), ("-1", []), ("2, GPU-8a", ["2", "GPU-8a"])):
        assert chosen_gpus({"CUDA_VISIBLE_DEVICES": shown}) == chosen
