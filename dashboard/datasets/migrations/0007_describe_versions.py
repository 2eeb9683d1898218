"""Fills first_prompt and answer_type of the versions there are."""

import json
from typing import Any

from django.db import migrations

from dashboard.datasets.row import Row, read_answer
from dashboard.datasets.suggestions import DESCRIBED_ROWS, describe


def fill(apps: Any, schema_editor: Any) -> None:
    versions = apps.get_model("datasets", "DatasetVersion").objects
    for version in versions.filter(first_prompt="").only("pk").iterator():
        # One at a time: a row may have 8 MiB.
        stored = version.rows.filter(position__lt=DESCRIBED_ROWS).order_by("position")
        rows = [_row(one) for one in stored.iterator(chunk_size=1)]
        if rows:
            versions.filter(pk=version.pk).update(**describe(rows))


def _row(stored: Any) -> Row:
    prompt = json.loads(stored.prompt) if stored.is_chat else stored.prompt
    answer = read_answer(stored.answer, is_list=stored.answer_is_list)
    return Row(prompt=prompt, answer=answer, columns=stored.columns)


class Migration(migrations.Migration):
    atomic = False  # each version on its own, so that it may be run again

    dependencies = [
        ("datasets", "0006_first_prompt_and_answer_type"),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    ]
