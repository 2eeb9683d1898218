"""A worker's clock is an hour off: what counts is the database's."""

import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models import F
from django.db.models.functions import Now

from dashboard.runs.models import Run, RunAttempt, RunState
from dashboard.supervision.lease import LEASE, claim_run
from dashboard.supervision.models import Worker as TrainingWorker
from tests.environment import run_here
from tests.faults.histories import assert_whole, is_in, reaches
from tests.faults.workers import wait_for

pytestmark = pytest.mark.faults
NUM_STEPS = 20
HOUR = 3_600
# Put before the C library's own: what every process takes for the time of day.
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) { return atol(getenv("CLOCK_SHIFT")); }

int clock_gettime(clockid_t clock, struct timespec *ts) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, ts);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        ts->tv_sec += shift();
    return status;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int status = real(tv, zone);
    tv->tv_sec += shift();
    return status;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("A clock is shifted by a library, which needs Linux and cc.")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(CLOCK)
    library = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), "clock.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return library


@pytest.fixture(
    params=[
        pytest.param(HOUR, id="ahead"),
        pytest.param(-HOUR, id="behind", marks=pytest.mark.soak),
    ]
)
def shifted(library, request) -> dict[str, str]:
    """Of a process whose clock is wrong."""
    variables = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(request.param)}
    process = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env=variables,
        check=True,
        capture_output=True,
    )
    assert abs(float(process.stdout) - time.time() - request.param) < 60
    return variables


def run_in_database(statement: str, env: dict[str, str]) -> str:
    """What a process with this environment prints."""
    code = f"import django; django.setup()\n{statement}"
    done = run_here(sys.executable, "-c", code, env=env, check=True)
    return done.stdout.strip()


def test_a_worker_with_a_wrong_clock_reports_correct_times(
    launch_tiny, start_worker, undisturbed, shifted
):
    start_worker("one", **shifted)
    run = launch_tiny(num_steps=NUM_STEPS)
    wait_for(reaches(run, 5), what="step 5")
    soon = Now() + LEASE + timedelta(seconds=1)
    just_now = Now() - timedelta(seconds=60)
    held = Run.objects.filter(id=run.id, lease_until__range=(Now(), soon))
    is_held_rightly = held.exists()
    seen = TrainingWorker.objects.filter(last_seen__range=(just_now, Now()))
    is_seen_rightly = seen.exists()
    wait_for(run.system_samples.exists, what="what its machine uses")
    samples = run.system_samples.filter(time__range=(just_now, Now()))
    is_measured_rightly = samples.exists()
    wait_for(is_in(run, RunState.FINISHED), what="the run to finish")

    assert is_measured_rightly
    assert (is_held_rightly, is_seen_rightly) == (True, True)
    assert_whole(run, undisturbed, num_steps=NUM_STEPS)
    assert run.attempt == 1
    assert Run.objects.filter(
        started_at__gt=F("created_at") - timedelta(seconds=1),
        finished_at__gt=F("started_at"),
        finished_at__lte=Now(),
    ).exists()
    assert RunAttempt.objects.filter(
        claimed_at__range=(F("run__created_at"), F("ended_at")), ended_at__lte=Now()
    ).exists()


def test_reaping_and_claiming_use_the_clock_of_the_database(
    launch, app_environment, shifted
):
    held, expired, resting, rested = [launch() for _ in range(4)]
    for run in (held, expired):
        assert claim_run(run.id, "elsewhere")
    half = timedelta(minutes=30)
    Run.objects.filter(id=held.id).update(lease_until=Now() + timedelta(minutes=1))
    Run.objects.filter(id=expired.id).update(lease_until=Now() - timedelta(seconds=1))
    Run.objects.filter(id=resting.id).update(not_before=Now() + half)
    Run.objects.filter(id=rested.id).update(not_before=Now() - half)

    output = run_in_database(
        "from datetime import timedelta\n"
        "from dashboard.supervision.lease import claim_run\n"
        "from dashboard.supervision.lease import reap\n"
        f"claimed = [claim_run(n, 'w') for n in ({resting.id}, {rested.id})]\n"
        "print(reap(grace=timedelta(0)), *(one is not None for one in claimed))",
        {**app_environment, **shifted},
    )

    assert output == f"[{expired.id}] False True"
