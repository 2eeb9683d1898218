from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("samples", "0012_completion_blocks"),
    ]

    operations = [
        migrations.AddField(
            model_name="steprollup",
            name="majorities",
            field=models.BinaryField(db_default=b"", default=b""),
        ),
    ]
