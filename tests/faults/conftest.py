from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pytest_django.fixtures import Settings

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
    from dashboard.accounts.models import Team, User
    from dashboard.runs.models import Run
    from tests.dashboard.training.factories import Launcher


REPETITIONS = 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A fault that is survived nine times in ten is not survived."""
    if metafunc.config.getoption("--soak"):
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(1, REPETITIONS + 1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A fault that this machine cannot make is not survived ten times in ten."""
    report = yield
    if report.skipped and item.config.getoption("--soak"):
        report.outcome = "failed"
        report.longrepr = f"Not a fault was made: {report.longrepr}"
    return report


@pytest.fixture
def outage_seconds(request: pytest.FixtureRequest) -> float:
    """How long a server stays away."""
    return 60 if request.config.getoption("--soak") else 15


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_model(folder)
    return folder


@pytest.fixture(scope="session")
def undisturbed(tiny_model: Path) -> History:
    """Of a run that nothing happens to, by the trainer alone."""
    from tests.dashboard.training.factories import ROWS

    rows = "".join(row.canonical() + "\n" for row in ROWS)
    told = undisturbed_log(config_tree(tiny_model), rows)
    return History(series=series(told), groups=groups(told))


@pytest.fixture(scope="session")
def trainers() -> Iterator[Forks]:
    """Has trainers live and die, each a process of its own, with torch loaded once."""
    with forks() as started:
        yield started


@pytest.fixture
def data_folder(settings: Settings) -> Path:
    return Path(settings.COHORT_DATA)


@pytest.fixture
def launch_tiny(
    transactional_db: None, team: Team, alice: User, tiny_model: Path
) -> Callable[..., Run]:
    from tests.dashboard.training.factories import Launcher

    launcher = Launcher(team, alice)

    def launch(*, num_steps: int = NUM_STEPS, **parts: Any) -> Run:
        tree: dict[str, Any] = config_tree(tiny_model, num_steps=num_steps)
        return launcher(**tree | parts)

    return launch


@pytest.fixture
def launch(transactional_db: None, team: Team, alice: User) -> Launcher:
    """Launches runs of which nothing is ever trained."""
    from tests.dashboard.training.factories import Launcher

    return Launcher(team, alice)


@pytest.fixture
def start_worker(
    app_environment: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., Worker]]:
    """Workers whose environment differs by `variables`, ended with their test."""
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
