from __future__ import annotations

from django import forms

from dashboard.accounts.models import User


class ProfileForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own class takes no argument when it runs
    class Meta:
        model = User
        fields = ("display_name", "email")
        labels = {"display_name": "Your name", "email": "E-mail"}  # noqa: RUF012  # Django's way to write a form's Meta
        help_texts = {"display_name": "Shown beside your runs."}  # noqa: RUF012  # as above
