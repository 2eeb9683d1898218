from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_audit_entries_stay")]

    operations = [
        migrations.AlterModelOptions(
            name="auditentry", options={"verbose_name_plural": "audit entries"}
        ),
    ]
