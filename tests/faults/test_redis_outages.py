"""Redis is emptied, stopped and restarted during real runs."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from dashboard.accounts.models import User
from dashboard.local.redis_server import EmbeddedRedis
from dashboard.runs.control import request_stop
from dashboard.runs.models import Run, RunState
from dashboard.runs.queries import run_directory
from tests.faults.histories import assert_as_logged, is_in, reaches
from tests.faults.workers import Worker, beat, wait_for
from tests.fixtures_app import WebProcesses
from tests.load.stack import Crowd
from tests.load.stage import scene_of

pytestmark = pytest.mark.faults
ENDLESS_STEPS = 1_000_000
LIVE_SECONDS = 15  # until a page is live again
TAKEN_SECONDS = 30  # until a worker claims runs again


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """Of this test. Short: the path of a unix socket has at most 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-redis-", dir="/tmp"))
    server = EmbeddedRedis(socket=folder / "r" / "redis.sock", log=folder / "log")
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def env(app_environment, server) -> dict[str, str]:
    return {**app_environment, "REDIS_URL": f"unix://{server.socket}"}


@pytest.fixture
def worker(env, tmp_path) -> Iterator[Worker]:
    """A training worker."""
    worker = Worker("one", env=env, log=tmp_path / "one.log")
    yield worker
    worker.terminate()


@pytest.fixture(name="beat")
def _beat(env, tmp_path) -> Iterator[Worker]:
    worker = beat(env=env, folder=tmp_path)
    yield worker
    worker.terminate()


@pytest.fixture
def address(env, tmp_path) -> Iterator[str]:
    web = WebProcesses(tmp_path)
    yield web.serve(env)
    web.stop()


@pytest.fixture
def watch(address, env, alice, tmp_path) -> Iterator[Callable[[Run], Crowd]]:
    """Open pages of a run."""
    crowds: list[Crowd] = []

    def open_pages(run: Run) -> Crowd:
        scene = scene_of(run, alice)
        crowds.append(Crowd(address, scene, env=env, log=tmp_path / "viewers.log"))
        crowds[-1].ask("come", group="viewers", count=3)
        return crowds[-1]

    yield open_pages
    for crowd in crowds:
        crowd.close()


def see_more(crowd: Crowd, when: str) -> None:
    """Each page receives further steps by its socket."""
    begin = time.monotonic()
    crowd.ask("see", group="viewers", count=10)
    seconds = time.monotonic() - begin
    assert seconds < LIVE_SECONDS, f"{when}: nothing new for {seconds:.0f} s"


def end(run: Run, user: User) -> None:
    assert request_stop(run=run, user=user)
    wait_for(is_in(run, RunState.STOPPED), what="its end", seconds=TAKEN_SECONDS)


def wait_until_claimed(run: Run) -> None:
    """Claimed by a worker, and its trainer started."""
    wait_for(run.attempts.exists, what="a worker", seconds=TAKEN_SECONDS)
    wait_for(reaches(run, 1), what="the first step of the run that waited")


def test_runs_survive_an_emptied_redis(worker, server, beat, watch, launch_tiny, alice):
    running = launch_tiny(num_steps=ENDLESS_STEPS)
    wait_for(reaches(running, 1), what="the first step")
    crowd = watch(running)
    waiting = launch_tiny(num_steps=ENDLESS_STEPS)

    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        client.flushall()
    see_more(crowd, "after all was wiped")
    end(running, alice)

    wait_until_claimed(waiting)
    assert waiting.attempt == 1
    assert_as_logged(running)


def test_training_and_pages_survive_a_redis_outage(
    worker, server, beat, watch, launch_tiny, alice, outage_seconds
):
    running = launch_tiny(num_steps=ENDLESS_STEPS)
    wait_for(reaches(running, 1), what="the first step")
    crowd = watch(running)
    log = run_directory(running.id).attempt(1).events

    begin = time.monotonic()
    assert server.child is not None
    server.child.kill()
    server.child.wait()
    size_before = log.stat().st_size
    see_more(crowd, "without Redis")
    waiting = launch_tiny(num_steps=ENDLESS_STEPS)  # no worker is notified
    time.sleep(max(0.0, begin + outage_seconds - time.monotonic()))
    assert log.stat().st_size > size_before, "training went on without Redis"
    server.start()
    see_more(crowd, "with Redis again")
    end(running, alice)

    # The worker that was busy all the time takes the next run, as beat rings again.
    wait_until_claimed(waiting)
    assert waiting.attempt == 1
    assert_as_logged(running)
    assert worker.child.poll() is None
