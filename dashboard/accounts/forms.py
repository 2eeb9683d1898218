from __future__ import annotations

from typing import Any

from allauth.account.forms import ResetPasswordKeyForm
from django import forms
from django.contrib.auth.forms import (
    PasswordChangeForm,
    SetPasswordForm,
    UserCreationForm,
)

from dashboard.accounts.access import roles_given_by
from dashboard.accounts.models import Membership, Role, Team, User
from dashboard.accounts.services import RESERVED_SLUGS
from dashboard.project.forms import set_choices

ModelForm = forms.ModelForm  # Django's class is not generic at run time


ABOUT_PASSWORDS = (
    "At least 8 characters, not only digits, not a common password and not "
    "similar to your name."
)


def name_passwords(form: forms.BaseForm, first: str, again: str) -> None:
    """Rename fields to the words of our pages, wherever a form comes from."""
    form.fields[first].help_text = ABOUT_PASSWORDS
    form.fields[again].label = f"{form.fields[first].label}, again"
    form.fields[again].help_text = ""


class PasswordForm(PasswordChangeForm):
    """To change a password by the present one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["old_password"].label = "Current password"
        self.fields["old_password"].widget.attrs.pop("autofocus", None)
        name_passwords(self, "new_password1", "new_password2")


class FirstPasswordForm(SetPasswordForm):  # type: ignore[type-arg]  # as above
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name_passwords(self, "new_password1", "new_password2")


class ForgottenPasswordForm(ResetPasswordKeyForm):  # type: ignore[misc]  # untyped
    """The form behind an e-mailed link."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password1"].label = "New password"
        name_passwords(self, "password1", "password2")


class ProfileForm(ModelForm):  # type: ignore[type-arg]  # as above
    class Meta:
        model = User
        fields = ("display_name",)
        labels = {"display_name": "Your name"}  # noqa: RUF012  # Django's way to write a form's Meta
        help_texts = {"display_name": "Shown next to your runs."}  # noqa: RUF012  # as above


class SignUpForm(UserCreationForm):  # type: ignore[type-arg]  # as above
    class Meta:
        model = User
        fields = ("username", "display_name", "email")
        labels = {"display_name": "Your name", "email": "E-mail"}  # noqa: RUF012  # Django's way to write a form's Meta
        help_texts = {  # noqa: RUF012  # as above
            "username": "You sign in with this. Letters, digits and @ . + - _ only.",
            "display_name": "Shown next to your runs.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name_passwords(self, "password1", "password2")


class TeamForm(ModelForm):  # type: ignore[type-arg]  # as above
    class Meta:
        model = Team
        fields = ("name", "slug")
        labels = {"name": "Name", "slug": "Address"}  # noqa: RUF012  # as above
        help_texts = {  # noqa: RUF012  # as above
            "slug": "The first part of the team's URLs, such as “lab” in /lab/runs/. "
            "You cannot change it later."
        }

    def clean_slug(self) -> str:
        slug = str(self.cleaned_data["slug"])
        if slug in RESERVED_SLUGS:
            raise forms.ValidationError(
                f"“{slug}” is reserved. Choose another address.", code="reserved"
            )
        return slug


class InviteForm(forms.Form):
    role = forms.ChoiceField(label="Role", initial=Role.MEMBER)
    email = forms.EmailField(label="E-mail", required=False)

    def __init__(self, *args: Any, by: Membership, can_send: bool) -> None:
        super().__init__(*args)
        roles = [role for role in roles_given_by(by.role) if role != Role.OWNER]
        set_choices(self, "role", [(choice.value, choice.value) for choice in roles])
        self.fields["email"].help_text = (
            "Cohort sends the link there. Leave it empty to share the link yourself."
            if can_send
            else "A note on who the link is for."
        )
