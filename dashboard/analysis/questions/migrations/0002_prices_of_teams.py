"""Prices of judges become prices of the team."""

from datetime import date

from django.db import migrations

ALWAYS = date(2000, 1, 1)
UNITS = {"price_in": "input_tokens", "price_out": "output_tokens"}


def move_prices(apps, schema_editor):
    """Copy each judge's prices, and those of questions whose judge was deleted.

    They had no currency. What an endpoint had cached was priced as other input.
    """
    judges, price = (
        apps.get_model("questions", "TeamJudge"),
        apps.get_model("costs", "Price"),
    )
    asked = apps.get_model("questions", "Question").objects.order_by("pk")
    prices = {}
    for team, judge in asked.values_list("team_id", "judge"):
        for field, unit in UNITS.items():
            prices[team, judge["model"], unit] = judge.get(field)
    for judge in judges.objects.order_by("pk"):
        for field, unit in UNITS.items():
            if getattr(judge, field) is not None:
                prices[judge.team_id, judge.model, unit] = getattr(judge, field)
    for (team, name, unit), amount in list(prices.items()):
        if unit == "input_tokens":
            prices[team, name, "cached_tokens"] = amount
    price.objects.bulk_create(
        price(team_id=team, name=name, unit=unit, amount=amount, valid_from=ALWAYS)
        for (team, name, unit), amount in prices.items()
        if amount is not None
    )


class Migration(migrations.Migration):
    dependencies = [
        ("questions", "0001_initial"),
        ("costs", "0001_initial"),
    ]

    operations = [
        migrations.RunPython(move_prices, migrations.RunPython.noop),
    ]
