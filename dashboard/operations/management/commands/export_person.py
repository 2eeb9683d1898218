from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard.operations.management.commands import find_person, name
from dashboard.operations.personal_data import Encoder, export_of


class Command(BaseCommand):
    help = "Export all data about a user to a JSON file."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("username", type=name)
        parser.add_argument("file", type=Path, help="new file")

    def handle(self, *_args: Any, **options: Any) -> None:
        user = find_person(options["username"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        text = json.dumps(export_of(user), cls=Encoder, indent=1, ensure_ascii=False)
        try:
            with os.fdopen(os.open(options["file"], flags, 0o600), "w") as file:
                file.write(text)
        except OSError as error:
            raise CommandError(
                f"{options['file']} cannot be written: {error.strerror}. Pass the "
                "name of a new file."
            ) from error
        self.stdout.write(f"Exported the data of {user.username} to {options['file']}.")
