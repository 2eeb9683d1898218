import pytest

from dashboard.project.environment import read_environment
from dashboard.supervision import process
from dashboard.supervision.lease import drain
from dashboard.supervision.models import Worker
from dashboard.supervision.worker_hosts import list_hosts, this_host
from dashboard.supervision.workers import keep_visible, register

GPUS = [{"name": name, "memory_bytes": 1} for name in ("a", "b", "c")]


def test_a_worker_has_the_gpus_that_cuda_shows_it(monkeypatch):
    def kept() -> str:
        return "".join(gpu["name"] for gpu in keep_visible(GPUS))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert kept() == "abc"
    for shown, names in (
        *(("2,0", "ca"), ("", ""), ("-1", ""), ("1,7,2", "b")),
        ("GPU-8f2a,GPU-11", "ab"),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert kept() == names, shown


def test_a_worker_for_cpus_shows_its_trainer_no_gpu(settings):
    settings.COHORT_WORKER_CLASS = "cpu"

    assert keep_visible(GPUS) == []
    given = process._environment({"CUDA_VISIBLE_DEVICES": "0"}, 3, ())
    assert given["CUDA_VISIBLE_DEVICES"] == ""


def test_a_class_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setenv("COHORT_WORKER_CLASS", "huge")

    with pytest.raises(ValueError, match="got 'huge'"):
        read_environment()


@pytest.mark.django_db
def test_a_worker_reports_its_class(settings):
    settings.COHORT_WORKER_CLASS = "gpus"
    register("training@big", num_slots=2)

    (host,) = list_hosts()
    assert (host.takes, host.num_slots) == ("gpus", 2)
    assert this_host("training@big").takes == "gpus"
    assert this_host("training@unknown").takes == "gpus"


@pytest.mark.django_db
def test_a_drained_worker_is_not_a_host(team, alice):
    register("training@here", num_slots=1)
    drain(Worker.objects.get(), team=team, user=alice)

    assert list_hosts() == []


@pytest.mark.django_db
def test_a_stopped_worker_is_not_a_host():
    register("training@gone", num_slots=1)
    worker = Worker.objects.get()
    worker.stopped_at = worker.last_seen
    worker.save()

    assert list_hosts() == []
