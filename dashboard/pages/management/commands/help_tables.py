from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.help.pages import FOLDER
from dashboard.pages.help import fill_tables
from dashboard.rewards.gallery import SCORES, are_scores_stale, score_examples


class Command(BaseCommand):
    help = "Generate the tables of the help pages, and scores of rules' examples."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="only check; fail if a table is stale"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        stale = []
        for path in sorted(FOLDER.glob("*.md")):
            text = path.read_text(encoding="utf-8")
            filled = fill_tables(text)
            if filled == text:
                continue
            stale.append(path.name)
            if not options["check"]:
                path.write_text(filled, encoding="utf-8")
        if not options["check"]:
            # One example a line.
            lines = [f'"{k}": {json.dumps(v)}' for k, v in score_examples().items()]
            SCORES.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")
        elif are_scores_stale():
            stale.append(SCORES.name)
        if options["check"] and stale:
            raise CommandError(f"Stale tables in {', '.join(stale)}: run make docs.")
        self.stdout.write(
            f"Tables written in {', '.join(stale)}." if stale else "Tables are current."
        )
