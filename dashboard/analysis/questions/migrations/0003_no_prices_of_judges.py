"""The columns stay in the database for the previous release, which reads them."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("questions", "0002_prices_of_teams")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveField("teamjudge", "price_in"),
                migrations.RemoveField("teamjudge", "price_out"),
            ]
        ),
    ]
