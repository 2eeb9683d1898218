"""Queue runs in the environment's database: MODEL NUM_STEPS [COUNT]; prints ids."""

import sys
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main(model: str, num_steps: str, count: str = "1") -> None:
    django.setup()
    from dashboard.accounts.services import create_first_team
    from tests.dashboard.supervision.factories import Launcher
    from tests.faults.tiny import config_tree

    owner = create_first_team()
    launch = Launcher(owner.teams.get(), owner)
    for _ in range(int(count)):
        run = launch(**config_tree(Path(model), num_steps=int(num_steps)))
        sys.stdout.write(f"{run.id}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
