from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("samples", "0009_mention"),
    ]

    operations = [
        migrations.AddField(
            model_name="steprollup",
            name="passes",
            field=models.BinaryField(db_default=b"", default=b""),
        ),
    ]
