"""The release after this one: a copy of Cohort whose trainer and tables know more."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.tiny import ROOT

if TYPE_CHECKING:
    from dashboard.runs.queries import RunDirectory

LATER_EVENT = "weather_changed"
LATER_METRIC = "weather/rain"
CHANGES = {
    "trainer/events.py": {
        "    metrics: dict[str, float | None]\n\n\nclass RankMeasured": (
            "    metrics: dict[str, float | None]\n    weather: str = 'fair'\n\n\n"
            "class WeatherChanged(Event):\n"
            f"    type: Literal['{LATER_EVENT}'] = '{LATER_EVENT}'\n"
            "    rain: list[float]\n\n\n"
            "class RankMeasured"
        ),
        "    | StepFinished\n": "    | StepFinished\n    | WeatherChanged\n",
    },
    "trainer/output/journal.py": {
        "    StepFinished,\n": "    StepFinished,\n    WeatherChanged,\n",
        "        self._log.add(StepFinished, step=self.step, metrics=metrics)\n": (
            f"        metrics['{LATER_METRIC}'] = 0.5\n"
            "        self._log.add(WeatherChanged, step=self.step, rain=[1.0, 2.0])\n"
            "        fields = dict(metrics=metrics, weather='grey')\n"
            "        self._log.add(StepFinished, step=self.step, **fields)\n"
        ),
    },
}
# As Django adds a field that may be empty, one with a default of the database's, and a
# model. Tables that a run writes to, and those that a page does.
GROWS = (
    "runs_run", "runs_step", "runs_runevent", "runs_epoch", "runs_evaluation",
    "runs_checkpoint", "samples_group", "samples_groupcompletions",
    "accounts_auditentry", "training_worker",
)  # fmt: skip
MIGRATION = '''
from django.db import migrations

GROWS = {grows!r}


class Migration(migrations.Migration):
    dependencies = [("runs", "{last}"), {others}]
    operations = [
        *(
            migrations.RunSQL(
                f"""ALTER TABLE {{table}} ADD COLUMN later text NULL;
                ALTER TABLE {{table}} ADD COLUMN weather varchar(9)
                DEFAULT 'fair' NOT NULL"""
            )
            for table in GROWS
        ),
        migrations.RunSQL(
            "CREATE TABLE runs_weather (id bigint PRIMARY KEY, run_id bigint NOT NULL "
            "REFERENCES runs_run (id) DEFERRABLE INITIALLY DEFERRED)"
        ),
    ]
'''
NAME = "9000_of_the_next_release"


class NextVersion:
    def __init__(self, root: Path, leaves: Mapping[str, str]) -> None:
        self.root = root
        for part in ("cohort", "dashboard", "trainer"):
            away = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, root / part, ignore=away)
        shutil.copy(ROOT / "manage.py", root)
        for part in ("templates", "static", "node_modules"):
            (root / part).symlink_to(ROOT / part)
        for name, changes in CHANGES.items():
            text = (root / name).read_text()
            for old, new in changes.items():
                assert text.count(old) == 1, (name, old)
                text = text.replace(old, new)
            (root / name).write_text(text)
        others = [(app, leaves[app]) for app in ("accounts", "samples", "training")]
        migration = MIGRATION.format(
            grows=GROWS, last=leaves["runs"], others=", ".join(map(repr, others))
        )
        path = root / "dashboard" / "runs" / "migrations" / f"{NAME}.py"
        path.write_text(migration)

    def undo(self) -> None:
        """As its migration would, without a process."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS runs_weather")
            for table in GROWS:
                for column in ("later", "weather"):
                    cursor.execute(
                        f"ALTER TABLE {table} DROP COLUMN IF EXISTS {column}"
                    )
            cursor.execute("DELETE FROM django_migrations WHERE name = %s", [NAME])

    def trainer_command(self, directory: RunDirectory, **given: Any) -> list[str]:
        """Its trainer, for a supervisor of this version."""
        from dashboard.supervision.process import trainer_command

        python, _, _, *rest = trainer_command(directory, **given)
        begin = (
            f"import sys; sys.path.insert(0, {str(self.root)!r}); "
            "from trainer.__main__ import exit_process, main; "
            "exit_process(main(sys.argv[1:]))"
        )
        return [python, "-c", begin, *rest]

    def manage(self, *arguments: str, env: Mapping[str, str]) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.root,
            env=dict(env),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
