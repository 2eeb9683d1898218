"""Print what the environment's database holds of a run's groups, as JSON."""

import json
import sys
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main(run_id: str) -> None:
    django.setup()
    from dashboard.runs.models import Run
    from tests.faults.histories import assert_lines_stored_once, stored_groups

    run = Run.objects.get(pk=int(run_id))
    assert_lines_stored_once(run)
    json.dump(
        [[*place, group] for place, group in stored_groups(run).items()], sys.stdout
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
