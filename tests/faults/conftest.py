from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.forks import Forks, forks
from tests.faults.tiny import (
    NUM_STEPS,
    ROOT,
    History,
    config_tree,
    groups,
    save_model,
    series,
    undisturbed_log,
)
from tests.faults.workers import Worker

# Models are imported when a fixture runs: this file is read before Django is set up.
if TYPE_CHECKING:
    from dashboard.runs.models import Run
    from tests.dashboard.supervision.factories import Launcher


REPETITIONS = 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A fault that fails one time in ten is a failure."""
    if metafunc.config.getoption("--soak"):
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(1, REPETITIONS + 1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With --soak, a fault that this machine cannot cause is a failure."""
    report = yield
    if report.skipped and item.config.getoption("--soak"):
        report.outcome = "failed"
        report.longrepr = f"No fault was caused: {report.longrepr}"
    return report


@pytest.fixture
def outage_seconds(request) -> float:
    """Length of a server's outage."""
    return 60 if request.config.getoption("--soak") else 15


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_model(folder)
    return folder


@pytest.fixture(scope="session")
def undisturbed(tiny_model) -> History:
    """Of a run without faults, from the trainer alone."""
    from tests.dashboard.supervision.factories import ROWS

    rows = "".join(row.canonical() + "\n" for row in ROWS)
    events = undisturbed_log(config_tree(tiny_model), rows)
    return History(series=series(events), groups=groups(events))


@pytest.fixture(scope="session")
def trainers() -> Iterator[Forks]:
    """Runs trainers in forked processes, with torch loaded once."""
    with forks() as started:
        yield started


@pytest.fixture
def data_folder(settings) -> Path:
    return Path(settings.COHORT_DATA)


@pytest.fixture
def launch_tiny(transactional_db, team, alice, tiny_model) -> Callable[..., Run]:
    from tests.dashboard.supervision.factories import Launcher

    launcher = Launcher(team, alice)

    def launch(*, num_steps: int = NUM_STEPS, **parts: Any) -> Run:
        tree: dict[str, Any] = config_tree(tiny_model, num_steps=num_steps)
        return launcher(**tree | parts)

    return launch


@pytest.fixture
def launch(transactional_db, team, alice) -> Launcher:
    """Launches runs that are never trained."""
    from tests.dashboard.supervision.factories import Launcher

    return Launcher(team, alice)


@pytest.fixture
def start_worker(app_environment, tmp_path) -> Iterator[Callable[..., Worker]]:
    """Workers with extra environment `variables`, ended after the test."""
    workers: list[Worker] = []

    def start(
        name: str, *, queue: str = "training", root: Path = ROOT, **variables: str
    ) -> Worker:
        log, env = tmp_path / f"{name}.log", {**app_environment, **variables}
        workers.append(Worker(name, env=env, log=log, queue=queue, root=root))
        return workers[-1]

    yield start
    for worker in workers:
        worker.terminate()
