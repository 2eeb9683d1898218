"""Probes that are forgotten in time."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.analysis.probes.jobs import probe_folder, write_snapshot
from dashboard.analysis.probes.models import Probe, ProbeGroup
from dashboard.datasets.trash import delete_dataset, trash_dataset
from dashboard.jobs.models import Job, JobState
from dashboard.jobs.tasks import clean
from tests.dashboard.analysis.probes.factories import make_probe, make_version
from tests.dashboard.jobs.working import do, take

Make = Callable[..., Probe]


@pytest.fixture
def ended(team) -> Make:
    version = make_version(team)

    def make(days_ago: int = 0, state: JobState = JobState.DONE) -> Probe:
        probe = make_probe(team, version)
        write_snapshot(probe, probe_folder(probe.pk))
        end = timezone.now() - timedelta(days=days_ago)
        Job.objects.filter(probe=probe).update(state=state, finished_at=end)
        return probe

    return make


def test_old_probes_are_deleted_with_completions_and_files(ended):
    old, young = ended(31), ended(29)
    ProbeGroup.objects.create(probe=old, position=1, completions=[])

    clean()

    assert list(Probe.objects.all()) == [young]
    assert not ProbeGroup.objects.exists()
    assert not probe_folder(old.pk).exists()
    assert probe_folder(young.pk).exists()


def test_queued_probes_are_not_deleted(team):
    waiting = make_probe(team, make_version(team))
    long_ago = timezone.now() - timedelta(days=90)
    Probe.objects.filter(pk=waiting.pk).update(created_at=long_ago)

    clean()

    assert Probe.objects.exists()


def test_the_last_probes_of_each_team_are_kept(ended, monkeypatch):
    monkeypatch.setattr("dashboard.analysis.probes.services.MOST_KEPT", 2)
    first, second, third = (
        ended(state=state)
        for state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
    )
    elsewhere = Team.objects.create(slug="else", name="Else")
    other = make_probe(elsewhere, make_version(elsewhere))
    Job.objects.filter(probe=other).update(
        state=JobState.DONE, finished_at=timezone.now()
    )

    clean()

    assert set(Probe.objects.all()) == {second, third, other}
    assert not probe_folder(first.pk).exists()


def test_a_worker_with_a_disk_of_its_own_clears_it(ended, team):
    deleted = ended()
    Probe.objects.filter(pk=deleted.pk).delete()
    waits = make_probe(team, make_version(team, name="More"))

    do(take("probe"), is_shutting_down=lambda: True)

    assert not probe_folder(deleted.pk).exists()
    assert probe_folder(waits.pk).exists()


def test_other_folders_are_not_deleted(ended, data_folder):
    ended()
    stray = data_folder / "probes" / "notes"
    stray.mkdir()

    clean()

    assert stray.exists()


def test_a_dataset_can_be_deleted_after_its_probes(ended, team):
    dataset = ended(31).dataset_version.dataset
    trash_dataset(dataset, None)
    with pytest.raises(ValueError, match="a test"):
        delete_dataset(dataset, None)

    clean()
    delete_dataset(dataset, None)

    assert not team.datasets.exists()


def test_pages_show_how_long_a_probe_is_kept(alice_client, ended):
    probe = ended()

    listed = alice_client.get("/alpha/probes/")
    page = alice_client.get(f"/alpha/probes/{probe.pk}/")

    assert "30 days" in listed.text
    last = timezone.localtime(timezone.now() + timedelta(days=30))
    assert f"Kept until {last.day} {last:%B %Y}" in page.text
